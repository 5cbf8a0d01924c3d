"""The source and the sink on a cluster whose workers have only the MetaQ that the driver sends.

The kill tests of log-lake, binlog-mirror and stream-sql use such a cluster, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import metaq.spark
from tests.spark.cluster import Cluster
from tests.spark.support import BROKER, Topics, send_raw
from tests.support.metaq import Metaq

# The machine may be busy with other suites.
pytestmark = pytest.mark.timeout(1_800)

PROGRAM = Path(__file__).with_name("cluster_program.py")
PATIENCE_S = 1_500


def test_executors_need_nothing_but_the_archive(
    tmp_path: Path, served: Metaq, topics: Topics, make_topic: Callable[..., str]
) -> None:
    topic, copy, streamed = make_topic(2), make_topic(2), make_topic(1)
    bodies = [f"row {number:03}" for number in range(200)]
    topics.fill(topic, bodies[::2])
    topics.fill(topic, bodies[1::2], queue=1)
    send_raw(served.broker, topic, b"no zlib at all", system_flag=1)
    cluster = Cluster(tmp_path, more={})
    config = json.dumps(cluster.settings)
    checkpoint = str(tmp_path / "checkpoint")
    arguments = (cluster.master, served.nameserver, topic, copy, streamed, checkpoint, config)
    printed = run(cluster, str(PROGRAM), *arguments)
    assert json.loads(printed.splitlines()[-1]) == {
        "modules": ["metaq-package/metaq/__init__.py"],
        "bodies": bodies,
    }
    told = [(executor / "stderr").read_text(errors="replace") for executor in cluster.executors]
    line = f"going on without a body that cannot be decompressed: {topic}/{BROKER}/0 [100, 101)"
    assert any(line in text for text in told)


def test_the_archive_holds_the_package_and_what_it_needs(tmp_path: Path) -> None:
    made = metaq.spark.archive(tmp_path / "metaq.zip")
    with zipfile.ZipFile(made) as packed:
        names = set(packed.namelist())
    assert {"metaq/__init__.py", "metaq/spark/source/read.py", "msgspec/__init__.py"} <= names
    assert any(name.startswith("metaq/_core") and name.endswith(".so") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith((".", "/"))]
    assert list(tmp_path.iterdir()) == [made]


def run(cluster: Cluster, *arguments: str) -> str:
    """Runs the program and returns its output."""
    outcome = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    return outcome.stdout
