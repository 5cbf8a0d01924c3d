"""metaq transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import BrokerName, DryRun, NameServers, OffsetId, Output, Yes
from metaq.cli.reading.questions import confirm

if TYPE_CHECKING:
    from metaq.admin import Decision, OpenTransaction

app = group_of_commands("List the transactions that are open, and commit or roll them back by hand.")


@app.command("list")
def list_transactions(
    group: Annotated[
        str | None,
        typer.Option(
            "--producer-group", help="Only transactions of this producer group.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Transactions at most.", min=1, max=1_000)] = 100,
    broker: BrokerName = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List the transactions that their producers have neither committed nor rolled back, oldest first."""
    from dataclasses import asdict

    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.output import Column, note, print_rows
    from metaq.cli.reading.connection import connect, report_failures

    with connect(namesrv, partial=True) as admin:
        found = admin.transactions.list(limit=limit, producer_group=group, broker=broker)
    columns = (
        Column("began_ms", "began", show=moment),
        Column("offset_id"),
        Column("topic"),
        Column("producer_group"),
        Column("checks", right=True),
        Column("next_check_ms", "next check", show=moment, is_optional=True),
        Column("transaction_id", is_optional=True),
        Column("keys", is_optional=True),
        Column("broker", is_optional=True),
    )
    print_rows(output, map(asdict, found.transactions), columns, empty="no transaction is open")
    if found.is_truncated:
        note(f"{found.total:,} transactions are open; --limit and --producer-group choose which are listed")
    report_failures(found.failures)
    for sentence in found.missing:
        note(sentence)


@app.command()
def commit(
    offset_id: OffsetId,
    broker: BrokerName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Commit an open transaction by hand, so that consumers get its message.

    The command shows the transaction and asks. If its producer rolls it back later, the broker refuses that.
    """
    _decide("commit", offset_id, broker, dry_run=dry_run, yes=yes, namesrv=namesrv, output=output)


@app.command()
def rollback(
    offset_id: OffsetId,
    broker: BrokerName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Roll an open transaction back by hand, so that nobody gets its message.

    The command shows the transaction and asks. If its producer commits it later, the broker refuses that.
    """
    _decide("rollback", offset_id, broker, dry_run=dry_run, yes=yes, namesrv=namesrv, output=output)


def _decide(
    decision: Decision,
    offset_id: str,
    broker: str | None,
    *,
    dry_run: bool,
    yes: bool,
    namesrv: str | None,
    output: Format,
) -> None:
    from dataclasses import asdict

    from metaq.cli.printing.output import note, print_one
    from metaq.cli.reading.connection import connect

    words = {"commit": ("commit", "committed"), "rollback": ("roll back", "rolled back")}
    verb, done = words[decision]
    with connect(namesrv) as admin:
        transaction = admin.transactions.find(offset_id, broker=broker)
        if dry_run:
            print_one(output, asdict(transaction), f"would {verb} {_line(transaction)}")
            return
        if not yes:
            note(_line(transaction))
            confirm(f"{verb.capitalize()} this transaction?")
        ended = admin.transactions.decide(offset_id, decision, broker=transaction.broker)
    print_one(
        output, {**asdict(ended), "decision": decision}, f"transaction {ended.transaction_id} is {done}"
    )


def _line(transaction: OpenTransaction) -> str:
    from metaq.cli.printing.formats import moment
    from metaq.cli.printing.message_views import printable

    keys = f" keys={printable(' '.join(transaction.keys))}" if transaction.keys else ""
    return (
        f"{transaction.transaction_id} of producer group {transaction.producer_group} for topic "
        f"{transaction.topic}, began {moment(transaction.began_ms)}, checked {transaction.checks} times{keys}"
    )
