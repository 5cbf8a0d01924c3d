"""Every command that the product registers, with the type of its body, as the classes themselves say it."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

import metaq.protocol.commands
from metaq.protocol import bodies
from metaq.protocol.command import Command, commands
from metaq.protocol.handling import never

_BODY = re.compile(r"\b[Bb]ody(?: both ways)?: (?P<request>[^.;,]+)")
_ANSWER = re.compile(r"\b[Bb]ody of the answer: (?P<answer>\w+)")
TEXT, RECORD, BATCH = "properties text", "the body of a message", "client batch records"
_PLAIN = {
    "properties text": TEXT,
    "the body of the message": RECORD,
    "the body of the reply": RECORD,
    "the half message": RECORD,
    "client batch records": BATCH,
}
UNKNOWN_CODES = (-32_768, -1, 0, 1, 9, 99, 512, 4_711, 29_999, 32_767, 99_999, 2**31 - 1, *sorted(never.WHY))
"""No command has these, or only commands of Apache that are always refused."""

BodyKind = type[msgspec.Struct] | str | None


@dataclass(frozen=True)
class Known:
    """One command, and what its frame may carry behind the header."""

    command: type[Command]
    body: BodyKind
    answer: type[msgspec.Struct] | None
    """The body with which a client answers, if the broker sends this command to clients."""


def catalogue() -> list[Known]:
    """All commands in the order of their codes."""
    for module in pkgutil.iter_modules(metaq.protocol.commands.__path__):
        importlib.import_module(f"{metaq.protocol.commands.__name__}.{module.name}")
    return [_known(command) for command in unique(commands())]


def unique(found: Iterable[type[Command]]) -> list[type[Command]]:
    return sorted(set(found), key=lambda command: command.code)


def _known(command: type[Command]) -> Known:
    text = " ".join((command.__doc__ or "").split())
    body = named[1] if (named := _BODY.search(text)) else None
    is_relayed = command.to == "client" or text.startswith("Relayed")
    answer = named[1] if is_relayed and (named := _ANSWER.search(text)) else None
    return Known(command, _body_kind(command, body), None if answer is None else _named_type(command, answer))


def _body_kind(command: type[Command], named: str | None) -> BodyKind:
    if named is None:
        # A command that inherits its fields from a send has a body like it, whatever its text says.
        is_send = {"producer_group", "born_timestamp"} <= set(command.__struct_fields__)
        return RECORD if is_send else None
    if named in _PLAIN:
        return _PLAIN[named]
    return _named_type(command, named.split()[0])


def _named_type(command: type[Command], name: str) -> type[msgspec.Struct]:
    """Returns a body of RocketMQ's, or one of our own from beside its command."""
    kind = getattr(bodies, name, None) or getattr(sys.modules[command.__module__], name, None)
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        raise LookupError(f"{command.__name__}: the body {name!r} in its docstring is not a body type")
    return kind
