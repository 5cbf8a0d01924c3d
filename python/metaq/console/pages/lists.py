"""The parameters that all lists read from the address: search, order and page."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

LIMIT = 50
"""Rows on a page."""
OFFSET_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which part of a list a reader wants to see."""

    search: str
    sort: str
    descending: bool
    offset: int
    limit: int = LIMIT


def list_query(request: Request, columns: tuple[str, ...], otherwise: str, *, descending: bool) -> ListQuery:
    """Returns the query in the address; a column that does not exist sorts as the list does by itself."""
    parameters = request.query_params
    sort = parameters.get("sort", otherwise)
    order = parameters.get("order", "")
    if sort not in columns:
        sort, order = otherwise, ""
    return ListQuery(
        search=parameters.get("q", "").strip()[:200],
        sort=sort,
        descending=order == "desc" if order else descending,
        offset=_offset(parameters.get("offset", "0")),
    )


def _offset(text: str) -> int:
    return min(int(text), OFFSET_MAX) if text.isascii() and text.isdigit() and len(text) < 9 else 0
