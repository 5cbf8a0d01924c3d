"""Rows after looks that did not reach every broker."""

from __future__ import annotations

from collections.abc import Mapping

from metaq.admin.health.results import BrokerHealth, Health
from metaq.admin.results import BrokerFailure, NameServer, TopicFigures
from metaq.console.live.tables import (
    KEPT_MS,
    BrokerRow,
    Look,
    Table,
    TopicRow,
    TopicTable,
    dead_letters_of,
    merged,
    merged_brokers,
)

HOUR_MS = 3_600_000


def figures(name: str, *brokers: str, messages: int = 1) -> TopicFigures:
    kind = "dead-letter" if name.startswith("%DLQ%") else "normal"
    return TopicFigures(name, kind, brokers, 8, 8, messages, 100, None, None, 0.0, 0.0)  # type: ignore[arg-type]


class Looker:
    """Looks at brokers again and again, a second apart."""

    def __init__(self) -> None:
        self.rows: Mapping[str, TopicRow] = {}
        self.table = Table()
        self.now_ms = 1_000

    def look(self, *found: TopicFigures, answered: str = "", failing: str = "") -> Mapping[str, TopicRow]:
        before_ms, self.now_ms = self.now_ms, self.now_ms + 1_000
        failures = [BrokerFailure(broker, "no") for broker in failing]
        look = Look.after(self.table, answered, failures, before_ms, self.now_ms)
        self.rows = merged(self.rows, found, look, lambda one, missing: TopicRow(one, None, missing))
        self.table = Table(**look.facts)
        return self.rows


def test_rows_of_a_broker_that_dies_stay_with_their_age() -> None:
    looker = Looker()
    looker.look(figures("both", "a", "b"), figures("of-b", "b", messages=7), answered="ab")
    rows = looker.look(figures("both", "a"), answered="a", failing="b")
    assert list(rows) == ["both", "of-b"]
    assert rows["both"].partial and rows["both"].missing == ("b",)
    assert rows["of-b"].stale_ms == 2_000 and rows["of-b"].figures.messages == 7
    rows = looker.look(figures("both", "a"), answered="a")
    assert rows["of-b"].stale_ms == 2_000, "name servers have forgotten it, and we have not"
    assert rows["both"].missing == ("b",)
    rows = looker.look(figures("both", "a", "b"), figures("of-b", "b"), answered="ab")
    assert all(row.stale_ms is None and not row.partial for row in rows.values())


def test_a_topic_that_is_deleted_goes() -> None:
    looker = Looker()
    looker.look(figures("gone", "a"), figures("kept", "a"), answered="ab")
    assert list(looker.look(figures("kept", "a"), answered="a", failing="b")) == ["kept"]


def test_a_broker_that_was_never_reached_makes_every_row_partial() -> None:
    looker = Looker()
    assert looker.look(figures("t", "a"), answered="a", failing="b")["t"].partial
    assert looker.look(figures("t", "a"), answered="a", failing="b")["t"].partial
    rows = looker.look(figures("t", "a"), answered="ab")
    assert not rows["t"].partial
    rows = looker.look(figures("t", "a"), figures("new", "a"), answered="a", failing="b")
    assert not rows["t"].partial, "b was asked before, and does not have it"
    assert rows["new"].partial, "b may have it"


def test_rows_of_a_broker_that_is_away_for_a_day_go() -> None:
    looker = Looker()
    looker.look(figures("t", "a"), figures("u", "b"), answered="ab")
    looker.look(figures("t", "a"), answered="a")
    looker.now_ms += KEPT_MS - HOUR_MS
    assert "u" in looker.look(figures("t", "a"), answered="a")
    looker.now_ms += HOUR_MS
    assert "u" not in looker.look(figures("t", "a"), answered="a")


def test_rows_are_whole_again_when_a_broker_has_been_out_for_a_day() -> None:
    looker = Looker()
    looker.look(figures("t", "a", "b"), answered="ab")
    assert looker.look(figures("t", "a"), answered="a", failing="b")["t"].missing == ("b",)
    looker.now_ms += KEPT_MS - HOUR_MS
    assert looker.look(figures("t", "a"), answered="a")["t"].partial
    looker.now_ms += HOUR_MS
    assert looker.look(figures("t", "a"), answered="a")["t"].missing == ()
    assert looker.table.seen == {"a"} and not looker.table.away_since
    rows = looker.look(figures("t", "a"), answered="a", failing="b")
    assert rows["t"].partial, "it is back, and may have anything"


def test_a_broker_that_is_registered_and_hangs_leaves_rows_partial() -> None:
    looker = Looker()
    looker.look(figures("t", "a", "b"), answered="ab")
    for _ in range(3):
        looker.now_ms += KEPT_MS
        assert looker.look(figures("t", "a"), answered="a", failing="b")["t"].partial


def test_a_broker_that_never_had_a_row_does_not_end_it() -> None:
    looker = Looker()
    assert looker.look(figures("t", "a"), answered="a", failing="b")["t"].missing == ("b",)
    rows = looker.look(answered="b", failing="a")
    assert rows["t"].stale_ms is not None, "only a had it, and a did not answer"


def test_a_look_that_fails_ages_all_rows_once() -> None:
    table = TopicTable(rows={"t": TopicRow(figures("t", "a")), "u": TopicRow(figures("u", "b"), 500)})
    aged = table.aged(2_000).aged(9_000)
    assert [row.stale_ms for row in aged.rows.values()] == [2_000, 500]


def test_dead_letters_are_counted_from_their_topics() -> None:
    rows = {
        "%DLQ%g": TopicRow(figures("%DLQ%g", "a", messages=3)),
        "%DLQ%h": TopicRow(figures("%DLQ%h", "a", messages=4), 77),
        "t": TopicRow(figures("t", "a")),
    }
    found = dead_letters_of(TopicTable(rows=rows))
    assert {group: (row.stored, row.stale_ms) for group, row in found.items()} == {
        "g": (3, None),
        "h": (4, 77),
    }


def broker(name: str, rate: float | None = 5.0, error: str | None = None, broker_id: int = 0) -> BrokerHealth:
    role = "master" if broker_id == 0 else "replica"
    address = f"h:{ord(name)}{broker_id}"
    return BrokerHealth(name, "c", broker_id, role, address, messages_in_per_second=rate, error=error)  # type: ignore[arg-type]


def health(*brokers: BrokerHealth, error: str | None = None) -> Health:
    return Health("", (), (NameServer("h:1", error),), brokers, ())


def test_brokers_keep_their_last_values() -> None:
    rows: Mapping[str, BrokerRow] = {}
    rows = merged_brokers(rows, health(broker("a"), broker("b"), broker("b", broker_id=1)), 1_000, 1_000)
    assert list(rows) == ["a", "b", "b/1"]
    rows = merged_brokers(rows, health(broker("a"), broker("b", None, "refused")), 1_000, 2_000)
    assert (rows["b"].health.messages_in_per_second, rows["b"].stale_ms) == (5.0, 1_000)
    assert (rows["b"].error, rows["b"].is_gone) == ("refused", False)
    assert (rows["b/1"].error, rows["b/1"].is_gone) == ("it is not registered any more", True)
    rows = merged_brokers(rows, health(error="no"), 2_000, 3_000)
    assert {row.error for row in rows.values()} == {"no name server answers"}
    assert [row.stale_ms for row in rows.values()] == [2_000, 1_000, 1_000]
    rows = merged_brokers(rows, health(broker("a"), broker("b")), 3_000, 4_000)
    assert rows["b"].error is None and rows["b"].stale_ms is None


def test_a_broker_that_never_answered_has_no_values() -> None:
    rows = merged_brokers({}, health(broker("a", None, "refused")), 1_000, 1_000)
    assert (rows["a"].health.messages_in_per_second, rows["a"].stale_ms, rows["a"].error) == (
        None,
        None,
        "refused",
    )
