"""The progress and the findings of the scrubber, which a restart must not forget."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

import msgspec

from metaq.durable import replace_file
from metaq.protocol.ranges import Count

_log = logging.getLogger(__name__)

FILE_NAME: Final = "scrub.json"
RANGES_MAX: Final = 64
"""As many damaged ranges as the store knows at a time."""


class ScrubRecord(msgspec.Struct, frozen=True):
    """The content of the file. The sums begin with the first scrub of this store."""

    position: Count = 0
    """Everything before this physical offset was verified in the pass that is under way."""
    began_ms: Count | None = None
    """When the last pass began."""
    completed_ms: Count | None = None
    """When a pass came to the end of the log for the last time."""
    is_under_way: bool = False
    damaged: Count = 0
    """Damaged ranges that the scrubber has found."""
    repaired: Count = 0
    """Damaged ranges that were repaired, whoever found them."""
    repaired_ms: Count | None = None
    """When the last one was repaired."""
    known: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=RANGES_MAX)] = ()
    """Ranges that were damaged when the scrubber came to them, and are not repaired yet."""
    differs_at: Count | None = None
    """The physical offset at which the log differs from the master's although both verify."""


def load(directory: Path) -> ScrubRecord:
    """Returns the record. Nobody relies on it, so a file that is missing or damaged counts as a new one."""
    path = directory / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ScrubRecord)
    except FileNotFoundError:
        return ScrubRecord()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("%s cannot be read, so the scrub begins anew: %s", path, error)
        return ScrubRecord()


def save(directory: Path, record: ScrubRecord) -> None:
    """Raises OSError."""
    replace_file(directory / FILE_NAME, msgspec.json.encode(record))
