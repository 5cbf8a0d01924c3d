"""Messages as people and programs read them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from metaq.cli.invocation import Format
from metaq.cli.printing.formats import moment, size
from metaq.cli.printing.output import csv_text
from metaq.counts import counted
from metaq.errors import CommandError, UnreadableBody

if TYPE_CHECKING:
    from metaq.client.message import Message

KEYS = (
    *("topic", "broker", "queue_id", "queue_offset", "id", "offset_id", "tag", "keys", "born_timestamp_ms"),
    *("store_timestamp_ms", "born_host", "store_host", "reconsume_times", "properties"),
    *("body", "body_base64", "body_error"),
)
"""The keys of a message in JSON and CSV."""


class BodyForm(StrEnum):
    """How `message get` and `dlq show` print a body."""

    text = "text"
    json = "json"
    hex = "hex"
    raw = "raw"


def printable(text: str) -> str:
    """Returns a text that cannot move a terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def body_line(message: Message) -> str:
    """Returns a body on one line for people."""
    try:
        return printable(message.body.decode(errors="backslashreplace"))
    except UnreadableBody as error:
        return f"<{error}>"


def line(message: Message) -> str:
    """Returns a message as one line for people."""
    tag = f" [{printable(message.tag)}]" if message.tag else ""
    number = -1 if message.queue is None else message.queue.id
    return f"{moment(message.stored_at)} {number}:{message.queue_offset}{tag} {body_line(message)}"


def document(message: Message) -> dict[str, object]:
    """Returns a message as programs read it. A body that is not text is in base 64."""
    from base64 import b64encode

    from metaq.admin.messages.message_facts import message_facts

    body: bytes | None = None
    text: str | None = None
    fault: str | None = None
    try:
        body = message.body
        text = body.decode()
        body = None
    except UnreadableBody as error:
        fault = str(error)
    except UnicodeDecodeError:
        pass
    return {
        **message_facts(message),
        "body": text,
        "body_base64": None if body is None else b64encode(body).decode(),
        "body_error": fault,
    }


def fields(message: Message) -> Iterator[str]:
    """Yields everything about a message but its body, a line each."""
    queue = message.queue
    shown = {
        "id": message.id,
        "offset id": message.offset_id,
        "topic": message.topic,
        "queue": f"{queue.broker}:{queue.id}, offset {message.queue_offset}" if queue else None,
        "log offset": str(message.physical_offset),
        "tag": message.tag,
        "keys": ", ".join(message.keys) or None,
        "born": f"{moment(message.born_at)} at {message.born_host}",
        "stored": f"{moment(message.stored_at)} at {message.store_host}",
        "retries": str(message.reconsume_times),
        "flags": f"{message.flag}, system {message.system_flag}",
    }
    for name, value in shown.items():
        if value is not None:
            yield f"{name:<14}{printable(value)}"
    for title, properties in (
        ("properties", message.properties),
        ("of the system", message.system_properties),
    ):
        for name, value in properties.items():
            yield f"{title:<14}{printable(name)} = {printable(value)}"
            title = ""


def body_text(message: Message, form: BodyForm) -> str:
    """Returns a body in a form for people. Raises CommandError if it is not JSON."""
    try:
        body = message.body
    except UnreadableBody as error:
        return f"<{error}>"
    if form is BodyForm.json:
        import msgspec

        try:
            return msgspec.json.format(body.decode(), indent=2)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CommandError(
                f"the body is not JSON: {error}", hint="--body text or --body hex shows it"
            ) from None
    if form is BodyForm.hex:
        return "\n".join(_hex_lines(body))
    text = body.decode(errors="backslashreplace")
    return "\n".join(printable(part) for part in text.split("\n"))


def _hex_lines(body: bytes) -> Iterator[str]:
    for begin in range(0, len(body), 16):
        part = body[begin : begin + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{begin:08x}  {part.hex(' '):<47}  {text}"


def print_raw_body(message: Message) -> None:
    """Writes the bytes of a body, and nothing else. Raises UnreadableBody."""
    write_out(message.body)


def write_out(data: bytes) -> None:
    """Writes all bytes to standard output, or raises BrokenPipeError. Without Python's buffer, as with
    PYTHONUNBUFFERED, a write to a pipe that breaks returns after a part, without an error."""
    sys.stdout.flush()
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def full_text(message: Message, form: BodyForm) -> list[str]:
    """Returns a message with its body on several lines for people."""
    try:
        held = (
            f"{size(message.body_size)}" if message.body_size >= 1024 else counted(message.body_size, "byte")
        )
    except UnreadableBody:
        held = "unreadable"
    return [*fields(message), f"{'body':<14}{held}", "", body_text(message, form)]


class MessagePrinter:
    """Prints messages one by one. A message was written as a whole when `print` returns."""

    def __init__(self, output: Format, template: str | None = None) -> None:
        """Raises CommandError for a template that is wrong."""
        from metaq.cli.printing.templates import Template

        self._output = output
        self._template = None if template is None else Template(template)
        self._has_head = False

    def print(self, message: Message) -> None:
        """Raises BrokenPipeError."""
        write_out(self._render(message))

    def _render(self, message: Message) -> bytes:
        import msgspec

        if self._template is not None:
            return self._template.render(message)
        if self._output is Format.json:
            return msgspec.json.encode(document(message)) + b"\n"
        if self._output is Format.csv:
            head = "" if self._has_head else csv_text(KEYS, [])
            self._has_head = True
            return (head + csv_text(KEYS, [document(message)], head=False)).encode()
        return line(message).encode(errors="backslashreplace") + b"\n"
