"""metaq send and metaq tail."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.flags import Format, NameServers, Output
from metaq.errors import CommandError, NotDurable, UnreadableBody

if TYPE_CHECKING:
    from metaq.client.message import Message
    from metaq.client.producer.results import SendResult
    from metaq.client.session.routes import Queue

Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]

SEND_TIMEOUT_S = 10.0


def send(
    topic: Topic,
    body: Annotated[
        str, typer.Argument(help="Body of the message; - reads standard input.", show_default=False)
    ],
    tag: Annotated[str | None, typer.Option(help="Tag that consumers filter by.", show_default=False)] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Key to find the message by; repeatable.", show_default=False)
    ] = None,
    property: Annotated[
        list[str] | None,
        typer.Option(help="Property of the message; repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    queue: Annotated[int | None, typer.Option(help="Queue to send to.", min=0, show_default=False)] = None,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Send one message and print where it was stored."""
    from metaq.cli.connection import name_servers
    from metaq.client.sync import Client
    from metaq.protocol.names import TOOLS_PRODUCER_GROUP

    properties = _properties(property or [])
    payload = sys.stdin.buffer.read() if body == "-" else body.encode(errors="surrogateescape")
    if not payload:
        raise CommandError("the message is empty", hint="RocketMQ clients refuse a message without a body")
    servers = name_servers(namesrv)
    chosen = None if queue is None else _queue(servers, topic, queue)
    with Client(servers) as client, client.producer(TOOLS_PRODUCER_GROUP, timeout=SEND_TIMEOUT_S) as producer:
        try:
            sent = producer.send(topic, payload, tag=tag, keys=key or (), properties=properties, queue=chosen)
        except NotDurable as error:
            _print_sent(error.result, output)
            raise typer.Exit(1) from None
    _print_sent(sent, output)


def _properties(given: list[str]) -> dict[str, str]:
    properties = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--property {pair} has no '='", hint="write --property name=value")
        properties[name] = value
    return properties


def _queue(servers: str, topic: str, number: int) -> Queue:
    """A queue of that number, on any broker."""
    import random

    from metaq.admin import Admin

    with Admin(servers) as admin:
        queues = [queue for queue in admin.topics.route(topic).writable if queue.id == number]
    if not queues:
        raise CommandError(f"{topic} has no queue {number} that can be written to")
    return random.choice(queues)


def _print_sent(sent: SendResult, output: Format) -> None:
    from metaq.cli.output import print_json
    from metaq.client.producer.results import SendStatus

    status = {
        SendStatus.STORED: "SEND_OK",
        SendStatus.FLUSH_TIMEOUT: "FLUSH_DISK_TIMEOUT",
        SendStatus.REPLICA_MISSING: "SLAVE_NOT_AVAILABLE",
        SendStatus.REPLICA_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    }[sent.status]
    queue = sent.queue
    if output is Format.json:
        print_json(
            {
                "status": status,
                "topic": queue.topic,
                "broker": queue.broker,
                "queue_id": queue.id,
                "queue_offset": sent.queue_offset,
                "id": sent.id,
                "offset_id": sent.offset_id,
            }
        )
    else:
        typer.echo(
            f"{status} {queue.topic} {queue.broker} queue {queue.id} offset {sent.queue_offset} id {sent.id}"
        )


def tail(
    topic: Topic,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Position to begin at: earliest, latest, -10m, 2026-01-31T12:00 or an offset.",
            metavar="POSITION",
        ),
    ] = "earliest",
    count: Annotated[
        int | None, typer.Option(help="Stop after this many messages.", min=1, show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for messages that arrive later.")] = True,
    namesrv: NameServers = None,
    output: Output = Format.text,
) -> None:
    """Print the messages of a topic without consuming them."""
    from itertools import islice

    from metaq.cli.connection import connect
    from metaq.cli.output import position, print_json_line

    begin = position("--from", start)
    # Ctrl-C is how following ends.
    with suppress(KeyboardInterrupt), connect(namesrv) as admin:
        for message in islice(admin.messages.read(topic, begin, follow=follow), count):
            if output is Format.json:
                print_json_line(document(message))
            else:
                print(line(message), flush=True)


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
