"""metaq tail."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output, topic_argument
from metaq.cli.reading.message_flags import Count, Sql, Tags, TemplateText
from metaq.errors import CommandError, MetaqError

LAST_MAX = 100_000


def tail(
    topic: Annotated[str, topic_argument()],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Position to begin at: earliest, latest, -10m, 2026-01-31T12:00 or an offset "
            "(default: latest; earliest with --no-follow).",
            metavar="POSITION",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            help="Begin with the last N messages that are stored.",
            metavar="N",
            min=1,
            max=LAST_MAX,
            show_default=False,
        ),
    ] = None,
    tag: Tags = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Only messages with this key.", show_default=False)
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", help="Only this queue; repeatable.", metavar="BROKER:ID", show_default=False),
    ] = None,
    sql: Sql = None,
    count: Count = None,
    follow: Annotated[bool, typer.Option(help="Wait for messages that arrive later.")] = True,
    template: TemplateText = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Print the messages of a topic without consuming them."""
    from itertools import islice

    from metaq.cli.printing.message_views import MessagePrinter
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.message_flags import position, queues_named

    if last is not None and start is not None:
        raise CommandError("--last and --from exclude each other")
    if tag and sql is not None:
        raise CommandError("--tag and --sql exclude each other", hint="write --sql \"TAGS = 'a' AND …\"")
    begin = position("--from", start or ("latest" if follow else "earliest"))
    printer = MessagePrinter(output, template)
    # Ctrl-C is how following ends.
    with suppress(KeyboardInterrupt), connect(namesrv) as admin:
        messages = admin.messages.read(
            topic,
            begin,
            follow=follow,
            last=last,
            tags=tag or None,
            sql=sql,
            key=key,
            queues=queues_named(topic, queue),
            on_wait=_say_that_it_waits,
        )
        for message in islice(messages, count):
            printer.print(message)


def _say_that_it_waits(broker: str, error: MetaqError) -> None:
    from metaq.cli.printing.output import note

    note(f"broker {broker} is away; tail waits and goes on when it is back")
