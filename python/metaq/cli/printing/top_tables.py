"""The three tables of `metaq top`."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.cli.invocation import Format
from metaq.cli.printing.formats import moment, rate, share, span
from metaq.cli.printing.output import Column, print_rows, say


@dataclass(frozen=True, slots=True)
class Part:
    """One table: its key in the snapshot, its title, its columns, and the sentence if it is empty."""

    key: str
    title: str
    columns: tuple[Column, ...]
    empty: str


PARTS = (
    Part(
        "brokers",
        "Brokers",
        (
            Column("broker"),
            Column("id", right=True),
            Column("in_per_second", "in", show=rate, right=True),
            Column("out_per_second", "out", show=rate, right=True),
            Column("disk_used_ratio", "disk", show=share, right=True),
            Column("address", is_optional=True),
        ),
        "No broker is registered.",
    ),
    Part(
        "topics",
        "Topics, the busiest first",
        (
            Column("topic"),
            Column("in_per_second", "in", show=rate, right=True),
            Column("out_per_second", "out", show=rate, right=True),
            Column("messages", right=True),
            Column("last_stored_ms", "last stored", show=moment, is_optional=True),
        ),
        "There is no topic. `metaq topic create NAME` creates one.",
    ),
    Part(
        "groups",
        "Groups, the furthest behind first",
        (
            Column("group"),
            Column("lag", right=True),
            Column("lag_ms", "behind for", show=span, right=True),
            Column("out_per_second", "rate", show=rate, right=True),
            Column("members", right=True),
        ),
        "There is no group.",
    ),
)


def print_part(part: Part, rows: object) -> None:
    assert isinstance(rows, list)
    say(part.title)
    print_rows(Format.table, rows, part.columns, empty=part.empty)
    say()
