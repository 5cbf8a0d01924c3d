"""The queues of a group: who consumes them, and rows of brokers that went away."""

from __future__ import annotations

from metaq.admin.results import BrokerFailure, Member, Members, Progress, QueueProgress, RunningMember
from metaq.client.session.routes import Queue
from metaq.console.live.paging import page
from metaq.console.pages.group_looks import (
    TIMED_TOPICS_MAX,
    MemberLook,
    QueueLook,
    joined,
    queue_rows,
    timed_topics,
    topic_rows,
)

HERE, THERE = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 0)


def progress(*queues: tuple[Queue, int, int, int | None], failures: tuple[str, ...] = ()) -> Progress:
    rows = tuple(QueueProgress(queue, committed, end, lag_ms) for queue, committed, end, lag_ms in queues)
    return Progress("group", rows, tuple(BrokerFailure(name, "no answer") for name in failures))


def look(*queues: tuple[Queue, int, int, int | None], now_ms: int = 1000) -> QueueLook:
    return joined(None, progress(*queues), (), ("orders",), now_ms)


def members(*reports: RunningMember, silent: int = 0, failing: bool = False) -> MemberLook:
    names = [report.client_id for report in reports] + [f"silent-{number}" for number in range(silent)]
    listed = tuple(Member(name, "127.0.0.1:1", "JAVA", "5.5.0", ("broker-a",)) for name in names)
    failures = (BrokerFailure("broker-b", "no answer"),) if failing else ()
    return MemberLook(
        Members("group", listed, (), False, failures), {one.client_id: one for one in reports}, ()
    )


def test_rows_of_a_broker_that_went_away_stay_with_their_age() -> None:
    before = look((HERE, 1, 5, 20), (THERE, 2, 9, 30), now_ms=1000)
    failing = joined(before, progress((HERE, 3, 5, 10), failures=("broker-b",)), (), ("orders",), 2000)
    assert [(row.progress.committed_offset, row.stale_ms) for row in failing.rows.values()] == [
        (3, None),
        (2, 1000),
    ]
    unregistered = joined(failing, progress((HERE, 4, 5, 10)), ("broker-b",), ("orders",), 3000)
    assert unregistered.rows[THERE].stale_ms == 1000, "the age counts from the last answer"
    back = joined(unregistered, progress((HERE, 4, 5, 10), (THERE, 9, 9, 0)), (), ("orders",), 4000)
    assert back.rows[THERE].stale_ms is None
    gone = joined(back, progress((HERE, 4, 5, 10)), (), ("orders",), 5000)
    assert THERE not in gone.rows, "the broker answers and does not have the queue any more"


def test_waiting_times_are_asked_for_where_the_most_messages_wait() -> None:
    queues = [
        QueueProgress(Queue(f"topic-{number:03}", "broker-a", 0), 0, number, None) for number in range(100)
    ]
    timed = timed_topics(queues)
    assert timed == [f"topic-{number:03}" for number in range(99, 99 - TIMED_TOPICS_MAX, -1)]
    assert timed_topics(queues[:1]) == [], "nothing waits there"


def test_a_queue_has_an_owner_nobody_or_nobody_knows() -> None:
    queues = look((HERE, 1, 5, 20), (THERE, 2, 9, 30))
    owner = RunningMember("one", (HERE,))
    assert [row.owners for row in queue_rows(queues, members(owner))] == [("one",), ()]
    assert [row.owners for row in queue_rows(queues, members())] == [(), ()], "a group that is stopped"
    assert [row.owners for row in queue_rows(queues, members(owner, silent=1))] == [("one",), None]
    failed = RunningMember("two", error="timeout")
    assert [row.owners for row in queue_rows(queues, members(owner, failed))] == [("one",), None]
    assert [row.owners for row in queue_rows(queues, members(owner, failing=True))] == [("one",), None]
    assert [row.owners for row in queue_rows(queues, None)] == [None, None]
    assert queue_rows(None, None) == []


def test_queues_are_searched_by_owner_and_sorted_by_lag() -> None:
    queues = look((HERE, 1, 5, 20), (THERE, 2, 9, 30))
    rows = queue_rows(queues, members(RunningMember("one", (HERE,)), RunningMember("two", (THERE,))))
    assert [row.progress.queue for row in page(rows, sort="lag", descending=True).rows] == [THERE, HERE]
    assert [row.progress.queue for row in page(rows, search="one").rows] == [HERE]


def test_topics_add_up_their_queues() -> None:
    other = Queue("%RETRY%group", "broker-a", 0)
    first, second = topic_rows(look((HERE, 1, 5, 20), (THERE, 2, 9, 30), (other, 4, 4, 0)).rows.values())
    assert (first.topic, first.queues, first.lag, first.lag_ms, first.is_retry) == (
        "orders",
        2,
        11,
        30,
        False,
    )
    assert (second.lag, second.lag_ms, second.is_retry) == (0, None, True)
