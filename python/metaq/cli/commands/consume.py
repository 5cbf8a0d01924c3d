"""metaq consume."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.completions import complete_group
from metaq.cli.reading.flags import NameServers, Output, topic_argument
from metaq.cli.reading.message_flags import Count, Sql, Tags, TemplateText
from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq.admin import Admin
    from metaq.cli.printing.message_views import MessagePrinter
    from metaq.client.consumer.offsets.positions import Start
    from metaq.client.consumer.sync_consumers import Subscribed

START_WAIT_S = 15.0
CLOSE_WAIT_S = 5.0
UNSETTLED_MAX = 100_000
"""Messages of one queue that are held with --no-ack."""


def consume(
    topic: Annotated[str, topic_argument()],
    group: Annotated[
        str,
        typer.Option(
            "--group",
            help="Consumer group to consume as; a new one is made.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ],
    count: Count = None,
    tag: Tags = None,
    sql: Sql = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Position at which a group begins that has not consumed the topic yet: earliest (default), "
            "latest, -10m or 2026-01-31T12:00.",
            metavar="POSITION",
            show_default=False,
        ),
    ] = None,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Acknowledge nothing: the messages come again.")
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Send the messages to the dead letters of the group.")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle",
            help="Stop when no message came for this many seconds.",
            metavar="SECONDS",
            min=0.1,
            show_default=False,
        ),
    ] = None,
    template: TemplateText = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Consume messages as a member of a group and print them.

    Each message is acknowledged after it was printed.
    """
    from metaq.cli.printing.message_views import MessagePrinter
    from metaq.cli.reading.connection import connect, name_servers
    from metaq.client.sync import Client

    if no_ack and reject:
        raise CommandError("--no-ack and --reject exclude each other")
    if tag and sql is not None:
        raise CommandError("--tag and --sql exclude each other", hint="write --sql \"TAGS = 'a' AND …\"")
    begin = _start(start)
    printer = MessagePrinter(output, template)
    with connect(namesrv) as admin:
        _check_members(admin, topic, group, tag, sql)
        if start is not None:
            _check_position(admin, topic, group)
    if reject:
        # The library warns of each new dead letter. Here it is wanted.
        logging.getLogger("metaq.client.consumer").addHandler(logging.NullHandler())
    client = Client(name_servers(namesrv))
    try:
        client.start()
        subscribed = client.subscribe(
            topic,
            group=group,
            auto_ack=False,
            idle_timeout=idle,
            tags=tag or None,
            sql=sql,
            start=begin,
            pull_count=32,
            buffer_count=UNSETTLED_MAX if no_ack else 1000,
            buffer_span=UNSETTLED_MAX if no_ack else 2000,
        )
        subscribed.start(START_WAIT_S)
        _print_all(subscribed, printer, count, no_ack=no_ack, reject=reject)
    finally:
        client.close(CLOSE_WAIT_S)


def _print_all(
    subscribed: Subscribed, printer: MessagePrinter, count: int | None, *, no_ack: bool, reject: bool
) -> None:
    """Prints messages and settles each one after it was written. Ctrl-C is how it ends."""
    settled_all = True
    with suppress(KeyboardInterrupt), _LateInterrupt() as interrupt:
        try:
            for number, message in enumerate(subscribed, start=1):
                with interrupt.delayed():
                    settled_all = False
                    printer.print(message)
                    if reject:
                        message.reject("rejected with metaq consume --reject")
                    elif not no_ack:
                        message.ack()
                    settled_all = not no_ack
                if number == count:
                    break
        finally:
            # Nobody will settle the rest, so there is nothing to wait for.
            subscribed.close(CLOSE_WAIT_S if settled_all else 0)


class _LateInterrupt:
    """Delays Ctrl-C while a message is printed and settled, so that a printed message is settled. The second
    Ctrl-C is not delayed: a full pipe may block for ever."""

    def __init__(self) -> None:
        self._is_delayed = self._came = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def delayed(self) -> Iterator[None]:
        self._is_delayed = True
        try:
            yield
        finally:
            self._is_delayed = False
        if self._came:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_delayed or self._came:
            raise KeyboardInterrupt
        self._came = True


def _start(text: str | None) -> Start:
    from metaq.cli.reading.message_flags import position

    found = position("--from", text or "earliest")
    if found == "earliest":
        return "earliest"
    if found == "latest":
        return "latest"
    if isinstance(found, datetime):
        return found
    raise CommandError(
        "--from: a group cannot begin at an offset", hint="`metaq group reset` moves a group to an offset"
    )


def _check_members(admin: Admin, topic: str, group: str, tags: list[str] | None, sql: str | None) -> None:
    """Raises NoRoute, and CommandError if the group has members that want other messages: members of a group
    must all subscribe to the same, or else messages are lost to it."""
    from metaq.counts import counted
    from metaq.protocol.names import RETRY_PREFIX

    admin.topics.route(topic)
    members = admin.groups.members(group)
    theirs = {
        wanted.topic: _filter_of(wanted.expression)
        for wanted in members.subscriptions
        if not wanted.topic.startswith(RETRY_PREFIX)
    }
    ours = {topic: _filter_of(sql if sql is not None else " || ".join(tags or ["*"]))}
    if theirs and theirs != ours:
        shown = ", ".join(f"{name} ({' || '.join(sorted(chosen))})" for name, chosen in theirs.items())
        raise CommandError(
            f"group {group} has {counted(len(members.members), 'member')} with another subscription: {shown}",
            hint="with different subscriptions a group loses messages; choose another --group, or the same "
            "topics and filters",
        )


def _filter_of(expression: str) -> frozenset[str]:
    return frozenset(part.strip() for part in expression.split("||"))


def _check_position(admin: Admin, topic: str, group: str) -> None:
    from metaq.cli.printing.output import note

    committed = admin.offsets.committed(group, admin.topics.route(topic).readable)
    if any(queue_offset is not None for queue_offset in committed.values()):
        note(
            f"group {group} has consumed {topic} before and continues there, not at --from; "
            f"`metaq group reset {group} {topic} --to POSITION` moves it"
        )
