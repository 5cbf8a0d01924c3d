"""Trace entries and stored copies become events."""

from __future__ import annotations

from typing import Any

import pytest

from metaq import Message, Queue
from metaq.admin import Member, Members, TimelineEvent
from metaq.admin.traces.timeline_events import (
    Traced,
    clock_difference_ms,
    ordered,
    stored_events,
    traced_events,
    with_clients,
)
from metaq.protocol.trace_entries import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceEntry,
)

ID = "7F0000010A3C18B4AAC2000000010001"
REQUEST = "0A0000070A3C18B4AAC2000000010002"
"""Made by process 2620 (or 65536 more) at 10.0.0.7."""
HERE = "10.0.0.7:5000"


def test_the_two_entries_of_a_delivery_are_one_event() -> None:
    before = Traced(SubBeforeTrace(1000, None, "g", REQUEST, ID, 2, None), HERE)
    after = Traced(SubAfterTrace(REQUEST, ID, 30, False, None, 2, 1030, "g"), HERE)
    joined = TimelineEvent(
        "delivered",
        1000,
        "trace",
        group="g",
        address=HERE,
        duration_ms=30,
        result="exception",
        retries=2,
        request_id=REQUEST,
    )
    assert traced_events([before, after]) == [joined]
    assert traced_events([after, before, after, before]) == [joined], "a trace may be stored twice"


def test_a_delivery_with_one_entry_says_what_it_knows() -> None:
    [running] = traced_events([Traced(SubBeforeTrace(1000, None, "g", REQUEST, ID, 0, None), HERE)])
    assert (running.result, running.duration_ms, running.at_ms) == (None, None, 1000)
    [ended] = traced_events([Traced(SubAfterTrace(REQUEST, ID, 30, True, None, 0, 1030, "g"), HERE)])
    assert (ended.result, ended.retries, ended.at_ms, ended.group) == ("success", None, 1000, "g")
    [old] = traced_events([Traced(SubAfterTrace(REQUEST, ID, 30, False, None), HERE)])
    assert (old.result, old.at_ms, old.group) == ("failed", None, None)


@pytest.mark.parametrize(
    ("code", "result"),
    [(0, "failed"), (1, "timeout"), (2, "exception"), (3, "null"), (4, "failed"), (9, "failed")],
)
def test_the_results_of_handlers(code: int, result: str) -> None:
    [event] = traced_events([Traced(SubAfterTrace(REQUEST, ID, 30, False, None, code, 1030, "g"), HERE)])
    assert event.result == result


def test_the_producers_of_traces() -> None:
    pub = PubTrace(1000, None, "p", "t", ID, None, None, "b:1", 3, 4, 0, "OFFSET", True, "10.0.0.9")
    ends = [
        EndTransactionTrace(1001, None, "p", "t", ID, None, None, None, 2, None, state, True)
        for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")
    ]
    recall = RecallTrace(1002, None, "p", "t", ID, False)
    entries: list[TraceEntry] = [pub, *ends, recall]
    events = traced_events(Traced(entry, HERE) for entry in entries)
    assert [event.kind for event in events] == ["born", "committed", "rolled-back", "undecided", "recalled"]
    assert (events[0].address, events[0].duration_ms, events[0].result) == ("10.0.0.9", 4, "success")
    assert (events[1].reason, events[1].address) == ("the broker asked", HERE)
    assert events[4].result == "failed"


@pytest.mark.parametrize(
    ("client_id", "address", "is_found"),
    [
        ("10.0.0.7@2620#77", "10.0.0.7:6000", True),
        ("10.0.0.7@68156#77", "10.0.0.7:6000", True),
        ("10.0.0.7@2621#77", "10.0.0.7:6000", False),
        ("10.0.0.8@2620#77", "10.0.0.8:6000", False),
        ("named", HERE, True),
        ("named", "10.0.0.7:6000", False),
        (f"10.0.0.7@{'9' * 5000}#1", "10.0.0.7:6000", False),
    ],
)
def test_clients_that_are_still_connected_are_named(client_id: str, address: str, is_found: bool) -> None:
    delivered = TimelineEvent("delivered", 1, "trace", group="g", address=HERE, request_id=REQUEST)
    members = Members("g", (Member(client_id, address, "JAVA", "5.5.0", ("b",)),), (), False)
    [event] = with_clients([delivered], {"g": members})
    assert event.client_id == (client_id if is_found else None)


def test_a_request_id_that_is_none_names_nobody() -> None:
    members = Members("g", (Member("10.0.0.7@2620#77", "10.0.0.7:1", "JAVA", "5.5.0", ("b",)),), (), False)
    for request_id in (None, "", "00", "not hexadecimal", "00" * 40):
        delivered = TimelineEvent("delivered", 1, "trace", group="g", address=HERE, request_id=request_id)
        assert list(with_clients([delivered], {"g": members})) == [delivered]


def copy(topic: str, stored_at: int, **properties: str) -> Message:
    fields: dict[str, Any] = {"queue": Queue(topic, "b", 0), "queue_offset": 7, "store_host": "b:1"}
    return Message(topic, b"", id=ID, stored_at=stored_at, system_properties=properties, **fields)


def test_copies_in_other_topics_tell_what_happened() -> None:
    events = stored_events(
        [
            copy("t", 1),
            copy("SCHEDULE_TOPIC_XXXX", 2, REAL_TOPIC="%RETRY%g"),
            copy("rmq_sys_wheel_timer", 3, REAL_TOPIC="t", TIMER_OUT_MS="90"),
            copy("rmq_sys_wheel_timer", 4, REAL_TOPIC="t", TIMER_OUT_MS="90", TIMER_ROLL_TIMES="1"),
            copy("rmq_sys_wheel_timer", 5, REAL_TOPIC="t", TIMER_DEL_UNIQKEY=f"t+{ID}"),
            copy("%RETRY%g", 6, REAL_TOPIC="t"),
            copy("%DLQ%g", 7, DLQ_REASON="no stock", DLQ_ERROR_TYPE="LookupError"),
            copy("%RETRY%g", 8, DLQ_RESENT_ID="00"),
        ]
    )
    assert [(event.kind, event.group, event.at_ms) for event in events] == [
        ("stored", None, 1),
        ("returned", "g", 2),
        ("scheduled", None, 3),
        ("recalled", None, 5),
        ("retried", "g", 6),
        ("dead", "g", 7),
        ("resent", "g", 8),
    ]
    assert events[2].due_ms == 90
    assert (events[5].reason, events[5].error_type) == ("no stock", "LookupError")


def test_a_due_time_that_is_none_is_not_known() -> None:
    [event] = stored_events([copy("rmq_sys_wheel_timer", 3, REAL_TOPIC="t", TIMER_OUT_MS="9" * 5000)])
    assert event.due_ms is None


def test_events_of_one_millisecond_have_a_sensible_order() -> None:
    kinds: tuple[Any, ...] = ("dead", "delivered", "stored", "born")
    events = [TimelineEvent(kind, 5, "store") for kind in kinds]
    unknown = TimelineEvent("delivered", None, "trace")
    assert [event.kind for event in ordered([unknown, *events])] == [
        *("born", "stored", "delivered", "dead", "delivered"),
    ]


def test_a_delivery_before_its_message_shows_that_clocks_differ() -> None:
    stored = TimelineEvent("stored", 1000, "store")
    retried = TimelineEvent("retried", 5000, "store", group="g", retries=1)
    on_time = TimelineEvent("delivered", 1000, "trace", group="g", retries=0)
    early = TimelineEvent("delivered", 4000, "trace", group="g", retries=1)
    other = TimelineEvent("delivered", 4000, "trace", group="h", retries=1)
    assert clock_difference_ms([stored, retried, on_time, other]) == 0
    assert clock_difference_ms([stored, retried, on_time, early]) == 1000
