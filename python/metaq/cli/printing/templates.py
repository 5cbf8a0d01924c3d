r"""Output templates of `tail` and `consume`, such as `-f '%t %k %b\n'`.

| escape | value |
|---|---|
| `%t` | topic |
| `%T` | tag |
| `%k` | keys, separated by spaces |
| `%b` | body, its bytes as they are |
| `%i` | id |
| `%I` | offset id |
| `%q` | queue |
| `%B` | broker |
| `%o` | queue offset |
| `%s` | store time, in milliseconds since 1970 |
| `%S` | store time as text, in UTC |
| `%n` | number of bytes in the body |
| `%h` | properties, as `name=value` separated by commas |
| `%%` | % |
| `\n`, `\t`, `\r`, `\\` | end of line, tab, carriage return, \ |

Nothing is added: a template that ends without `\n` prints messages without a separator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from metaq.errors import CommandError, UnreadableBody

if TYPE_CHECKING:
    from metaq.client.message import Message

_Part = Callable[["Message"], bytes]


def _text(read: Callable[[Message], object]) -> _Part:
    return lambda message: str(read(message)).encode(errors="backslashreplace")


def _body(message: Message) -> bytes:
    try:
        return message.body
    except UnreadableBody as error:
        return f"<{error}>".encode()


def _size(message: Message) -> object:
    try:
        return message.body_size
    except UnreadableBody:
        return "?"


def _stored_time(message: Message) -> str:
    try:
        return datetime.fromtimestamp(message.stored_at / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{message.stored_at} ms"


_PARTS: Final[dict[str, _Part]] = {
    "t": _text(lambda message: message.topic),
    "T": _text(lambda message: message.tag or ""),
    "k": _text(lambda message: " ".join(message.keys)),
    "b": _body,
    "i": _text(lambda message: message.id),
    "I": _text(lambda message: message.offset_id),
    "q": _text(lambda message: "" if message.queue is None else message.queue.id),
    "B": _text(lambda message: "" if message.queue is None else message.queue.broker),
    "o": _text(lambda message: message.queue_offset),
    "s": _text(lambda message: message.stored_at),
    "S": _text(_stored_time),
    "n": _text(_size),
    "h": _text(lambda message: ",".join(f"{name}={value}" for name, value in message.properties.items())),
    "%": lambda message: b"%",
}
_CONTROLS: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.?)|\\(.?)|[^%\\]+", re.DOTALL)


class Template:
    """A template, ready to be filled in."""

    def __init__(self, text: str) -> None:
        """Raises CommandError for an escape that does not exist."""
        self._parts = [_part(token) for token in _TOKEN.finditer(text)]

    def render(self, message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in self._parts)


def _part(token: re.Match[str]) -> bytes | _Part:
    escape, control = token[1], token[2]
    if escape is not None:
        if escape not in _PARTS:
            raise CommandError(
                f"-f: %{escape} is not an escape",
                hint=f"there are {' '.join(f'%{known}' for known in _PARTS)}",
            )
        return _PARTS[escape]
    if control is not None:
        # An unknown one may belong to the user's text, as in C:\data.
        return _CONTROLS.get(control, f"\\{control}".encode(errors="surrogateescape"))
    return token[0].encode(errors="surrogateescape")
