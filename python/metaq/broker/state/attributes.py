"""Attributes of a topic or a group: named settings that are changed one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from metaq.broker.state.limits import RATES, rate_fault
from metaq.protocol.attributes import (
    CONSUME_BYTES,
    CONSUME_MESSAGES,
    RETENTION_BYTES,
    RETENTION_MS,
    SEND_BYTES,
    SEND_MESSAGES,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

ATTRIBUTES_TEXT_MAX = 4096
NUMBER_CHARACTERS_MAX = 20
"""As many as a number of 64 bits has. Name servers get the attributes of all topics with one registration."""

_MESSAGE_TYPES = frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"})
_CHOICES = {
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
    "message.type": _MESSAGE_TYPES,
}
_FIXED_ONCE_CREATED = frozenset({"queue.type", "cleanup.policy"})
TOPIC_KEYS = frozenset({*_CHOICES, "reserve.time", RETENTION_MS, RETENTION_BYTES, SEND_MESSAGES, SEND_BYTES})
GROUP_KEYS = frozenset({CONSUME_MESSAGES, CONSUME_BYTES})


def parsed(text: str | None) -> dict[str, str]:
    """`+key=value,-key` as a map from signed key to value, the form that lists of topics carry."""
    changes: dict[str, str] = {}
    if not text:
        return changes
    if len(text) > ATTRIBUTES_TEXT_MAX:
        raise _refused(f"attributes take {len(text)} characters, the limit is {ATTRIBUTES_TEXT_MAX}")
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key in changes:
            raise _refused(f"attribute {key!a} is given twice")
        if key.startswith("+") != bool(equals):
            raise _refused(f"attribute {part!a}: write +key=value to set one and -key to remove one")
        changes[key] = value
    return changes


def altered(
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    creating: bool,
    keys: Collection[str] = TOPIC_KEYS,
) -> dict[str, str]:
    """The attributes after these changes. Raises Refused for an unknown key, for a value that the key cannot
    have, and for a change of a key that is fixed when the topic is created."""
    result = dict(current)
    for signed_key, value in changes.items():
        sign, key = signed_key[:1], signed_key[1:]
        if key not in keys:
            raise _refused(f"attribute {key[:64]!a} is unknown; there are {', '.join(sorted(keys))}")
        if not creating and key in _FIXED_ONCE_CREATED and (sign == "-" or current.get(key) != value):
            raise _refused(f"attribute {key} is fixed once the topic exists")
        if sign == "+":
            result[key] = _checked(key, value)
        elif sign == "-":
            if key not in result:
                raise _refused(f"attribute {key} cannot be removed: it is not set")
            del result[key]
        else:
            raise _refused(f"attribute {signed_key[:64]!a} must begin with + or -")
    return result


def _checked(key: str, value: str) -> str:
    if key in RATES:
        fault = rate_fault(key, value)
        if fault is not None:
            raise _refused(fault)
        return value
    choices = _CHOICES.get(key)
    if choices is not None and value not in choices:
        raise _refused(f"attribute {key} cannot be {value[:64]!a}; supported: {', '.join(sorted(choices))}")
    digits = value.removeprefix("-")
    is_number = len(value) <= NUMBER_CHARACTERS_MAX and digits.isascii() and digits.isdecimal()
    if choices is None and not is_number:
        raise _refused(f"attribute {key} takes a whole number, not {value[:64]!a}")
    return value


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)
