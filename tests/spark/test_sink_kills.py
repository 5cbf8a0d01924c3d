"""Kills tasks, the driver and the broker while a stream writes exactly once: every row arrives once."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.metaq import ROOT
from tests.support.reading import stored
from tests.support.rounds import kill_loop, rounds, seeded
from tests.support.servers import start_metaq
from tests.support.spark_home import spark_home
from tests.support.waiting import wait_until

DRIVER_KILLS, BROKER_KILLS = rounds(1, 10), rounds(1, 20)
FILES = DRIVER_KILLS + BROKER_KILLS + 2
"""Every file is one batch. The driver and the broker live through the first and the last one."""
ROWS_PER_FILE = 600
TIMEOUT_S = 240.0


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_program", *arguments],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(spark_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
        )


def wait_for_batch(number: int, checkpoint: Path, process: subprocess.Popen[bytes]) -> bool:
    """Waits until Spark notes that the batch began; returns False if the program ended first."""
    begun = checkpoint / "offsets" / str(number)
    wait_until(lambda: begun.exists() or process.poll() is not None, TIMEOUT_S, f"in batch {number}")
    return begun.exists()


@kill_loop
@pytest.mark.timeout(900)  # A busy machine takes a minute to start a Spark session.
def test_every_row_arrives_once_whatever_is_killed(tmp_path: Path) -> None:
    chance = seeded()
    source, checkpoint, log = tmp_path / "source", tmp_path / "checkpoint", tmp_path / "program.log"
    source.mkdir()
    for number in range(FILES):
        rows = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        (source / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))
    cluster = start_metaq(tmp_path / "servers", 1, ("broker-a",), "sync", {})
    arguments = (cluster.namesrv, "rows", str(source), str(checkpoint))
    process = start(*arguments, log=log)
    try:
        for batch in range(1, DRIVER_KILLS + 1):
            if wait_for_batch(batch, checkpoint, process):
                time.sleep(chance.uniform(0.0, 0.8))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process = start(*arguments, log=log)
        for batch in range(DRIVER_KILLS + 1, DRIVER_KILLS + BROKER_KILLS + 1):
            if wait_for_batch(batch, checkpoint, process):
                time.sleep(chance.uniform(0.0, 0.6))
                cluster.brokers["broker-a"].kill()
                cluster.brokers["broker-a"].restart()
        assert process.wait(TIMEOUT_S) == 0, log.read_text()[-5_000:]
        found = collections.Counter(int(message.body) for message in stored(cluster.namesrv, "rows"))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        cluster.close()
    wanted = collections.Counter(range(FILES * ROWS_PER_FILE))
    assert found == wanted, f"missing {wanted - found}, too often {found - wanted}"
    printed = log.read_text()
    assert "this task fails on purpose" in printed, "no task failed: the test has not tested that"
    assert "this task is killed on purpose" in printed, "no task was killed"
    assert "Python worker exited unexpectedly" in printed, "Spark has not noticed it"
