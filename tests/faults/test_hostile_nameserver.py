"""Attacks on a real name server, and on the files of real processes."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.commands.routes import (
    GetAllTopicListFromNameServer,
    GetRouteInfoByTopic,
    PutKeyValue,
)
from metaq.remoting import Connection
from tests.support.metaq import Metaq

Start = Callable[..., Metaq]

NOBODY = 65_534
WITHOUT_RIGHTS = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "metaq", *sys.argv[1:]])
"""
"""Runs a command as root that may open only the files of root."""


@pytest.fixture
def open_umask() -> Iterator[None]:
    former = os.umask(0o000)
    yield
    os.umask(former)


def registration(topics: list[str], epoch: int) -> bytes:
    table = {name: TopicConfig(topic_name=name) for name in topics}
    return RegisterBrokerBody([], TopicConfigTable(DataVersion(1, epoch, 1), table)).encode()


def test_a_liar_does_not_take_over_the_route_of_a_living_broker(start_metaq: Start) -> None:
    served = start_metaq("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", "data")

    async def scenario() -> None:
        liar = await Connection.open(served.nameserver)
        topics = ["TBW102", "broker-a", "DefaultCluster"]
        for epoch, timeout_ms in ((2**62, 2**63 - 1), (1, 2**63 - 1), (0, None)):
            command = RegisterBroker(
                *("broker-a", "127.0.0.1:666", "DefaultCluster", 0), heartbeat_timeout_millis=timeout_ms
            )
            reply = await liar.call(command, registration(topics, epoch))
            assert reply.code != 0 and reply.remark
        command = RegisterBroker("broker-z", "$(id):1", "DefaultCluster", 0)
        reply = await liar.call(command, registration(topics, 0))
        assert reply.code == 29 and "host name or an IP address" in (reply.remark or "")
        found = await liar.call(GetRouteInfoByTopic("broker-a"))
        [broker] = TopicRouteData.decode(found.check().body).broker_datas
        assert broker.broker_addrs == {0: served.broker}
        await liar.close()

    asyncio.run(scenario())
    assert "127.0.0.1:666 (from 127.0.0.1:" in served.child.log.read_text()


def test_a_flood_of_topics_is_refused_and_lists_are_answered(start_metaq: Start) -> None:
    limits = ("--set", "nameserver_topics_max=5000", "--set", "nameserver_broker_topics_max=2000")
    names = start_metaq("nameserver", "--listen", "127.0.0.1:0", *limits)

    async def scenario() -> None:
        # One connection registers one broker.
        connections = [await Connection.open(names.nameserver) for _ in range(7)]
        *floods, flood = connections
        refusals = []
        for number in range(6):
            body = registration([f"{'x' * 100}-{number}-{topic}" for topic in range(1_500)], 0)
            command = RegisterBroker(f"flood-{number}", f"127.0.0.1:{number + 1}", "c", 0)
            reply = await floods[number].call(command, body)
            refusals += [reply.remark or ""] * (reply.code != 0)
        # One address has at most half of the room: one of these brokers fits, two do not.
        assert len(refusals) == 5
        assert all("2500 topics from 127.0.0.1" in refusal for refusal in refusals)
        assert all("nameserver_topics_max" in refusal for refusal in refusals)
        too_many = RegisterBroker("flood-9", "127.0.0.1:9", "c", 0)
        reply = await flood.call(too_many, registration([f"t{topic}" for topic in range(2_001)], 0))
        assert reply.code != 0 and "nameserver_broker_topics_max" in (reply.remark or "")
        (await flood.call(GetAllTopicListFromNameServer())).check()
        for connection in connections:
            await connection.close()

    asyncio.run(scenario())


def test_routes_are_answered_while_values_are_set(start_metaq: Start) -> None:
    """Each of these changes once wrote the whole table on the event loop."""
    names = start_metaq("nameserver", "--listen", "127.0.0.1:0", "--set", "kv_file=kept/values.json")
    journal = Path(names.child.log).parent / "kept" / "values.json.journal"

    def written() -> int:
        return sum(path.stat().st_size for path in journal.iterdir())

    async def scenario() -> None:
        writer, reader = await Connection.open(names.nameserver), await Connection.open(names.nameserver)
        for number in range(100):
            (await writer.call(PutKeyValue("n", f"k{number}", "v" * 60_000))).check()
        before = written()
        changes = [writer.call(PutKeyValue("n", "changed", str(number))) for number in range(200)]
        replies, missing = await asyncio.gather(
            asyncio.gather(*changes), reader.call(GetRouteInfoByTopic("nothing"))
        )
        assert all(reply.code == 0 for reply in replies)
        assert missing.code == 17
        assert 0 < written() - before < 200 * 200, "200 changes of a few bytes in a table of 6 MB"
        await writer.close()
        await reader.close()

    asyncio.run(scenario())


def test_every_file_of_a_broker_and_a_name_server_is_private(
    start_metaq: Start, open_umask: None, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    served = start_metaq("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", str(data))
    for options in ((), ("--key", "k")):
        assert served.run("send", "private", "message", *options).returncode == 0

    async def set_value() -> None:
        connection = await Connection.open(served.nameserver)
        (await connection.call(PutKeyValue("n", "k", "v"))).check()
        await connection.close()

    asyncio.run(set_value())
    assert served.stop() == 0
    modes = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
    assert len(modes) > 10
    for path, mode in modes.items():
        assert oct(mode) == ("0o700" if path.is_dir() else "0o600"), path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another account")
def test_another_account_gets_a_clear_error(start_metaq: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    serve = ("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", str(data))
    assert start_metaq(*serve).stop() == 0
    for path in (data, *data.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    broker = ("broker", "--listen", "127.0.0.1:0", "--data", str(data))
    for arguments in (serve, broker, ("config", "export", "--data", str(data))):
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_RIGHTS, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        owner = pwd.getpwuid(NOBODY).pw_name
        assert f"{data} belongs to {owner} and is private" in ended.stderr, ended.stderr
        assert ended.returncode == 1
        assert "Traceback" not in ended.stderr
