"""Why a message has no traces."""

from __future__ import annotations

import pytest

from metaq import Message
from metaq._core import decode_messages
from metaq.admin.traces.message_traces import (
    BODY_BYTES_MAX,
    ENTRIES_MAX,
    TRACE_BYTES_MAX,
    _why_untraced,
    read_traces,
)
from metaq.client.compression import Format, compress
from metaq.client.session.routes import Queue
from metaq.protocol import trace_entries
from metaq.protocol.trace_entries import SubBeforeTrace, encode
from tests.support.records import record

MESSAGE = Message("t", b"", born_at=1000)
OFF = "there are no traces: neither the producer nor a consumer recorded one"


@pytest.mark.parametrize(
    ("message", "kept_since_ms", "reason"),
    [
        (MESSAGE, None, OFF),
        (MESSAGE, 1000, OFF),
        (None, 2000, OFF),
        (MESSAGE, 2000, "they are kept since 1970-01-01 00:00:02 UTC, and the message is older"),
        (
            Message("t", b"", system_properties={"TRACE_ON": "false"}),
            None,
            "the broker asks clients not to trace its messages",
        ),
    ],
)
def test_the_reason_is_said(message: Message | None, kept_since_ms: int | None, reason: str) -> None:
    assert _why_untraced(message, kept_since_ms).endswith(reason)


ENTRY = SubBeforeTrace(1, "r", "g", "request", "ID", 0, "k")


def messages_of(*bodies: bytes, format: Format | None = "zstd") -> list[Message]:
    """Returns received messages with these bodies."""
    found: list[Message] = []
    for body in bodies:
        stored, system_flag = (body, 0) if format is None else compress(body, 0, format)
        message, _ = decode_messages(record(stored, system_flag=system_flag), Queue("t", "b", 0))
        found += message
    return found


@pytest.mark.parametrize("format", [None, "zstd", "zlib"])
def test_the_entries_of_a_message_are_found(format: Format | None) -> None:
    other = ENTRY._replace(id="OTHER")
    body = "".join(map(encode, (other, ENTRY, other, ENTRY))).encode()
    read = read_traces(messages_of(body, b"ID\x02" + body, format=format), "ID")
    assert [one.entry for one in read.traced] == [ENTRY] * 4
    assert (read.skipped, read.unread) == (1, 0)


def test_entries_of_other_messages_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 779 bytes kept the event loop busy for three seconds."""
    built: list[bytes] = []
    decode = trace_entries.decode
    monkeypatch.setattr(trace_entries, "decode", lambda line: built.append(line) or decode(line))
    body = b"a\x02" * 200_000 + encode(ENTRY).encode()
    read = read_traces(messages_of(body), "ID")
    assert (len(read.traced), len(built)) == (1, 1)


def test_all_trace_messages_share_one_budget() -> None:
    bombs = messages_of(*[b"a\x02" * (4 << 20)] * 64)
    assert max(len(message.stored_body[0]) for message in bombs) < 2_000
    read = read_traces(bombs, "ID")
    assert read.bytes == TRACE_BYTES_MAX
    assert (read.skipped, read.unread) == (8, 56)
    # Without compression, nothing is decompressed to see that a body is too long.
    read = read_traces(messages_of(*[b"a" * (BODY_BYTES_MAX + 1)] * 2, format=None), "ID")
    assert (read.bytes, read.unread) == (0, 2)
    entries = encode(ENTRY).encode() * 9_000
    read = read_traces(messages_of(entries, entries, entries), "ID")
    assert (len(read.traced), read.unread) == (ENTRIES_MAX, 2)
