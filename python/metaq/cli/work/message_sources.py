"""The messages that `metaq send` sends: one body several times, the lines of a file, or JSON lines.

Sources read no more than one line ahead, so files may be larger than memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq.client.producer.options import MessageOptions

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest line that is read; a body may have 4 MiB, and base 64 and JSON make it longer."""
_OWN_FIELDS: Final = frozenset({"body", "body_base64", "keys", "tag", "properties", "key", "delay"})


@dataclass(slots=True)
class Outbound:
    """A message to send, or the fault of the line that it should have been."""

    number: int
    """Counts lines or repetitions, from 1."""
    body: bytes = b""
    options: MessageOptions = field(default_factory=dict)  # type: ignore[assignment]
    fault: str | None = None


def repeated(body: bytes, options: MessageOptions, count: int) -> Iterator[Outbound]:
    """Yields the body as often as wanted; %d in it is the number, from 1."""
    for number in range(1, count + 1):
        yield Outbound(number, body.replace(b"%d", b"%d" % number), options)


def from_lines(file: BinaryIO, options: MessageOptions) -> Iterator[Outbound]:
    """Yields one message per line; empty lines are left out, because a message needs a body."""
    for number, line in _lines(file):
        if line is None:
            yield Outbound(number, fault=f"the line has more than {LINE_BYTES_MAX} bytes")
        elif line:
            yield Outbound(number, line, options)


def from_json_lines(file: BinaryIO, options: MessageOptions) -> Iterator[Outbound]:
    """Yields one message per JSON object; `options` are those that an object does not set itself."""
    for number, line in _lines(file):
        if line is None:
            yield Outbound(number, fault=f"the line has more than {LINE_BYTES_MAX} bytes")
        elif line.strip():
            try:
                yield _parsed(number, line, options)
            except ValueError as error:
                yield Outbound(number, fault=str(error))
            except CommandError as error:
                yield Outbound(number, fault=f"{error.args[0]}; {error.hint}")


def opened(name: str) -> AbstractContextManager[BinaryIO]:
    """Opens a file; `-` is standard input, which stays open. Raises CommandError."""
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    from pathlib import Path

    try:
        return Path(name).open("rb")
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}") from None


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yields lines without their ends; None for one that is too long."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) < LINE_BYTES_MAX or line.endswith(b"\n"):
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES_MAX)
        yield number, None


def _parsed(number: int, line: bytes, defaults: MessageOptions) -> Outbound:
    """Raises ValueError, which names the fault."""
    import msgspec

    from metaq.cli.printing.message_views import KEYS
    from metaq.cli.reading.message_flags import duration_of
    from metaq.protocol import properties as known

    try:
        given = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the line is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError("the line is not a JSON object")
    unknown = given.keys() - _OWN_FIELDS - {*KEYS, "origin_topic", "reason", "error_type"}
    if unknown:
        raise ValueError(
            f"{', '.join(sorted(unknown))}: unknown field; there are {', '.join(sorted(_OWN_FIELDS))}"
        )
    of_system, own = _properties(given.get("properties"), known.SYSTEM_NAMES)
    options: dict[str, Any] = dict(defaults)
    if own:
        options["properties"] = {**(options.get("properties") or {}), **own}
    tag = given.get("tag") or of_system.get(known.TAGS)
    if tag is not None:
        options["tag"] = _text("tag", tag)
    keys = given.get("keys") or of_system.get(known.KEYS)
    if keys:
        if not isinstance(keys, str | list):
            raise ValueError("keys must be a text or a list of texts")
        options["keys"] = keys.split() if isinstance(keys, str) else [_text("keys", key) for key in keys]
    key = given.get("key") or of_system.get(known.SHARDING_KEY)
    if key is not None:
        options["key"] = _text("key", key)
    if (delay := given.get("delay")) is not None:
        options.pop("deliver_at", None)
        options["delay"] = duration_of("delay", delay if isinstance(delay, str) else str(delay))
    return Outbound(number, _body(given), options)  # type: ignore[arg-type]


def _properties(given: object, system_names: frozenset[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits properties into those of the system, which an exported message has, and the sender's."""
    if given is None:
        return {}, {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError("properties must be an object of texts")
    return _split(given, lambda name: name in system_names)


def _split(given: dict[str, str], condition: Callable[[str], bool]) -> tuple[dict[str, str], dict[str, str]]:
    return (
        {name: value for name, value in given.items() if condition(name)},
        {name: value for name, value in given.items() if not condition(name)},
    )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value


def _body(given: dict[str, object]) -> bytes:
    import msgspec

    body = given.get("body")
    if isinstance(body, str):
        return body.encode()
    if body is not None:
        return msgspec.json.encode(body)
    encoded = given.get("body_base64")
    if isinstance(encoded, str):
        from base64 import b64decode

        return b64decode(encoded, validate=True)
    raise ValueError("the object has no body")
