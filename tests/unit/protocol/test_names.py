"""Names of topics, groups and clients."""

from __future__ import annotations

import pytest

from metaq.protocol import names


@pytest.mark.parametrize("name", ["T", "a-b_c|d%e", "%RETRY%" + "g" * 248, "x" * 127])
def test_well_formed_topics(name: str) -> None:
    assert names.topic_fault(name) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("x" * 128, "128 characters, the limit is 127"),
        ("%RETRY%" + "g" * 249, "the limit is 255"),
        ("a b", "other than letters"),
        ("ü", "other than letters"),
        ("a/../b", "other than letters"),
        ("a\n", "other than letters"),
        ("a@b", "other than letters"),
    ],
)
def test_malformed_topics_are_told_which_limit(name: str, says: str) -> None:
    fault = names.topic_fault(name)
    assert fault is not None
    assert says in fault
    assert len(fault) < 200 and fault.isprintable()


def test_groups_are_shorter_than_topics() -> None:
    assert names.group_fault("g" * 120) is None
    assert "the limit is 120" in (names.group_fault("g" * 121) or "")
    assert "blank" in (names.group_fault("") or "")


def test_client_ids() -> None:
    assert names.client_id_fault("10.0.0.1@4711#1#é") is None
    assert names.client_id_fault("") is not None
    assert "512" in (names.client_id_fault("x" * 513) or "")


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102", "rmq_sys_new"],
)
def test_the_brokers_own_topics_take_no_clients_messages(topic: str) -> None:
    assert not names.is_client_writable(topic)


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "BenchmarkTest", "%RETRY%g", "%DLQ%g", "orders"])
def test_clients_write_to_these(topic: str) -> None:
    assert names.is_client_writable(topic)


def test_retry_and_dead_letter_topics_know_their_group() -> None:
    assert names.group_of(names.retry_topic("g")) == "g"
    assert names.group_of(names.dead_letter_topic("g")) == "g"
    assert names.group_of("orders") is None
