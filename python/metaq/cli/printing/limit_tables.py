"""Limits of topics and groups, as commands print them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from metaq.admin import Limits, Retention
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import span
from metaq.cli.printing.output import Column, print_json, print_one, print_rows, print_table
from metaq.config.kinds import write_bytes

NONE = "none"


def rows_of(limits: Sequence[Limits]) -> list[dict[str, object]]:
    """Returns the limits as programs read them."""
    return [
        {
            "broker": limit.broker,
            "messages_per_second": limit.messages_per_second,
            "bytes_per_second": limit.bytes_per_second,
        }
        for limit in limits
    ]


def print_limits(kind: str, name: str, limits: Sequence[Limits], output: Format) -> None:
    if output is Format.json:
        print_json({kind: name, "limits": rows_of(limits)})
        return
    if output is Format.csv:
        print_rows(output, rows_of(limits), _COLUMNS, empty="")
        return
    heads = ("broker", "messages per second", "bytes per second")
    rows = [
        (limit.broker, _count(limit.messages_per_second), _size(limit.bytes_per_second)) for limit in limits
    ]
    print_table(heads, rows, right=heads[1:])
    if len(limits) > 1:
        typer.echo("Each broker has its own count.")


def print_retentions(topic: str, kept: Sequence[Retention], output: Format) -> None:
    rows = [{"broker": each.broker, "age_ms": each.age_ms, "size_bytes": each.size_bytes} for each in kept]
    if output is not Format.table:
        print_one(output, {"topic": topic, "retention": rows}, "")
        return
    columns = (
        Column("broker"),
        Column("age_ms", "kept for", _age),
        Column("size_bytes", "kept up to", _kept_size),
    )
    print_rows(output, rows, columns, empty="")


_COLUMNS = (Column("broker"), Column("messages_per_second"), Column("bytes_per_second"))
_AS_LOG = "as the log"


def _age(age_ms: int | None) -> str:
    return _AS_LOG if age_ms is None else span(age_ms)


def _kept_size(size_bytes: int | None) -> str:
    return _AS_LOG if size_bytes is None else write_bytes(size_bytes)


def _count(rate: int | None) -> str:
    return NONE if rate is None else str(rate)


def _size(rate: int | None) -> str:
    return NONE if rate is None else write_bytes(rate)
