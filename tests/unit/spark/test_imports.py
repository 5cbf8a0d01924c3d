"""Imports of the processes that Spark starts: there are many, and they live for seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["metaq", "metaq.spark.datasource", "metaq.spark.source.read", "metaq.spark.sink.batch"]
)
def test_nothing_of_the_servers_is_loaded(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "print(*(name for name in sys.modules if name.startswith(('metaq.broker', 'metaq.nameserver'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
