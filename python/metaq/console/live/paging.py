"""Search, order and pages of rows, on the server: a browser never gets more than one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

ROWS_MAX: Final = 500
"""Rows of one page."""


class Row(Protocol):
    """A row of a table that people search and order."""

    COLUMNS: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """The values that rows can be ordered by. None is unknown."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """A part of a table."""

    rows: tuple[R, ...]
    total: int
    """All rows of the kind."""
    matching: int
    """The rows of the kind that match the search."""
    offset: int = 0
    """The number of the first row; less than what was asked for if the table is shorter."""


def page(
    rows: Mapping[str, R] | Iterable[R],
    search: str = "",
    kind: str | None = None,
    sort: str = "name",
    descending: bool = False,
    offset: int = 0,
    limit: int = 50,
) -> Page[R]:
    """Returns the rows of one page. Every word of the search is part of a row's name, in any case of letters.

    Rows whose value is unknown come last in both orders. Rows with equal values are in the order of their
    names if the given rows are. An unknown column orders by name.
    """
    given = rows.values() if isinstance(rows, Mapping) else rows
    of_kind = [row for row in given if kind is None or row.kind == kind]
    matching = of_kind
    for word in search.lower().split():
        matching = [row for row in matching if word in row.name.lower()]
    limit = min(max(limit, 1), ROWS_MAX)
    offset = max(min(offset, (len(matching) - 1) // limit * limit), 0)
    chosen = _ordered(matching, sort, descending=descending)[offset : offset + limit]
    return Page(tuple(chosen), len(of_kind), len(matching), offset)


def _ordered(rows: list[R], sort: str, *, descending: bool) -> list[R]:
    if not rows:
        return rows
    columns = rows[0].COLUMNS
    column = columns.get(sort, columns["name"])
    values = [(column(row), row) for row in rows]
    known = [pair for pair in values if pair[0] is not None]
    known.sort(key=_value, reverse=descending)
    return [*(row for _, row in known), *(row for value, row in values if value is None)]


def _value(pair: tuple[Any, object]) -> Any:
    return pair[0]
