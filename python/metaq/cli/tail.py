"""metaq tail."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from metaq.cli.flags import NameServers, Output, topic_argument
from metaq.cli.invocation import Format
from metaq.cli.message_views import document, line


def tail(
    topic: Annotated[str, topic_argument()],
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
    output: Output = Format.table,
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
