"""Purges, as commands preview, ask and print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.cli.invocation import Format
from metaq.cli.printing.output import Column, print_one, print_rows, say
from metaq.cli.reading.questions import confirm
from metaq.counts import counted

if TYPE_CHECKING:
    from metaq.admin import Admin, Purge


def carry_out(admin: Admin, plan: Purge, where: str, output: Format, *, asks: bool, dry_run: bool) -> None:
    """Prints what a purge takes away, asks, and makes it."""
    if dry_run or output is Format.table:
        _print(plan, output)
    if dry_run:
        return
    what = f"{counted(plan.messages, 'message')} {where}"
    if plan.messages and asks:
        confirm(f"Take away {what}?")
    done = admin.topics.apply_purge(plan)
    if output is Format.table:
        say(f"{what} are gone" if plan.messages != 1 else f"{what} is gone")
    else:
        _print(done, output)


def _print(plan: Purge, output: Format) -> None:
    rows = [
        {
            "broker": part.queue.broker,
            "queue": part.queue.id,
            "first": part.first_offset,
            "start": part.start_offset,
            "messages": part.messages,
        }
        for part in plan.queues
    ]
    if output is not Format.table:
        record = {"topic": plan.topic, "dry_run": plan.is_dry_run, "messages": plan.messages, "queues": rows}
        print_one(output, record, "")
        return
    columns = [
        Column("broker"),
        Column("queue", right=True),
        Column("first", "first now", right=True),
        Column("start", "first after", right=True),
        Column("messages", "messages that go", right=True),
    ]
    print_rows(output, rows, columns, empty="There are no messages.")
