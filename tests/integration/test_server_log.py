"""The log of a running server: its format, its levels and slow requests; and errors of a start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaq.admin import Admin
from metaq.errors import MetaqError
from metaq.protocol.commands.routes import GetNameServerConfig, UpdateNameServerConfig
from tests.support.metaq import READY, Metaq, run
from tests.support.patient import Connection
from tests.support.waiting import wait_until

Start = Callable[..., Metaq]


@pytest.fixture(scope="module")
def logging_in_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    metaq = Metaq.serve(tmp_path_factory.mktemp("json"), "--set", "log_format=json")
    yield metaq
    metaq.child.stop()


def lines(metaq: Metaq) -> list[dict[str, str]]:
    """Returns the lines of its log; every line but that for programs is JSON."""
    printed = metaq.child.log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in printed if line.endswith("\n") and not line.startswith(READY)]


def texts(metaq: Metaq) -> list[str]:
    return [line["message"] for line in lines(metaq)]


def test_every_line_is_json_and_one_says_where_it_listens(logging_in_json: Metaq) -> None:
    for line in lines(logging_in_json):
        assert {"time", "level", "logger", "message"} <= line.keys()
    ready = next(line for line in lines(logging_in_json) if line["logger"] == "metaq.serve")
    assert f"broker {logging_in_json.broker}" in ready["message"]
    assert "Try it" not in ready["message"], "that is for people"


def test_levels_change_while_a_broker_runs(logging_in_json: Metaq) -> None:
    def is_logged(change: str) -> bool:
        return any(text.startswith(f"configuration {change} set by ") for text in texts(logging_in_json))

    with Admin(logging_in_json.nameserver) as admin:
        change = admin.brokers.configure
        assert change("broker-a", {"log_level": "error"}).values["log_level"] == "error"
        change("broker-a", {"autoCreateTopicEnable": "false"})
        change("broker-a", {"log_level": "error,metaq.broker.requests=warning"})
        change("broker-a", {"autoCreateTopicEnable": "true"})
        change("broker-a", {"log_level": "info"})
        with pytest.raises(MetaqError, match=r"there is no logger metaq\.borker"):
            change("broker-a", {"log_level": "info,metaq.borker=debug"})
    wait_until(lambda: is_logged("auto_create_topic=true (was false)"))
    assert is_logged("log_level=error (was info)")
    assert not is_logged("auto_create_topic=false (was true)")


def test_levels_change_while_a_name_server_runs(logging_in_json: Metaq) -> None:
    async def change() -> str:
        connection = await Connection.open(logging_in_json.nameserver)
        try:
            body = b"log_level=warning\nslow_request_ms=250\n"
            (await connection.call(UpdateNameServerConfig(), body)).check()
            found = (await connection.call(GetNameServerConfig())).check().body.decode()
            (await connection.call(UpdateNameServerConfig(), b"log_level=info\nslow_request_ms=1000")).check()
            return found
        finally:
            await connection.close()

    found = asyncio.run(change())
    assert "\nlog_level=warning\nslow_request_ms=250\n" in found


def test_slow_requests_of_both_planes_are_logged(logging_in_json: Metaq) -> None:
    topics = 0

    def is_logged() -> bool:
        nonlocal topics
        topics += 1
        # A new topic is synced to the disk and announced, and a message is synced.
        admin.topics.create(f"Slow{topics}", queues=1)
        assert logging_in_json.run("send", f"Slow{topics}", "x").returncode == 0
        found = [text for text in texts(logging_in_json) if text.startswith("slow request")]
        by_python = any(" for topic Slow" in text and "handled" in text for text in found)
        return by_python and any("waited for the disk" in text for text in found)

    with Admin(logging_in_json.nameserver) as admin:
        admin.brokers.configure("broker-a", {"slow_request_ms": "1"})
        wait_until(is_logged)
        shown = admin.brokers.configure("broker-a", {"slow_request_ms": "0"}).values
    assert shown["slow_request_ms"] == "0"


def test_a_broker_that_reaches_no_name_server_says_so(start_metaq: Start) -> None:
    broker = start_metaq("broker", "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:1", "--data", "alone")
    log = broker.child.log.read_text()
    assert "  Name server 127.0.0.1:1 does not answer; the broker tries again until it is registered\n" in log
    assert "  Until then no client can find this broker\n" in log
    assert "Try it" not in log
    assert set(broker.ready) == {"role", "broker", "broker_old", "data", "metrics"}


def test_a_file_in_place_of_the_data_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for data in (file, file / "below"):
        outcome = run("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", str(data))
        assert outcome.returncode == 1
        assert outcome.stderr == f"metaq: {file} is a file, not a folder; choose a folder with --data\n"


def test_the_holder_of_a_store_is_named(logging_in_json: Metaq) -> None:
    outcome = run("broker", "--listen", "127.0.0.1:0", "--data", logging_in_json.ready["data"])
    assert outcome.returncode == 1
    assert f"process {logging_in_json.child.process.pid} (" in outcome.stderr
    assert "metaq serve" in outcome.stderr
