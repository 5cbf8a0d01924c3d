"""metaq delayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.completions import complete_topic
from metaq.cli.reading.flags import BrokerName, DryRun, NameServers, OffsetId, Output, Yes
from metaq.cli.reading.questions import confirm

if TYPE_CHECKING:
    from metaq.admin import DelayedMessage

app = group_of_commands("Count and list the messages that wait for their time, and recall them.")


@app.command()
def show(
    buckets: Annotated[int, typer.Option(help="Rows of the histogram at most.", min=1, max=1_000)] = 24,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Show how many messages wait, and when they are due."""
    from dataclasses import asdict

    from metaq.cli.printing.formats import moment, plain, span
    from metaq.cli.printing.output import note, print_one, print_table, say
    from metaq.cli.reading.connection import connect, report_failures

    with connect(namesrv, partial=True) as admin:
        overview = admin.delayed.overview(buckets=buckets)
    lines = [
        f"{'waiting':<10}{plain(overview.pending)}",
        f"{'recalled':<10}{plain(overview.recalled)}",
        f"{'next due':<10}{moment(overview.earliest_ms)}",
        f"{'last due':<10}{moment(overview.latest_ms)}",
    ]
    print_one(output, asdict(overview), lines)
    if output is Format.table and overview.histogram:
        most = max(bucket.messages for bucket in overview.histogram) or 1
        say()
        rows = [
            (
                moment(bucket.from_ms)[:16],
                plain(bucket.messages),
                "█" * -(-bucket.messages * 40 // most),
            )
            for bucket in overview.histogram
        ]
        print_table(("due from", "messages", ""), rows, ("messages",))
    if output is Format.table and overview.levels:
        say()
        levels = [
            (str(level.level), span(level.delay_ms), plain(level.messages)) for level in overview.levels
        ]
        print_table(("level", "delay", "messages"), levels, ("level", "messages"))
    report_failures(overview.failures)
    for sentence in overview.missing:
        note(sentence)


@app.command("list")
def list_delayed(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            help="Only messages for this topic.",
            show_default=False,
            autocompletion=complete_topic,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Only messages that are due from this time on: +10m or 2026-01-31T12:00.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Only messages that are due before this time.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Messages at most.", min=1, max=1_000)] = 100,
    broker: BrokerName = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List messages that wait for their time, in the order in which they are due.

    A new message is listed a second or two after it was sent.
    """
    from dataclasses import asdict

    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.output import Column, note, print_rows
    from metaq.cli.reading.connection import connect, report_failures

    from_ms, to_ms = _due("--from", start), _due("--to", end)
    with connect(namesrv, partial=True) as admin:
        found = admin.delayed.list(topic=topic, from_ms=from_ms, to_ms=to_ms, limit=limit, broker=broker)
    columns = (
        Column("due_ms", "due", show=moment),
        Column("offset_id"),
        Column("topic"),
        Column("level", right=True),
        Column("is_recalled", "recalled"),
        Column("id", is_optional=True),
        Column("keys", is_optional=True),
        Column("tags", is_optional=True),
        Column("broker", is_optional=True),
    )
    print_rows(output, map(asdict, found.messages), columns, empty="no message waits for its time")
    if found.is_truncated:
        note("there may be more messages; give --from, --to or a larger --limit")
    report_failures(found.failures)
    for sentence in found.missing:
        note(sentence)


@app.command()
def recall(
    offset_id: OffsetId,
    broker: BrokerName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Recall a message that waits for its time, so that nobody gets it.

    The command shows the message and asks. A message with a delay level cannot be recalled.
    """
    from dataclasses import asdict

    from metaq.cli.printing.output import note, print_one
    from metaq.cli.reading.connection import connect
    from metaq.errors import CommandError

    with connect(namesrv) as admin:
        message = admin.delayed.find(offset_id, broker=broker)
        if not message.can_be_recalled:
            raise CommandError(_why_not(message))
        if dry_run:
            print_one(output, asdict(message), f"would recall {_line(message)}")
            return
        if not yes:
            note(_line(message))
            confirm("Recall this message, so that nobody gets it?")
        done = admin.delayed.recall(offset_id, broker=message.broker)
    print_one(output, asdict(done), f"{done.id} is recalled")


def _why_not(message: DelayedMessage) -> str:
    if message.level is None:
        return f"message {message.id} was recalled before"
    return (
        f"message {message.id} waits for delay level {message.level}: "
        "only a message with a delivery time of its own can be recalled"
    )


def _line(message: DelayedMessage) -> str:
    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.message_views import printable

    keys = f" keys={printable(' '.join(message.keys))}" if message.keys else ""
    return f"{message.id} for topic {message.topic}, due {moment(message.due_ms)}{keys}"


def _due(flag: str, text: str | None) -> int | None:
    """Reads a time from now on (+10m) or any other time. Raises CommandError."""
    if text is None:
        return None
    from datetime import UTC, datetime

    from metaq.admin.positions import milliseconds
    from metaq.cli.reading.message_flags import duration_of, time_of

    if text.startswith("+"):
        return milliseconds(datetime.now(UTC) + duration_of(flag, text[1:]))
    return milliseconds(time_of(flag, text))
