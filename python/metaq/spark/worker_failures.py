"""Explains why a Python process of Spark failed, and what helps.

Spark reports such a failure with the stacks of Java and Python. The cause is often one line in the middle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from metaq.spark.interpreters import PYTHON

WORKER_LATE: Final = ("Python worker failed to connect back", "waiting for the Python worker to connect back")
"""The errors of a Python process that Spark has not given enough time: ten seconds, without a setting."""

_ABSENT: Final = re.compile(r"Cannot run program \"([^\"]+)\".*?(?:error=2|No such file)", re.DOTALL)
_MODULE: Final = re.compile(r"No module named '?([\w.]+)")
_PACKAGE: Final = re.compile(r"PACKAGE_NOT_INSTALLED\W+(\w+) >= \S+ must be installed")
_VERSION: Final = re.compile(
    r"PYTHON_VERSION_MISMATCH.*?different version[^\d]*([\d.]+\d)[^\d]*than that in driver[^\d]*([\d.]+\d)",
    re.DOTALL,
)
_IN_PLANNING: Final = re.compile(r"PYTHON_(?:STREAMING_)?DATA_SOURCE|calling o\d+\.load\b")
"""A failed task is not always reported as one, but planning is."""
_SEND: Final = "pack this one with `metaq spark pack FILE.tar.gz`, and send it with --environment FILE.tar.gz"
_START_AGAIN: Final = "leave the driver more processor time, and start the query again from its checkpoint"


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The cause in one line, and what to do."""

    summary: str
    hint: str


def is_late(text: str) -> bool:
    """Returns whether a Python process started too slowly. Nothing was read or written then."""
    return any(words in text for words in WORKER_LATE)


def worker_failure(text: str, executors: str, driver: str) -> WorkerFailure | None:
    """Returns why a Python process failed; None if the error is another one. `executors` and `driver` are the
    programs that they run."""
    if is_late(text):
        return WorkerFailure(
            f"a Python process of Spark did not start within 10 s ({WORKER_LATE[0]})", _START_AGAIN
        )
    who, program = ("the driver", driver) if _IN_PLANNING.search(text) else ("an executor", executors)
    if found := _ABSENT.search(text):
        return WorkerFailure(
            f"{who} cannot run the Python {found[1]}: there is no such file",
            f"name the Python of the workers with {PYTHON}; or {_SEND}",
        )
    if found := _VERSION.search(text):
        return WorkerFailure(
            f"{program} on the executors is Python {found[1]}, but the driver runs {found[2]}: Spark needs"
            " the same minor version",
            f"name another Python with {PYTHON}; or {_SEND}",
        )
    if found := _PACKAGE.search(text) or _MODULE.search(text):
        return WorkerFailure(
            f"{who} runs {program}, which has no module {found[1]}",
            f"if the workers have this environment, name its Python with {PYTHON}; otherwise {_SEND}",
        )
    return None
