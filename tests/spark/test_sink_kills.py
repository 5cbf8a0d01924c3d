"""Tasks that fail, and tasks, a driver and a broker that are killed in mid-batch: every row is shown once."""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.metaq import ROOT
from tests.support.reading import stored
from tests.support.servers import start_metaq

FILES, ROWS_PER_FILE = 6, 600
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
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
        )


def wait_for_batch(number: int, checkpoint: Path, process: subprocess.Popen[bytes]) -> bool:
    """Until it has begun, by Spark's own note; False where the program ended."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (checkpoint / "offsets" / str(number)).exists():
        assert time.monotonic() < deadline
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.timeout(900)  # Three sessions, each of which a busy machine takes a minute to start.
def test_every_row_is_shown_once_whatever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("METAQ_SEED", time.time_ns() % 1_000_000))
    print(f"METAQ_SEED={seed}")
    chance = random.Random(seed)
    source, checkpoint, log = tmp_path / "source", tmp_path / "checkpoint", tmp_path / "program.log"
    source.mkdir()
    for number in range(FILES):
        rows = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        (source / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))
    cluster = start_metaq(tmp_path / "servers", 1, ("broker-a",), "sync", {})
    arguments = (cluster.namesrv, "rows", str(source), str(checkpoint))
    try:
        for batch in (1, 2):
            process = start(*arguments, log=log)
            if wait_for_batch(batch, checkpoint, process):
                time.sleep(chance.uniform(0.0, 0.8))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process = start(*arguments, log=log)
        for batch in (3, 4):
            if wait_for_batch(batch, checkpoint, process):
                time.sleep(chance.uniform(0.0, 0.6))
                cluster.brokers["broker-a"].kill()
                cluster.brokers["broker-a"].restart()
        assert process.wait(TIMEOUT_S) == 0, log.read_text()[-5_000:]
        shown = collections.Counter(int(message.body) for message in stored(cluster.namesrv, "rows"))
    finally:
        cluster.close()
    wanted = collections.Counter(range(FILES * ROWS_PER_FILE))
    assert shown == wanted, f"missing {wanted - shown}, too often {shown - wanted}"
    told = log.read_text()
    assert "this task fails on purpose" in told, "no task failed: the test has not tested that"
    assert "this task is killed on purpose" in told, "no task was killed"
    assert "Python worker exited unexpectedly" in told, "Spark has not noticed it"
