"""Rows of brokers that do not answer stay, with their age."""

from __future__ import annotations

from metaq.admin.results import BrokerFailure, Limits, QueueState, Topic, TopicSettings
from metaq.client.session.routes import Queue
from metaq.console.pages.topic_looks import joined


def topic(*brokers: str, failures: tuple[BrokerFailure, ...] = ()) -> Topic:
    return Topic(
        "orders",
        tuple(TopicSettings(name, 1, 1, 6, False, {}, Limits(name, None, None)) for name in brokers),
        tuple(QueueState(Queue("orders", name, 0), 0, 5, 1) for name in brokers),
        failures,
    )


def test_a_broker_that_goes_away_keeps_its_rows_and_comes_back() -> None:
    first = joined(None, topic("a", "b"), (), 1_000)
    assert first.stale_ms == {}
    # Name servers forget a broker at once, so that only the list of topics knows that it is away.
    second = joined(first, topic("b"), ("a",), 2_000)
    assert [state.queue.broker for state in second.queues] == ["a", "b"]
    assert [one.broker for one in second.settings] == ["a", "b"]
    assert second.stale_ms == {"a": 1_000}
    failing = topic("b", failures=(BrokerFailure("a", "refused"),))
    assert joined(second, failing, (), 3_000).stale_ms == {"a": 1_000}
    assert joined(second, topic("a", "b"), ("a",), 4_000).stale_ms == {}


def test_a_broker_that_lost_the_topic_has_no_rows() -> None:
    first = joined(None, topic("a", "b"), (), 1_000)
    assert [one.broker for one in joined(first, topic("b"), (), 2_000).settings] == ["b"]
