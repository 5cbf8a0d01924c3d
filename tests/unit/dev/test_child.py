"""Processes that end with the one that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from metaq.dev.child import Child
from metaq.dev.plan import Planned
from tests.support.waiting import wait_until

SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
)
PARENT = """
import asyncio, os, sys
from pathlib import Path
from metaq.dev.child import Child
from metaq.dev.plan import Planned

async def main():
    child = Child(Planned("sleeper", tuple(sys.argv[2:]), ""), Path(sys.argv[1]), os.environ)
    await child.start()
    print(child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def is_up(log: Path) -> bool:
    return log.exists() and "up" in log.read_text()


def test_a_child_is_killed_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), *SLEEPER], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: is_up(tmp_path / "sleeper.log"), 60, "the child runs")
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not is_alive(pid), 60, "the child is gone")


def test_a_child_stops_starts_again_and_keeps_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = Child(Planned("sleeper", SLEEPER, ""), tmp_path, os.environ)
        assert (child.pid, child.ended_with) == (0, None)
        pids = []
        for starts in (1, 2):
            await child.start()
            pids.append(child.pid)
            while child.log.read_text().count("up") < starts:
                await asyncio.sleep(0.02)
            assert await child.stop(60)
            assert child.ended_with == -signal.SIGTERM
        assert pids[0] != pids[1] and child.pid == pids[1]
        assert await child.stop(60), "it has stopped already"

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = Child(Planned("stubborn", STUBBORN, ""), tmp_path, os.environ)
        await child.start()
        while not is_up(child.log):
            await asyncio.sleep(0.02)
        assert not await child.stop(0.1)
        assert child.ended_with == -signal.SIGKILL

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    child = Child(Planned("x", (), ""), tmp_path, {})
    assert "No such file" in child.tail()
    child.log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert child.tail().splitlines()[1:] == [f"  line {number}" for number in range(80, 100)]
