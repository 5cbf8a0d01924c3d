"""metaq send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.exits import FAILED, INTERRUPTED
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output, topic_argument
from metaq.errors import CommandError, NotDurable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metaq.cli.work.message_sources import Outbound
    from metaq.cli.work.send_many import Tally
    from metaq.client.producer.options import MessageOptions
    from metaq.client.producer.results import SendResult
    from metaq.client.session.routes import Queue

SEND_TIMEOUT_S = 10.0
START_WAIT_S = 10.0
CLOSE_WAIT_S = 1.0


def send(
    topic: Annotated[str, topic_argument()],
    body: Annotated[
        str | None, typer.Argument(help="Body of the message; - reads standard input.", show_default=False)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag that consumers filter by.", show_default=False)] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Key to find the message by; repeatable.", show_default=False)
    ] = None,
    property: Annotated[
        list[str] | None,
        typer.Option(help="Property of the message; repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    queue: Annotated[int | None, typer.Option(help="Queue to send to.", min=0, show_default=False)] = None,
    delay: Annotated[
        str | None,
        typer.Option(help="Deliver after this time, such as 10s.", metavar="TIME", show_default=False),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            help="Deliver at this time, such as 2026-01-31T12:00; without a zone, local time.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(help="Send this many; %d in the body is the number.", min=1, show_default=False),
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option(
            "--lines",
            help="Send each line of a file; - is standard input.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    json_lines: Annotated[
        str | None,
        typer.Option(
            "--json-lines",
            help="Send each line, a JSON object with body, tag, keys, key, properties, delay.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Messages per second.", min=0.01, max=1_000_000, show_default=False),
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Send messages and print where they were stored."""
    from metaq.cli.reading.connection import name_servers

    if sum(given is not None for given in (body, lines, json_lines)) != 1:
        raise CommandError("give one of BODY, --lines and --json-lines", hint="BODY - reads standard input")
    if count is not None and body is None:
        raise CommandError("--count repeats a BODY, not the lines of a file")
    options = _options(tag, key, property, delay, deliver_at)
    servers = name_servers(namesrv)
    if queue is not None:
        options["queue"] = _queue(namesrv, topic, queue)
    if body is None or count is not None:
        from metaq.cli.work.message_sources import from_json_lines, from_lines, opened, repeated

        if body is not None:
            assert count is not None
            _send_many(servers, topic, repeated(_payload(body), options, count), count, rate, output)
            return
        with opened(lines or json_lines or "-") as file:
            source = from_lines(file, options) if lines else from_json_lines(file, options)
            _send_many(servers, topic, source, None, rate, output)
        return
    _send_one(servers, topic, _payload(body), options, output)


def _send_one(servers: str, topic: str, payload: bytes, options: MessageOptions, output: Format) -> None:
    from metaq.client.sync import Client
    from metaq.protocol.names import TOOLS_PRODUCER_GROUP

    due_ms = _due_ms(options)
    with Client(servers) as client, client.producer(TOOLS_PRODUCER_GROUP, timeout=SEND_TIMEOUT_S) as producer:
        try:
            sent = producer.send(topic, payload, **options)
        except NotDurable as error:
            _print_sent(error.result, due_ms, output)
            raise typer.Exit(FAILED) from None
    _print_sent(sent, due_ms, output)


def _send_many(
    servers: str,
    topic: str,
    messages: Iterator[Outbound],
    total: int | None,
    rate: float | None,
    output: Format,
) -> None:
    from contextlib import suppress

    from metaq.cli.printing.progress import progress
    from metaq.cli.work.send_many import BUFFER_BYTES_MAX, send_many
    from metaq.client.sync import Client
    from metaq.errors import NotDelivered
    from metaq.protocol.names import TOOLS_PRODUCER_GROUP

    client = Client(servers)
    client.start(START_WAIT_S)
    try:
        producer = client.producer(
            TOOLS_PRODUCER_GROUP, timeout=SEND_TIMEOUT_S, buffer_bytes_max=BUFFER_BYTES_MAX
        )
        producer.start()
        with progress("messages", total) as advance:
            noun = "line" if total is None else "message"
            tally = send_many(producer, topic, messages, noun=noun, rate=rate, advance=advance)
    finally:
        with suppress(NotDelivered):
            client.close(CLOSE_WAIT_S)
    tally.end()
    _print_tally(topic, tally, output)
    if tally.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if tally.failed:
        raise typer.Exit(FAILED)


def _due_ms(options: MessageOptions) -> int | None:
    from datetime import datetime, timedelta

    moment = options.get("deliver_at")
    delay = options.get("delay")
    if isinstance(delay, timedelta):
        moment = datetime.now() + delay
    return None if moment is None else round(moment.timestamp() * 1000)


def _payload(body: str) -> bytes:
    payload = sys.stdin.buffer.read() if body == "-" else body.encode(errors="surrogateescape")
    if not payload:
        raise CommandError("the message is empty", hint="RocketMQ clients refuse a message without a body")
    return payload


def _options(
    tag: str | None,
    keys: list[str] | None,
    given: list[str] | None,
    delay: str | None,
    deliver_at: str | None,
) -> MessageOptions:
    from metaq.cli.reading.message_flags import duration_of, time_of

    options: MessageOptions = {}
    if tag is not None:
        options["tag"] = tag
    if keys:
        options["keys"] = keys
    if given:
        options["properties"] = _properties(given)
    if delay is not None and deliver_at is not None:
        raise CommandError("--delay and --deliver-at exclude each other")
    if delay is not None:
        options["delay"] = duration_of("--delay", delay)
    if deliver_at is not None:
        options["deliver_at"] = time_of("--deliver-at", deliver_at)
    return options


def _properties(given: list[str]) -> dict[str, str]:
    properties = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--property {pair} has no '='", hint="write --property name=value")
        properties[name] = value
    return properties


def _queue(namesrv: str | None, topic: str, number: int) -> Queue:
    """A queue of that number, on any broker."""
    import random

    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        queues = [queue for queue in admin.topics.route(topic).writable if queue.id == number]
    if not queues:
        raise CommandError(f"{topic} has no queue {number} that can be written to")
    return random.choice(queues)


def _print_sent(sent: SendResult, due_ms: int | None, output: Format) -> None:
    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.output import print_one
    from metaq.client.producer.results import SendStatus

    status = {
        SendStatus.STORED: "SEND_OK",
        SendStatus.FLUSH_TIMEOUT: "FLUSH_DISK_TIMEOUT",
        SendStatus.REPLICA_MISSING: "SLAVE_NOT_AVAILABLE",
        SendStatus.REPLICA_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    }[sent.status]
    queue = sent.queue
    # A delayed message waits elsewhere: it has no place in its topic before it is due.
    is_placed = due_ms is None
    record = {
        "status": status,
        "topic": queue.topic,
        "broker": queue.broker,
        "queue_id": queue.id if is_placed else None,
        "queue_offset": sent.queue_offset if is_placed else None,
        "id": sent.id,
        "offset_id": sent.offset_id if is_placed else None,
        "due_ms": due_ms,
        "recall_handle": sent.recall_handle,
    }
    place = f"queue {queue.id} offset {sent.queue_offset}" if is_placed else f"due {moment(due_ms)}"
    print_one(output, record, f"{status} {queue.topic} {queue.broker} {place} id {sent.id}")


def _print_tally(topic: str, tally: Tally, output: Format) -> None:
    from metaq.cli.printing.formats import rate, span
    from metaq.cli.printing.output import note, print_one
    from metaq.counts import counted

    for fault in tally.faults:
        note(fault)
    if tally.failed > len(tally.faults):
        note(f"{tally.failed - len(tally.faults)} more failed")
    record = {
        "topic": topic,
        "sent": tally.sent,
        "failed": tally.failed,
        "seconds": round(tally.seconds, 3),
        "per_second": None if tally.per_second is None else round(tally.per_second, 1),
        "interrupted": tally.is_interrupted,
        "errors": tally.faults,
    }
    text = f"{counted(tally.sent, 'message')} sent to {topic} in {span(tally.seconds * 1000)}"
    text += f" ({rate(tally.per_second)})" if tally.sent else ""
    text += f", {tally.failed:,} failed" if tally.failed else ""
    print_one(output, record, text + (", interrupted" if tally.is_interrupted else ""))
