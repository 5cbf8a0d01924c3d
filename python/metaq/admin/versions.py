"""RocketMQ's version numbers as text."""

from __future__ import annotations

import re
from typing import Final

_FIRST: Final = 213
"""4.0.0. Since then every minor release has twenty numbers, two for each patch: a snapshot and a release."""
_PER_MINOR: Final = 20


def version_text(number: int) -> str:
    """Returns `5.5.0` for 513; a release before 4.0 is shown by its number."""
    if number < _FIRST:
        return f"before 4.0 ({number})"
    since = number - _FIRST
    is_snapshot = since % 2 == 1
    since += since % 2
    minor, patch = divmod(since, _PER_MINOR)
    text = f"{4 + minor // 10}.{minor % 10}.{patch // 2}"
    return f"{text}-SNAPSHOT" if is_snapshot else text


def described_version(description: str) -> str | None:
    """Returns `5.5.0` for `V5_5_0`, as brokers describe themselves; None if it is something else."""
    found = re.fullmatch(r"V(\d+)_(\d+)_(\d+)(_SNAPSHOT)?", description)
    return None if found is None else ".".join(found.groups()[:3]) + ("-SNAPSHOT" if found[4] else "")


def is_before(version: str, major: int) -> bool:
    """Returns whether a version is older than the first release of a major version."""
    return int(version.split(".")[0]) < major
