"""metaq top."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output
from metaq.errors import CommandError


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.5, max=3600)] = 2.0,
    limit: Annotated[int, typer.Option(help="Topics and groups to show.", min=1, max=1000)] = 50,
    once: Annotated[bool, typer.Option("--once", help="Look once, print and stop.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Watch brokers, the busiest topics and the groups that are furthest behind.

    In a terminal it is a live view, which needs the extra `tui`. In a pipe, with --once and with -o json or
    csv it looks once."""
    import sys

    from metaq.cli.reading.connection import connect
    from metaq.cli.work.snapshots import take_snapshot

    with connect(namesrv, partial=True) as admin:
        if once or output is not Format.table or not sys.stdout.isatty():
            _print(take_snapshot(admin).record(limit), output)
            return
        try:
            from metaq.cli.work.top_view import TopView
        except ImportError:
            raise CommandError(
                "the live view needs textual", hint="install pymetaq[tui], or use `metaq top --once`"
            ) from None
        TopView(lambda: take_snapshot(admin), interval, limit).run()


def _print(record: dict[str, object], output: Format) -> None:
    from metaq.cli.printing.output import note, print_one
    from metaq.cli.printing.top_tables import PARTS, print_part

    if output is not Format.table:
        print_one(output, record, "")
        return
    for part in PARTS:
        print_part(part, record[part.key])
    failures = record["failures"]
    assert isinstance(failures, list)
    for failure in failures:
        note(failure)
