"""Entries of RocketMQ's message trace: how clients write them into the trace topic, and how they are read.

The body of a trace message is a list of entries. 0x02 ends an entry and 0x01 separates its fields. The first
field is the kind of the entry. A field without a value is the word null.

    Pub             time region group topic id tags keys broker size cost type [offset-id] success [client]
    SubBefore       time region group request-id id retries keys
    SubAfter        request-id id cost success keys [code [time [group]]]
    EndTransaction  time region group topic id tags keys broker type transaction-id state from-check
    Recall          time region group topic id success

Times and costs are in milliseconds. Fields in brackets are missing in the entries of older clients. Anybody
can write to the trace topic, so `decode` skips and counts entries that it cannot read; it never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

TIME_MS_MAX: Final = 9_000_000_000_000
"""The year 2255: later times do not fit into the nanoseconds of OpenTelemetry."""
COUNT_MAX: Final = 2**31 - 1
RESULTS: Final = ("success", "timeout", "exception", "null", "failed")
"""How a handler ended, by the code of a SubAfter."""
TYPES: Final = ("normal", "transaction", "transaction", "delay", "fifo")
"""The types of messages by their number: a half message and its end are both a transaction."""
NORMAL, HALF, DECIDED, DELAYED = range(4)

_SEPARATORS: Final = str.maketrans("", "", "\x01\x02")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", flags=re.ASCII)


class PubTrace(NamedTuple):
    """A message was sent."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str
    id: str
    tag: str | None
    keys: str | None
    store_host: str | None
    body_bytes: int
    cost_ms: int
    type: int
    offset_id: str | None
    is_success: bool
    client_host: str | None = None


class SubBeforeTrace(NamedTuple):
    """A message went to a handler."""

    at_ms: int
    region: str | None
    group: str | None
    request_id: str
    id: str
    retries: int
    keys: str | None


class SubAfterTrace(NamedTuple):
    """The handler of a message has ended. The request id is that of its SubBefore."""

    request_id: str
    id: str
    cost_ms: int
    is_success: bool
    keys: str | None
    code: int | None = None
    at_ms: int | None = None
    group: str | None = None


class EndTransactionTrace(NamedTuple):
    """A transaction was decided."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    id: str
    tag: str | None
    keys: str | None
    store_host: str | None
    type: int
    transaction_id: str | None
    state: str
    is_from_check: bool


class RecallTrace(NamedTuple):
    """A delayed message was cancelled."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str
    id: str
    is_success: bool


TraceEntry = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace


ENTRY_BYTES_MAX: Final = 128 * 1024
"""The longest entry that is read. Its texts come from properties, which together have 32,767 bytes."""


class Decoded(NamedTuple):
    """The entries of a body, and the number of those that could not be read."""

    entries: list[TraceEntry]
    skipped: int


_WORDS: Final[dict[type[TraceEntry], str]] = {
    PubTrace: "Pub",
    SubBeforeTrace: "SubBefore",
    SubAfterTrace: "SubAfter",
    EndTransactionTrace: "EndTransaction",
    RecallTrace: "Recall",
}


def encode(entry: TraceEntry) -> str:
    """Writes an entry as clients of version 5.5 do."""
    fields = entry[:-1] if isinstance(entry, PubTrace) and entry.client_host is None else entry
    return "\x01".join((_WORDS[type(entry)], *map(_text, fields))) + "\x02"


def without_separators(text: str) -> str:
    """Returns a text that can be a field."""
    return text.translate(_SEPARATORS)


def _text(field: object) -> str:
    if field is None or field == "":
        # An empty field at the end of an entry would be lost.
        return "null"
    if isinstance(field, bool):
        return "true" if field else "false"
    return without_separators(str(field))


def decode(body: bytes) -> Decoded:
    """Reads the entries of a trace message."""
    entries: list[TraceEntry] = []
    skipped = 0
    for line in body.decode(errors="replace").split("\x02"):
        if not line:
            continue
        try:
            word, *fields = line.rstrip("\x01").split("\x01")
            entries.append(_DECODERS[word](_Fields(fields)))
        except (ValueError, IndexError, KeyError):
            skipped += 1
    return Decoded(entries, skipped)


class Selected(NamedTuple):
    """The entries of a body about one message."""

    entries: list[TraceEntry]
    skipped: int
    """The entries with the id that could not be read."""
    looked_at: int
    """The entries that contain the id."""
    is_whole: bool
    """Whether the whole body was looked at."""


def select(body: bytes, id: str, entries_max: int) -> Selected:
    """Reads the entries of a trace message that are about one message, and no more than a number of them.

    A body may have millions of entries, so only those that contain the id are read.
    """
    entries: list[TraceEntry] = []
    skipped = looked_at = end = 0
    wanted = id.encode(errors="replace")
    while (found := body.find(wanted, end)) >= 0:
        if looked_at >= entries_max:
            return Selected(entries, skipped, looked_at, False)
        looked_at += 1
        begin = body.rfind(b"\x02", end, found) + 1 or end
        end = body.find(b"\x02", found)
        end = len(body) if end < 0 else end + 1
        if end - begin > ENTRY_BYTES_MAX:
            skipped += 1
            continue
        read, bad = decode(body[begin:end])
        skipped += bad
        entries += [entry for entry in read if entry.id == id]
    return Selected(entries, skipped, looked_at, True)


class _Fields:
    """The fields of one entry. Its methods raise ValueError or IndexError."""

    def __init__(self, fields: list[str]) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def text(self, index: int) -> str | None:
        field = self._fields[index]
        return None if field in ("", "null") else field

    def optional_text(self, index: int) -> str | None:
        return self.text(index) if index < len(self._fields) else None

    def required(self, index: int) -> str:
        field = self.text(index)
        if field is None:
            raise ValueError("the field is empty")
        return field

    def number(self, index: int) -> int:
        field = self._fields[index]
        if not _NUMBER.fullmatch(field):
            raise ValueError("the field is not a number")
        return int(field)

    def count(self, index: int) -> int:
        # A clock that was set back makes a cost negative.
        return min(max(self.number(index), 0), COUNT_MAX)

    def time(self, index: int) -> int:
        found = self.number(index)
        if not 0 <= found <= TIME_MS_MAX:
            raise ValueError("the field is not a time")
        return found

    def flag(self, index: int) -> bool:
        field = self._fields[index].lower()
        if field not in ("true", "false"):
            raise ValueError("the field is neither true nor false")
        return field == "true"


def _pub(fields: _Fields) -> PubTrace:
    has_offset_id = len(fields) > 12
    return PubTrace(
        fields.time(0),
        fields.text(1),
        fields.text(2),
        fields.required(3),
        fields.required(4),
        fields.text(5),
        fields.text(6),
        fields.text(7),
        fields.count(8),
        fields.count(9),
        fields.number(10),
        fields.text(11) if has_offset_id else None,
        fields.flag(12 if has_offset_id else 11),
        fields.optional_text(13),
    )


def _sub_before(fields: _Fields) -> SubBeforeTrace:
    return SubBeforeTrace(
        fields.time(0),
        fields.text(1),
        fields.text(2),
        fields.required(3),
        fields.required(4),
        fields.count(5),
        fields.optional_text(6),
    )


def _sub_after(fields: _Fields) -> SubAfterTrace:
    return SubAfterTrace(
        fields.required(0),
        fields.required(1),
        fields.count(2),
        fields.flag(3),
        fields.optional_text(4),
        fields.number(5) if fields.optional_text(5) is not None else None,
        fields.time(6) if fields.optional_text(6) is not None else None,
        fields.optional_text(7),
    )


def _end_transaction(fields: _Fields) -> EndTransactionTrace:
    return EndTransactionTrace(
        fields.time(0),
        fields.text(1),
        fields.text(2),
        fields.text(3),
        fields.required(4),
        fields.text(5),
        fields.text(6),
        fields.text(7),
        fields.number(8),
        fields.text(9),
        fields.required(10),
        fields.flag(11),
    )


def _recall(fields: _Fields) -> RecallTrace:
    return RecallTrace(
        fields.time(0),
        fields.text(1),
        fields.text(2),
        fields.required(3),
        fields.required(4),
        fields.flag(5),
    )


_DECODERS: Final[dict[str, Callable[[_Fields], TraceEntry]]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
    "Recall": _recall,
}
