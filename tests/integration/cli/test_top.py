"""The live view and its single look, on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from textual.widgets import DataTable, Static

from metaq.admin import Admin
from metaq.cli.work.snapshots import take_snapshot
from metaq.cli.work.top_view import STALE, TopView
from tests.integration.cli.conftest import Run
from tests.support.metaq import COMMAND, Metaq


def test_one_look(metaq: Run) -> None:
    metaq("topic", "create", "Watched")
    metaq("send", "Watched", "x")
    found = json.loads(metaq("top", "-o", "json").stdout)
    assert [row["broker"] for row in found["brokers"]] == ["broker-a"]
    assert found["brokers"][0]["disk_used_ratio"] > 0
    [topic] = [row for row in found["topics"] if row["topic"] == "Watched"]
    assert topic["messages"] == 1
    assert found["failures"] == []
    text = metaq("top", "--once").stdout
    assert "Topics, the busiest first" in text and "Watched" in text


def test_a_dead_broker_turns_grey(start_metaq: Callable[..., Metaq], tmp_path: Path) -> None:
    nameserver = start_metaq("nameserver", "--listen", "127.0.0.1:0")
    broker = start_metaq(
        *("broker", "--listen", "127.0.0.1:0", "--namesrv", nameserver.nameserver),
        *("--data", str(tmp_path / "data")),
    )

    async def watch() -> None:
        with Admin(nameserver.nameserver, timeout=1.0, partial=True) as admin:
            view = TopView(lambda: take_snapshot(admin), 0.5, 10)
            async with view.run_test(size=(100, 40)) as pilot:
                brokers = view.query_one("#brokers", DataTable)
                await _until(lambda: brokers.row_count == 1)
                assert str(brokers.get_row_at(0)[0]) == "broker-a"
                assert brokers.get_row_at(0)[0].style == ""
                broker.kill()
                await _until(lambda: brokers.row_count == 1 and brokers.get_row_at(0)[0].style == STALE)
                assert str(brokers.get_row_at(0)[2]) == "–"
                nameserver.kill()
                await _until(lambda: " old: " in str(view.query_one("#state", Static).render()))
                assert brokers.row_count == 1
                await pilot.press("p")
                assert "Paused" in str(view.query_one("#state", Static).render())

    asyncio.run(watch())


async def _until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_in_a_terminal(served: Metaq) -> None:
    """A real terminal: it draws, and q ends it."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [*COMMAND, "top", "--namesrv", served.nameserver],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        close_fds=True,
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    try:
        while b"broker-a" not in seen and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 65536)
        assert b"broker-a" in seen
        os.write(ours, b"q")
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    os.read(ours, 65536)
                except OSError:  # The other end is closed.
                    break
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        os.close(ours)
