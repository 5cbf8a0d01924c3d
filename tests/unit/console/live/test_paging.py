"""Search, order and pages of rows."""

from __future__ import annotations

from metaq.admin.results import GroupFigures, TopicFigures
from metaq.console.live.paging import ROWS_MAX, page
from metaq.console.live.tables import GroupRow, TopicRow


def topic(name: str, messages: int | None = 0, kind: str = "normal") -> TopicRow:
    return TopicRow(TopicFigures(name, kind, ("a",), 8, 8, messages, None, None, None, None, None))  # type: ignore[arg-type]


def names(*rows: TopicRow) -> list[str]:
    return [row.name for row in rows]


ROWS = {
    row.name: row
    for row in (
        topic("%DLQ%g", 3, "dead-letter"),
        topic("Orders-eu", 10),
        topic("orders-us", None),
        topic("payments", 10),
        topic("visits", 2),
    )
}


def test_every_word_of_a_search_must_match_in_any_case() -> None:
    assert names(*page(ROWS, search="ORDERS").rows) == ["Orders-eu", "orders-us"]
    assert names(*page(ROWS, search=" us  orders").rows) == ["orders-us"]
    found = page(ROWS, search="nothing", kind="normal")
    assert (found.rows, found.matching, found.total) == ((), 0, 4)


def test_unknown_values_come_last_in_both_orders() -> None:
    up = page(ROWS, kind="normal", sort="messages")
    down = page(ROWS, kind="normal", sort="messages", descending=True)
    assert names(*up.rows) == ["visits", "Orders-eu", "payments", "orders-us"]
    assert names(*down.rows) == ["Orders-eu", "payments", "visits", "orders-us"]


def test_an_unknown_column_orders_by_name() -> None:
    assert names(*page(ROWS, sort="; drop table").rows) == sorted(ROWS)


def test_pages() -> None:
    rows = {f"t{number:03}": topic(f"t{number:03}") for number in range(25)}
    second = page(rows, offset=10, limit=10)
    assert names(*second.rows) == [f"t{number:03}" for number in range(10, 20)]
    assert (second.total, second.matching, second.offset) == (25, 25, 10)
    beyond = page(rows, offset=990, limit=10)
    assert names(*beyond.rows) == [f"t{number:03}" for number in range(20, 25)], "the last page"
    assert beyond.offset == 20
    assert len(page(rows, offset=-5, limit=0).rows) == 1
    assert len(page([topic(str(number)) for number in range(600)], limit=10**9).rows) == ROWS_MAX
    assert page({}, offset=50).offset == 0


def test_groups_have_columns_of_their_own() -> None:
    def group(name: str, lag_ms: int | None) -> GroupRow:
        return GroupRow(GroupFigures(name, "normal", ("a",), 1, 5, lag_ms, 0.0))

    found = page([group("a", None), group("b", 5), group("c", 50)], sort="lag_ms", descending=True)
    assert [row.name for row in found.rows] == ["c", "b", "a"]
