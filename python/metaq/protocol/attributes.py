"""Names of the attributes that limit topics and groups, and their largest values."""

from __future__ import annotations

from typing import Final

SEND_MESSAGES: Final = "send.rate.messages"
SEND_BYTES: Final = "send.rate.bytes"
CONSUME_MESSAGES: Final = "consume.rate.messages"
CONSUME_BYTES: Final = "consume.rate.bytes"

MESSAGES_MAX: Final = 1_000_000_000
BYTES_MAX: Final = 2**40
