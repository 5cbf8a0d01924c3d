"""Limits of topics and groups, as commands print them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from metaq.admin import Limits, Retention
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import span
from metaq.cli.printing.output import print_json, print_table
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
    heads = ("broker", "messages per second", "bytes per second")
    rows = [
        (limit.broker, _count(limit.messages_per_second), _size(limit.bytes_per_second)) for limit in limits
    ]
    print_table(heads, rows, right=heads[1:])
    if len(limits) > 1:
        typer.echo("Each broker has its own count.")


def print_retentions(topic: str, kept: Sequence[Retention], output: Format) -> None:
    if output is Format.json:
        rows = [
            {"broker": each.broker, "age_ms": each.age_ms, "size_bytes": each.size_bytes} for each in kept
        ]
        print_json({"topic": topic, "retention": rows})
        return
    log = "as the log"
    print_table(
        ("broker", "kept for", "kept up to"),
        [
            (
                each.broker,
                log if each.age_ms is None else span(each.age_ms),
                log if each.size_bytes is None else write_bytes(each.size_bytes),
            )
            for each in kept
        ],
    )


def _count(rate: int | None) -> str:
    return NONE if rate is None else str(rate)


def _size(rate: int | None) -> str:
    return NONE if rate is None else write_bytes(rate)
