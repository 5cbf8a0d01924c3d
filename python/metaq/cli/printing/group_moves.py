"""Resets and clones of groups, as commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metaq.admin import QueueReset, Reset
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import UNKNOWN
from metaq.cli.printing.output import Column, print_json, print_rows


def print_reset(reset: Reset, output: Format) -> None:
    """Prints the change of each queue."""
    if output is Format.json:
        queues = [_row(change) for change in reset.queues]
        print_json(
            {"group": reset.group, "topic": reset.topic, "dry_run": reset.is_dry_run, "queues": queues}
        )
    else:
        print_rows(output, _changes([reset]), _COLUMNS[1:], empty="The topic has no queues.")


def print_clone(source: str, target: str, resets: Sequence[Reset], output: Format) -> None:
    """Prints the change of each queue of several topics."""
    if output is Format.json:
        topics = [
            {"topic": reset.topic, "queues": [_row(change) for change in reset.queues]} for reset in resets
        ]
        is_dry_run = any(reset.is_dry_run for reset in resets)
        print_json({"source": source, "group": target, "dry_run": is_dry_run, "topics": topics})
    else:
        print_rows(output, _changes(resets), _COLUMNS, empty="There is nothing to copy.")


def _row(change: QueueReset) -> dict[str, Any]:
    return {
        "broker": change.queue.broker,
        "queue": change.queue.id,
        "committed": change.committed_offset,
        "new": change.queue_offset,
    }


def _changes(resets: Sequence[Reset]) -> list[dict[str, Any]]:
    rows = []
    for reset in resets:
        for change in reset.queues:
            row = {"topic": reset.topic, **_row(change)}
            before = change.committed_offset
            rows.append({**row, "change": None if before is None else change.queue_offset - before})
    return rows


def _signed(change: int | None) -> str:
    return UNKNOWN if change is None else f"{change:+,}"


_COLUMNS = (
    Column("topic"),
    Column("broker"),
    Column("queue", right=True),
    Column("committed", right=True),
    Column("new", right=True),
    Column("change", show=_signed, right=True),
)
