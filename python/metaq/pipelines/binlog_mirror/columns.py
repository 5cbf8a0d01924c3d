"""Maps columns of the source to columns of a mirror, and definition changes to changes of these."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.pipelines.binlog_mirror.config import EVOLVE, EXCEPTION, IGNORE
from metaq.pipelines.binlog_mirror.errors import MirrorError, Unmirrored
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

KEY, SEQUENCE, DELETED = "metaq_key", "metaq_seq", "metaq_deleted"
OWN: Final = (KEY, SEQUENCE, DELETED)
"""The columns that a mirror has in addition to those of its source."""

_PLAIN: Final = {
    "int8": "tinyint",
    "int8 unsigned": "smallint",
    "int16": "smallint",
    "int16 unsigned": "int",
    "int24": "int",
    "int24 unsigned": "int",
    "int32": "int",
    "int32 unsigned": "bigint",
    "int64": "bigint",
    "int64 unsigned": "decimal(20,0)",
    "year": "smallint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "geometry": "binary",
}
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
DECIMAL_DIGITS_MAX: Final = 38


def spark_type(column: Column, *, typed_dates: bool, native: Collection[str] = ()) -> str:
    """Returns Spark's type for a column, or one of the `native` types that the target has in addition."""
    kind = column.type
    if kind in native:
        return kind
    if kind in _PLAIN:
        return _PLAIN[kind]
    if found := _DECIMAL.fullmatch(kind):
        # Spark has no wider decimals; a text is exact.
        return kind if int(found[1]) <= DECIMAL_DIGITS_MAX else "string"
    if kind.startswith("bit("):
        return "bigint" if int(kind[4:-1]) < 64 else "decimal(20,0)"
    if kind.startswith("binary("):
        return "binary"
    if typed_dates:
        if kind == "date":
            return "date"
        if kind.startswith("datetime("):
            return "timestamp_ntz"
        if kind.startswith("timestamp("):
            return "timestamp"
    return "string"


def wider(before: str, after: str) -> str:
    """Returns the narrowest type that holds every value of both types; text if there is no other."""
    if before == after:
        return before
    if before in _INTEGERS and after in _INTEGERS:
        return max(before, after, key=_INTEGERS.index)
    if {before, after} == {"float", "double"}:
        return "double"
    digits, others = _digits(before), _digits(after)
    if digits is not None and others is not None:
        scale = max(digits[1], others[1])
        precision = max(digits[0] - digits[1], others[0] - others[1]) + scale
        if precision <= DECIMAL_DIGITS_MAX:
            return f"decimal({precision},{scale})"
    return "string"


def _digits(kind: str) -> tuple[int, int] | None:
    if kind in _DIGITS:
        return _DIGITS[kind], 0
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def column_named(columns: Mapping[str, str], name: str) -> str | None:
    """Returns the column of a mirror with this name in any case; None if there is none."""
    return next((column for column in columns if column.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Evolution:
    """The changes of a mirror's columns."""

    added: Mapping[str, str] = field(default_factory=dict)
    retyped: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.retyped or self.dropped)

    def __str__(self) -> str:
        parts = [f"{name} {kind} is new" for name, kind in self.added.items()]
        parts += [f"{name} becomes {kind}" for name, kind in self.retyped.items()]
        parts += [f"{name} is gone" for name in self.dropped]
        return ", ".join(parts)


def wanted_columns(
    definition: Definition, *, typed_dates: bool, native: Collection[str] = ()
) -> dict[str, str]:
    """Returns the columns for a definition; raises Unmirrored if a name clashes with the mirror's own, or if
    nothing identifies the rows."""
    if not definition.key:
        raise Unmirrored(
            "the table has no primary key, so the mirror cannot tell its rows apart",
            hint="list the table in source.exclude",
        )
    columns: dict[str, str] = {}
    for column in definition.columns:
        if column.name.lower() in OWN:
            raise Unmirrored(
                f"column {column.name} has a name that the mirror needs itself",
                hint="list the table in source.exclude",
            )
        columns[column.name] = spark_type(column, typed_dates=typed_dates, native=native)
    return columns


def evolution(table: str, there: Mapping[str, str], wanted: Mapping[str, str], mode: str) -> Evolution:
    """Returns the changes from existing columns to wanted ones in a mode of mirror.schema_changes.

    Names are compared without case, as the source does. Raises MirrorError in the mode "exception".
    """
    if mode == IGNORE:
        return Evolution()
    known = {name.lower(): name for name in there}
    wanted_names = {name.lower() for name in wanted}
    added = {name: kind for name, kind in wanted.items() if name.lower() not in known}
    dropped = tuple(name for name in there if name.lower() not in wanted_names)
    retyped: dict[str, str] = {}
    for name, kind in wanted.items():
        own = known.get(name.lower())
        if own is None or there[own] == kind:
            continue
        becomes = kind if mode in (EVOLVE, EXCEPTION) else wider(there[own], kind)
        if becomes != there[own]:
            retyped[own] = becomes
    if mode == EXCEPTION:
        found = Evolution(added, retyped, dropped)
        if found:
            raise MirrorError(
                f"the definition of {table} has changed: {found}",
                hint='mirror.schema_changes is "exception"; with lenient, evolve or ignore the run continues',
            )
        return found
    return Evolution(added, retyped, dropped if mode == EVOLVE else ())
