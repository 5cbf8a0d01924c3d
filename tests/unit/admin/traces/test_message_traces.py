"""Why a message has no traces."""

from __future__ import annotations

import pytest

from metaq import Message
from metaq.admin.traces.message_traces import _why_untraced

MESSAGE = Message("t", b"", born_at=1000)
OFF = "there are no traces: tracing is off for the producer and the consumers"


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
