"""metaq send and metaq tail."""

from __future__ import annotations

import sys
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.flags import Format, NameServers, Output
from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq._core import Record
    from metaq.cli.cluster import Cluster

Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]


def send(
    topic: Topic,
    body: Annotated[str, typer.Argument(help="The message; - reads standard input.", show_default=False)],
    tag: Annotated[str | None, typer.Option(help="Tag that consumers filter by.", show_default=False)] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Key to find the message by; repeatable.", show_default=False)
    ] = None,
    property: Annotated[
        list[str] | None, typer.Option(help="Repeatable.", metavar="NAME=VALUE", show_default=False)
    ] = None,
    queue: Annotated[int | None, typer.Option(help="Queue to send to.", min=0, show_default=False)] = None,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Send one message and print where it was stored."""
    from dataclasses import asdict

    from metaq.cli.cluster import ask
    from metaq.cli.output import print_json

    properties = _properties(property or [], tag, key or [])
    payload = sys.stdin.buffer.read() if body == "-" else body.encode(errors="surrogateescape")
    if not payload:
        raise CommandError("the message is empty", hint="RocketMQ clients refuse a message without a body")

    stored = ask(namesrv, lambda cluster: cluster.send(topic, payload, properties, queue))
    if output is Format.json:
        print_json(asdict(stored))
    else:
        typer.echo(
            f"{stored.status} {stored.topic} {stored.broker} queue {stored.queue_id}"
            f" offset {stored.queue_offset} id {stored.message_id}"
        )
    if stored.status != "SEND_OK":
        raise typer.Exit(1)


def _properties(given: list[str], tag: str | None, keys: list[str]) -> dict[str, str]:
    properties = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--property {pair} has no '='", hint="write --property name=value")
        properties[name] = value
    if tag is not None:
        properties["TAGS"] = tag
    if keys:
        properties["KEYS"] = " ".join(keys)
    return properties


def tail(
    topic: Topic,
    start: Annotated[
        str, typer.Option("--from", help="begin, end, milliseconds or a time such as 2026-01-31T12:00.")
    ] = "begin",
    count: Annotated[
        int | None, typer.Option(help="Stop after so many messages.", min=1, show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for messages that arrive later.")] = True,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Print the messages of a topic as they are, without consuming them."""
    from metaq.cli.cluster import ask
    from metaq.cli.output import print_json_line
    from metaq.cli.tailing import tail as read

    since = _start(start)

    async def print_all(cluster: Cluster) -> None:
        left = count
        async with aclosing(read(cluster, topic, since, follow=follow)) as records:
            async for record in records:
                if output is Format.json:
                    print_json_line(document(record))
                else:
                    print(line(record), flush=True)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    # Ctrl-C is how following ends.
    with suppress(KeyboardInterrupt):
        ask(namesrv, print_all)


def _start(text: str) -> str | int:
    from datetime import datetime

    if text in ("begin", "end"):
        return text
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise CommandError(
            f"--from {text} is no point in time", hint="write begin, end, milliseconds or 2026-01-31T12:00"
        ) from None


def line(record: Record) -> str:
    """A message for people."""
    from datetime import datetime

    from metaq.client.compression import body_of

    stored = datetime.fromtimestamp(record.store_timestamp_ms / 1000).isoformat(" ", "milliseconds")
    tag = record.properties.get("TAGS")
    body = body_of(record)
    text = (
        f"<{len(record.body)} bytes, compressed>" if body is None else body.decode(errors="backslashreplace")
    )
    # A body must not be able to move a terminal's cursor.
    printable = "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text
    )
    return f"{stored} {record.queue_id}:{record.queue_offset}{f' [{tag}]' if tag else ''} {printable}"


def document(record: Record) -> dict[str, object]:
    """A message for programs."""
    from base64 import b64encode

    from metaq.client.compression import body_of

    document: dict[str, object] = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "message_id": record.message_id,
        "born_timestamp_ms": record.born_timestamp_ms,
        "store_timestamp_ms": record.store_timestamp_ms,
        "born_host": record.born_host,
        "reconsume_times": record.reconsume_times,
        "properties": record.properties,
    }
    body = body_of(record)
    try:
        document["body"] = None if body is None else body.decode()
    except UnicodeDecodeError:
        document["body"] = None
    if document["body"] is None:
        document["body_base64"] = b64encode(record.body if body is None else body).decode()
        document["compressed"] = body is None
    return document
