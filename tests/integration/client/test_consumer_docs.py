"""The examples of docs/python-consumers.md run."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.client.conftest import Served
from tests.support.clients import create_topic, send
from tests.support.metaq import run
from tests.support.processes import Child

PAGE = (Path(__file__).parents[3] / "docs" / "python-consumers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
ORDERS = ("one", "two")


@pytest.fixture(scope="module")
def orders(served: Served) -> Served:
    async def prepare() -> None:
        await create_topic(served.broker, "orders", queues=1)
        await send(served.broker, "orders", *ORDERS, TAGS="paid")

    asyncio.run(prepare())
    return served


def outcome(block: str, served: Served, home: Path, done: Callable[[str], bool]) -> str:
    (home / "program.py").write_text(block.replace("127.0.0.1:9876", served.nameserver))
    child = Child([sys.executable, "program.py"], home / "program.log", dict(os.environ), directory=home)
    try:
        child.wait_for(lambda log: log if done(log) else None, 60, "output")
        ended = child.stop() if "client.run()" in block else child.process.wait(60)
        assert ended == 0, child.tail()
    finally:
        child.kill()
    return (home / "program.log").read_text()


def test_every_block_is_run_here() -> None:
    assert [language for language, _ in BLOCKS] == ["python"] * 5 + ["bash"]


@pytest.mark.parametrize(
    ("number", "verb"),
    [(0, "billed"), (1, "shipped"), (2, "audited"), (3, "audited")],
    ids=["handler", "policy", "iteration", "aio"],
)
def test_a_consumer_prints_every_order(orders: Served, tmp_path: Path, number: int, verb: str) -> None:
    def printed(log: str) -> list[str]:
        # Threads print at the same time, and `print` writes the newline separately.
        return sorted(re.findall(f"{verb} (?:{'|'.join(ORDERS)})", log))

    expected = sorted(f"{verb} {order}" for order in ORDERS)
    log = outcome(BLOCKS[number][1], orders, tmp_path, lambda log: printed(log) == expected)
    assert printed(log) == expected
    assert len(log.split()) == 2 * len(ORDERS) or number < 2, log


def test_the_puller(orders: Served, tmp_path: Path) -> None:
    log = outcome(BLOCKS[4][1], orders, tmp_path, lambda log: "again 0" in log)
    assert log.splitlines() == ["read one two", "again 0"]


def test_the_commands(client_directory: Path) -> None:
    from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, local_retry_file

    LocalRetryStore(local_retry_file(client_directory / "parked", "billing")).close()
    for line in BLOCKS[5][1].splitlines():
        done = run(*line.split()[1:], METAQ_CLIENT_DIRECTORY=str(client_directory))
        assert done.returncode == 0, done.stderr
    assert "0 parked messages of billing are due now" in done.stdout
