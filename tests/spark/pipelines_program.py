"""Runs pipelines one after the other in one session on a cluster; prints JSON.

A session for each would cost three times as much. The last of them runs once more with executors whose Python
has no packages, and has to fail.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from metaq.errors import CommandError
from metaq.pipelines import Progress, RunsOnSpark, load
from metaq.pipelines.binlog_mirror.config import read_mirror_config
from metaq.pipelines.binlog_sync.config import SECTIONS
from metaq.pipelines.spark_runtime import spark_session
from metaq.spark.interpreters import TASK_PYTHON


def run(name: str, file: Path) -> Progress:
    pipeline = load(name).from_file(file)
    assert isinstance(pipeline, RunsOnSpark)
    return pipeline.run(lambda progress: None, threading.Event())


def main() -> None:
    master, environment, bare = sys.argv[1:4]
    files = dict(argument.split("=", 1) for argument in sys.argv[4:])
    settings = read_mirror_config(Path(files["binlog-mirror"]), SECTIONS).spark.on(master, environment)
    found: dict[str, object] = {}
    with spark_session("all", settings) as spark:
        for name, file in files.items():
            found[name] = run(name, Path(file)).rows
        found["python"] = spark.sparkContext.pythonExec
        spark.conf.set(TASK_PYTHON, bare)
        again = Path(file).with_name("again.toml")
        again.write_text(Path(file).read_text(encoding="utf-8"), encoding="utf-8")
        try:
            run(name, again)
        except CommandError as error:
            found["error"], found["hint"] = str(error), error.hint
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
