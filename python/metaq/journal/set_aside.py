"""Entries of a journal that cannot be applied: each in a file of its own, with the reason.

One entry that cannot be read must not keep a server from starting. It is left out, and kept for the operator,
who repeats the change and then removes the file.
"""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import msgspec

from metaq.durable import replace_file
from metaq.journal.files import Entry

_log = logging.getLogger(__name__)

REASON_CHARACTERS_MAX = 1_024


class SetAsideEntry(msgspec.Struct, frozen=True):
    """The content of a file. A value that is not UTF-8 text is in `value_base64`."""

    table: str
    key: str
    reason: str
    epoch: int
    version: int
    value: str | None = None
    value_base64: str | None = None


class SetAside:
    """The files in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, entry: Entry, reason: str) -> bool:
        """Keeps the entry, unless it is there already. False if it cannot be written. Any thread may call
        it."""
        path = self.directory / f"{entry.table}-{entry.epoch}-{entry.version}.json"
        if path.exists():
            _log.warning("%s %a is still left out, see %s", entry.table, entry.key[:128], path)
            return True
        reason = reason[:REASON_CHARACTERS_MAX]
        value, value_base64 = None, None
        try:
            value = (entry.value or b"").decode()
        except UnicodeDecodeError:
            value_base64 = base64.b64encode(entry.value or b"").decode()
        kept = SetAsideEntry(entry.table, entry.key, reason, entry.epoch, entry.version, value, value_base64)
        try:
            replace_file(path, msgspec.json.format(msgspec.json.encode(kept), indent=2))
        except OSError as error:
            _log.error(
                "%s %a cannot be applied and is left out: %s; it stays in the journal, because %s cannot be "
                "written: %s",
                *(entry.table, entry.key[:128], reason, path, error),
            )
            return False
        _log.error(
            "%s %a cannot be applied and is left out: %s; it is kept in %s: repeat the change, then remove "
            "the file",
            *(entry.table, entry.key[:128], reason, path),
        )
        return True

    def count(self) -> int:
        """How many entries the operator has not dealt with."""
        return sum(1 for _ in self.directory.glob("*.json"))
