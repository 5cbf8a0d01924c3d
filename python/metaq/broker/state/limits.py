"""Limits per second for a topic's sends and a group's reads on one broker: attributes, set at run time.

The broker's own options limit topics and groups that have no attribute. System topics, retry topics and
dead-letter topics, which groups need to go on, are limited only by an attribute of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metaq.protocol import names
from metaq.protocol.attributes import (
    BYTES_MAX,
    CONSUME_BYTES,
    CONSUME_MESSAGES,
    MESSAGES_MAX,
    SEND_BYTES,
    SEND_MESSAGES,
)

RATES: Mapping[str, tuple[int, str]] = {
    SEND_MESSAGES: (MESSAGES_MAX, "messages per second"),
    SEND_BYTES: (BYTES_MAX, "bytes per second"),
    CONSUME_MESSAGES: (MESSAGES_MAX, "messages per second"),
    CONSUME_BYTES: (BYTES_MAX, "bytes per second"),
}
"""The largest value of each, and what it counts."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second; 0 means no limit."""

    messages: int = 0
    bytes: int = 0


NO_LIMIT = Rates()


def rate_fault(key: str, value: str) -> str | None:
    """The fault of a rate, with what to write instead; None if there is none."""
    largest, unit = RATES[key]
    if len(value) <= 16 and value.isascii() and value.isdecimal() and 1 <= int(value) <= largest:
        return None
    return (
        f"attribute {key} cannot be {value[:64]!a}: "
        f"write 1 to {largest} {unit}, or -{key} to take the limit away"
    )


def send_rates(topic: str, attributes: Mapping[str, str], default: Rates) -> Rates:
    own = topic.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX, names.SYSTEM_PREFIX))
    own = own or not names.is_client_writable(topic)
    return _rates(attributes, SEND_MESSAGES, SEND_BYTES, NO_LIMIT if own else default)


def consume_rates(attributes: Mapping[str, str], default: Rates) -> Rates:
    return _rates(attributes, CONSUME_MESSAGES, CONSUME_BYTES, default)


def _rates(attributes: Mapping[str, str], messages: str, size: str, default: Rates) -> Rates:
    return Rates(_rate(attributes, messages, default.messages), _rate(attributes, size, default.bytes))


def _rate(attributes: Mapping[str, str], key: str, default: int) -> int:
    value = attributes.get(key)
    # Only a file that was edited by hand can hold a value that was never checked.
    return default if value is None or rate_fault(key, value) is not None else int(value)
