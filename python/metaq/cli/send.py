"""metaq send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.flags import NameServers, Output, topic_argument
from metaq.cli.invocation import Format
from metaq.errors import CommandError, NotDurable

if TYPE_CHECKING:
    from metaq.client.producer.results import SendResult
    from metaq.client.session.routes import Queue

SEND_TIMEOUT_S = 10.0


def send(
    topic: Annotated[str, topic_argument()],
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
    output: Output = Format.table,
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
