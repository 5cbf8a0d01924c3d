"""metaq dlq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.exits import FAILED, INTERRUPTED
from metaq.cli.invocation import Format
from metaq.cli.printing.message_views import BodyForm
from metaq.cli.reading.flags import DryRun, NameServers, Output, Yes, group_argument
from metaq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from metaq.admin import Admin, DeadLetter, ResendOutcome

app = group_of_commands("List the messages that a group has given up, and send them to it again.")

Group = Annotated[str, group_argument()]
All = Annotated[bool, typer.Option("--all", help="Include the dead letters that were sent again.")]


ErrorType = Annotated[
    str | None,
    typer.Option("--error", help="Only those of this exception.", metavar="CLASS", show_default=False),
]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason",
        help="Only those with this text in their reason; numbers do not matter.",
        metavar="TEXT",
        show_default=False,
    ),
]


@app.command("list")
def list_dead_letters(
    group: Annotated[str | None, group_argument("Name of the consumer group; all groups without it.")] = None,
    everything: All = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List the dead letters of a group that were not sent again yet, or the groups that have some."""
    from metaq.cli.printing.message_views import KEYS
    from metaq.cli.printing.output import Rows
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        if group is None:
            _print_groups(admin, output)
            return
        keys = (*KEYS, "origin_topic", "reason", "error_type")
        letters = admin.dead_letters.list(group, resent=everything)
        empty = f"{group} has no dead letters" if everything else f"{group} has no dead letters to send again"
        with Rows(output, keys, _line, empty=empty) as rows:
            for letter in letters:
                rows.print(letter, lambda letter=letter: _document(letter))  # type: ignore[misc]


@app.command()
def reasons(
    group: Group,
    error_type: ErrorType = None,
    reason: Reason = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Count the dead letters of a group by exception and reason. `dlq resend` acts on one kind of them.

    Numbers in reasons do not count as differences and are shown as #.
    """
    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.output import Column, print_rows
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        found = admin.dead_letters.reasons(group, error_type=error_type, reason=reason)
    rows = [
        {
            "letters": each.letters,
            "error_type": each.error_type,
            "reason": each.reason,
            "topics": list(each.topics),
            "oldest_ms": each.oldest_ms,
            "newest_ms": each.newest_ms,
        }
        for each in found
    ]
    columns = [
        Column("letters", right=True),
        Column("error_type", "exception"),
        Column("reason"),
        Column("topics", show=lambda topics: ", ".join(topics)),
        Column("oldest_ms", "oldest", moment),
        Column("newest_ms", "newest", moment),
    ]
    print_rows(output, rows, columns, empty=f"{group} has no such dead letters.")


@app.command()
def show(
    group: Group,
    id: Annotated[
        str, typer.Argument(help="Id or offset id of the dead letter.", metavar="ID", show_default=False)
    ],
    body: Annotated[
        BodyForm, typer.Option("--body", help="Form of the body; raw prints the body alone.")
    ] = BodyForm.text,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Show one dead letter: why it was given up, its fields, properties and body."""
    from metaq.cli.printing.message_views import full_text, print_raw_body, printable
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        letter = admin.dead_letters.find(group, id)
    if body is BodyForm.raw:
        print_raw_body(letter.message)
        return
    text = [
        f"{'given up by':<14}{group}",
        f"{'from topic':<14}{letter.origin_topic}",
        f"{'reason':<14}{printable(letter.reason) if letter.reason else 'not stored'}",
        f"{'exception':<14}{printable(letter.error_type) if letter.error_type else 'not stored'}",
    ]
    print_one(
        output,
        _document(letter),
        [*text, *full_text(letter.message, body)] if output is Format.table else "",
    )


@app.command()
def resend(
    group: Group,
    message_id: Annotated[
        list[str] | None,
        typer.Option(
            "--id", help="Only the dead letter with this id or offset id; repeatable.", show_default=False
        ),
    ] = None,
    error_type: ErrorType = None,
    reason: Reason = None,
    rate: Annotated[float, typer.Option(help="Messages per second.", min=0.01, max=1_000_000)] = 100,
    body_file: Annotated[
        str | None,
        typer.Option(
            "--body-file",
            help="Send the content of this file instead of the stored body; needs one --id.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Send a group its dead letters again: all that were not sent again yet, or some of them.

    No other group gets them. If you interrupt the command, the next call continues from there.
    """
    if message_id and (error_type or reason):
        raise CommandError("--id names single dead letters", hint="leave out --error and --reason")
    if body_file is not None:
        _resend_edited(group, message_id or [], body_file, namesrv, output)
        return
    from metaq.cli.printing.output import note, print_one, say
    from metaq.cli.printing.progress import progress
    from metaq.cli.reading.connection import connect
    from metaq.counts import counted

    letters: list[dict[str, object]] = []
    done = failed = 0
    is_interrupted = False
    try:
        with connect(namesrv) as admin:
            if error_type or reason:
                chosen = admin.dead_letters.matching(group, error_type=error_type, reason=reason)
                message_id = [letter.message.offset_id for letter in chosen]
                if not message_id:
                    raise CommandError(
                        f"{group} has no such dead letters", hint=f"`metaq dlq reasons {group}`"
                    )
            outcomes = admin.dead_letters.resend_each(group, message_id or None, rate=rate)
            with progress("dead letters", _waiting(admin, group, message_id)) as advance:
                for outcome in outcomes:
                    done, failed = (done + 1, failed) if outcome.error is None else (done, failed + 1)
                    if output is Format.table:
                        say(_outcome_line(outcome))
                    else:
                        letters.append(_outcome(outcome))
                    advance(1)
    except KeyboardInterrupt:
        is_interrupted = True
    record = {"group": group, "resent": done, "failed": failed, "letters": letters}
    text = f"{counted(done, 'dead letter')} of {group} sent again"
    print_one(output, record, f"{text}, {failed} failed" if failed else text)
    if is_interrupted:
        note("interrupted; the next call continues from here")
        raise typer.Exit(INTERRUPTED)
    if failed:
        raise typer.Exit(FAILED)


def _resend_edited(group: str, ids: list[str], file: str, namesrv: str | None, output: Format) -> None:
    """Sends one dead letter with another body."""
    from pathlib import Path

    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import connect

    if len(ids) != 1:
        raise CommandError("--body-file needs exactly one --id", hint="a body belongs to one dead letter")
    try:
        body = Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    with connect(namesrv) as admin:
        letter = admin.dead_letters.resend_one(group, ids[0], body=body)
    record = {"group": group, "resent": 1, "failed": 0, "letters": [_document(letter)]}
    print_one(output, record, f"1 dead letter of {group} sent again with the body of {file}")


@app.command()
def purge(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="The first dead letter that stays: latest (none stays), -7d, 2026-01-31T12:00 or an offset.",
            metavar="POSITION",
        ),
    ] = "latest",
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Take away the dead letters of a group, all or those before a time. This cannot be undone.

    The command prints how many go and asks before it does it. `metaq dlq export` saves them to a file.
    """
    from metaq.cli.printing.purges import carry_out
    from metaq.cli.reading.connection import connect
    from metaq.cli.reading.message_flags import position

    target = position("--to", to)
    with connect(namesrv) as admin:
        plan = admin.dead_letters.purge(group, target, dry_run=True)
        carry_out(admin, plan, f"from the dead letters of {group}", output, asks=not yes, dry_run=dry_run)


@app.command()
def export(
    group: Group,
    file: Annotated[
        str, typer.Argument(help="File to write; - is standard output.", metavar="FILE", show_default=False)
    ],
    everything: All = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Write the dead letters of a group with their bodies to a file, one JSON object per line."""
    import sys

    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import connect
    from metaq.counts import counted

    with connect(namesrv) as admin:
        letters = admin.dead_letters.list(group, resent=everything)
        if file == "-":
            _write(letters, sys.stdout.buffer)
            return
        written = _write_file(letters, file)
    record = {"group": group, "file": file, "letters": written}
    print_one(output, record, f"{counted(written, 'dead letter')} of {group} written to {file}")


def _print_groups(admin: Admin, output: Format) -> None:
    from metaq.cli.printing.output import Column, note, print_rows

    counts = sorted(admin.dead_letters.counts(), key=lambda count: (-(count.waiting or 0), count.group))
    rows = [
        {"group": count.group, "waiting": count.waiting, "stored": count.stored, "error": count.error}
        for count in counts
    ]
    columns = (Column("group"), Column("waiting", right=True), Column("stored", right=True))
    print_rows(output, rows, columns, empty="no group has dead letters")
    for count in counts:
        if count.error is not None:
            note(f"the dead letters of {count.group} are not known: {count.error}")


def _waiting(admin: Admin, group: str, ids: list[str] | None) -> int | None:
    """How many letters there are to send, for the bar on a terminal."""
    import sys

    if ids:
        return len(ids)
    return admin.dead_letters.counts([group])[0].waiting if sys.stderr.isatty() else None


def _write(letters: Iterator[DeadLetter], file: BinaryIO) -> int:
    import msgspec

    from metaq.cli.printing.progress import progress

    written = 0
    with progress("dead letters") as advance:
        for letter in letters:
            file.write(msgspec.json.encode(_document(letter)) + b"\n")
            written += 1
            advance(1)
    file.flush()
    return written


def _write_file(letters: Iterator[DeadLetter], name: str) -> int:
    from pathlib import Path

    from metaq.cli.work.replaced_file import replaced_file

    try:
        with replaced_file(Path(name)) as file:
            return _write(letters, file)
    except OSError as error:
        if Path(name).exists() and not Path(name).is_file():
            raise CommandError(
                f"cannot write {name}: it is not a file", hint="- is standard output"
            ) from None
        raise CommandError(f"cannot write {name}: {error.strerror}") from None


def _document(letter: DeadLetter) -> dict[str, object]:
    from metaq.cli.printing.message_views import document

    return {
        **document(letter.message),
        "origin_topic": letter.origin_topic,
        "reason": letter.reason,
        "error_type": letter.error_type,
    }


def _line(letter: DeadLetter) -> str:
    from metaq.cli.printing.message_views import line, printable

    why = printable(": ".join(filter(None, (letter.error_type, letter.reason))))
    return f"{letter.message.offset_id} {letter.origin_topic} {line(letter.message)}{why and f' ({why})'}"


def _outcome(outcome: ResendOutcome) -> dict[str, object]:
    message = None if outcome.letter is None else outcome.letter.message
    return {
        "id": outcome.id if message is None else message.id,
        "offset_id": None if message is None else message.offset_id,
        "origin_topic": None if outcome.letter is None else outcome.letter.origin_topic,
        "error": None if outcome.error is None else str(outcome.error),
    }


def _outcome_line(outcome: ResendOutcome) -> str:
    if outcome.error is not None:
        from metaq.errors import explained

        return f"failed {outcome.id}: {explained(outcome.error)}"
    return f"sent {outcome.id}"
