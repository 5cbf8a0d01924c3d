"""Spark gives a Python process ten seconds to start and has no setting for it. A busy machine needs more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.errors import PySparkException

from metaq.errors import CommandError

Result = TypeVar("Result")

TOO_SLOW: Final = "connect back"
TRIES: Final = 20


def patiently(work: Callable[[], Result]) -> Result:
    """Tries again if Spark gave up on its own process; nothing was read or written then."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except (CommandError, PySparkException) as error:
            if TOO_SLOW not in str(error):
                raise
    return work()
