"""Names of the attributes that limit topics and groups, and their largest values."""

from __future__ import annotations

from typing import Final

SEND_MESSAGES: Final = "send.rate.messages"
SEND_BYTES: Final = "send.rate.bytes"
CONSUME_MESSAGES: Final = "consume.rate.messages"
CONSUME_BYTES: Final = "consume.rate.bytes"
RETENTION_MS: Final = "retention.ms"
"""How long the messages of a topic are kept. RocketMQ's `reserve.time` is for its tiered store."""
RETENTION_BYTES: Final = "retention.bytes"
"""Bytes of messages that are kept of a topic on each broker, as stored."""

MESSAGES_MAX: Final = 1_000_000_000
BYTES_MAX: Final = 2**40
