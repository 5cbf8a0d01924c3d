"""Rates that brokers allow topics and groups: attributes of each broker's own copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from metaq.admin.results import Limits
from metaq.digits import LONG_MAX, number_in
from metaq.errors import UsageError
from metaq.protocol.attributes import (
    BYTES_MAX,
    CONSUME_BYTES,
    CONSUME_MESSAGES,
    MESSAGES_MAX,
    SEND_BYTES,
    SEND_MESSAGES,
)

Rate: TypeAlias = int | Literal["none"] | None
"""A rate per second; `"none"` removes the limit, None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class LimitNames:
    """The attributes that hold the two limits."""

    messages: str
    bytes: str


TOPIC = LimitNames(SEND_MESSAGES, SEND_BYTES)
GROUP = LimitNames(CONSUME_MESSAGES, CONSUME_BYTES)


def limit_changes(names: LimitNames, messages: Rate, size: Rate) -> dict[str, str | None]:
    """Returns the attributes to set; None removes one. Raises UsageError."""
    changes: dict[str, str | None] = {}
    rates = (
        ("messages_per_second", names.messages, messages, MESSAGES_MAX),
        ("bytes_per_second", names.bytes, size, BYTES_MAX),
    )
    for argument, name, rate, largest in rates:
        if rate is None:
            continue
        if rate != "none" and (type(rate) is not int or not 1 <= rate <= largest):
            raise UsageError(f"{argument} is {rate!r}", hint=f'write 1 to {largest}, or "none" for no limit')
        changes[name] = None if rate == "none" else str(rate)
    return changes


def limits_of(broker: str, names: LimitNames, attributes: Mapping[str, str]) -> Limits:
    """Returns the limits that the attributes hold."""

    def rate(name: str) -> int | None:
        return number_in(attributes.get(name, ""), LONG_MAX)

    return Limits(broker, rate(names.messages), rate(names.bytes))


def signed_changes(current: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the changes as brokers take them, with `+` or `-` before each name. Attributes that already
    have the wanted value are left out."""
    signed = {}
    for name, value in wanted.items():
        if value is None and name in current:
            signed[f"-{name}"] = ""
        elif value is not None and current.get(name) != value:
            signed[f"+{name}"] = value
    return signed


def changed(current: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the attributes after the changes."""
    merged = {**current, **wanted}
    return {name: value for name, value in merged.items() if value is not None}
