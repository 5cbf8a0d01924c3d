"""Warnings in processes that Spark starts, and in a program that has set up its own logging."""

from __future__ import annotations

import subprocess
import sys

import pytest

WARN = "logging.getLogger('metaq.spark.source.read').warning('lost %s', 'a/b/0 [1, 3)')"
SETUPS = {
    "nothing": "",
    "attached twice": "from metaq.spark import stderr_logging; stderr_logging.attach()",
    "the root": "logging.basicConfig(format='own %(message)s')",
    "a logger between": "logging.getLogger('metaq').addHandler(logging.StreamHandler())",
}


@pytest.mark.parametrize(
    ("setup", "wanted"),
    [
        ("nothing", "WARNING metaq.spark.source.read: lost a/b/0 [1, 3)"),
        ("attached twice", "WARNING metaq.spark.source.read: lost a/b/0 [1, 3)"),
        ("the root", "own lost a/b/0 [1, 3)"),
        ("a logger between", "lost a/b/0 [1, 3)"),
    ],
)
def test_a_warning_is_told_once(setup: str, wanted: str) -> None:
    info = "logging.getLogger('metaq.spark.source.read').info('trying again')"
    # Logging is set up after the import, as programs do it.
    code = "\n".join(("import logging, metaq.spark", SETUPS[setup], info, WARN))
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    (line,) = outcome.stderr.splitlines()
    assert line.endswith(wanted)
    assert (outcome.returncode, outcome.stdout) == (0, "")
