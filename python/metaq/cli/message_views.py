"""Messages as people and programs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.errors import UnreadableBody

if TYPE_CHECKING:
    from metaq.client.message import Message


def line(message: Message) -> str:
    """Returns a message as one line for people."""
    from metaq.cli.output import moment

    tag = f" [{message.tag}]" if message.tag else ""
    number = -1 if message.queue is None else message.queue.id
    try:
        text = message.body.decode(errors="backslashreplace")
    except UnreadableBody as error:
        text = f"<{error}>"
    # A body must not be able to move a terminal's cursor.
    printable = "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text
    )
    return f"{moment(message.stored_at)} {number}:{message.queue_offset}{tag} {printable}"


def document(message: Message) -> dict[str, object]:
    """Returns a message as programs read it. A body that is not text is in base 64."""
    from base64 import b64encode

    fields: dict[str, object] = {
        "topic": message.topic,
        "queue_id": None if message.queue is None else message.queue.id,
        "queue_offset": message.queue_offset,
        "id": message.id,
        "offset_id": message.offset_id,
        "born_timestamp_ms": message.born_at,
        "store_timestamp_ms": message.stored_at,
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
        "properties": {**message.system_properties, **message.properties},
    }
    try:
        body = message.body
    except UnreadableBody as error:
        return {**fields, "body": None, "body_error": str(error)}
    try:
        return {**fields, "body": body.decode()}
    except UnicodeDecodeError:
        return {**fields, "body": None, "body_base64": b64encode(body).decode()}
