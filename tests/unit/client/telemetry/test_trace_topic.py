"""Entries of the trace topic: their fields, and entries that cannot be sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from metaq import Message, Queue, SendResult, SendStatus
from metaq.client.consumer.subscription import Retry
from metaq.client.message import Outgoing
from metaq.client.session.session import Session
from metaq.client.telemetry import trace_topic
from metaq.client.telemetry.trace_topic import TraceTopic
from metaq.errors import NotSent
from metaq.protocol.commands.messages import EndTransaction
from metaq.protocol.properties import decode_properties

QUEUE = Queue("t", "broker-a", 1)


class Kept(TraceTopic):
    """Keeps messages instead of sending them."""

    def __init__(self, meters: MeterProvider | None = None) -> None:
        super().__init__(Session("127.0.0.1:1", meter_provider=meters))
        self.messages: list[Outgoing] = []
        self.refuses = False
        self._sender.send = self._keep  # type: ignore[method-assign,assignment]

    async def _keep(self, message: Outgoing, timeout_s: float) -> None:
        if self.refuses:
            raise NotSent("nobody is there")
        self.messages.append(message)

    @property
    def lines(self) -> list[list[str]]:
        bodies = "".join(message.body.decode() for message in self.messages)
        return [line.split("\x01") for line in bodies.split("\x02")[:-1]]


def send_all(topic: TraceTopic) -> None:
    async def through() -> None:
        topic.start()
        topic.start()
        await topic.close()
        await topic.close()

    asyncio.run(through())


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "0"),
        ({"TRAN_MSG": "true"}, "1"),
        ({"TIMER_DELAY_MS": "5"}, "3"),
        ({"TIMER_DELIVER_MS": "5"}, "3"),
    ],
)
def test_a_message_that_was_sent(properties: dict[str, str], kind: str) -> None:
    topic = Kept()
    message = Outgoing("t", b"", {"UNIQ_KEY": "ID", "KEYS": "a b", **properties})
    result = SendResult("ID", QUEUE, 7, SendStatus.FLUSH_TIMEOUT, offset_id="OFFSET")
    topic.sent("g", message, result, "host:1", 12, 1000, 3)
    send_all(topic)
    assert topic.lines == [
        [
            *("Pub", "1000", "DefaultRegion", "g", "t", "ID", "null", "a b"),
            *("host:1", "12", "3", kind, "OFFSET", "false"),
        ]
    ]
    assert topic.messages[0].properties["KEYS"] == "ID a b"
    assert topic.messages[0].topic == "RMQ_SYS_TRACE_TOPIC"


@pytest.mark.parametrize(
    ("error", "success", "code"),
    [(None, "true", "0"), (Retry(), "false", "4"), (ValueError("x"), "false", "2")],
)
def test_messages_that_were_processed(error: Exception | None, success: str, code: str) -> None:
    topic = Kept()
    messages = [
        Message("t", b"", keys=("a", "b"), id="1", reconsume_times=2, system_properties={"MSG_REGION": "R"}),
        Message("t", b"", id="2"),
        Message("t", b"", id="3", system_properties={"TRACE_ON": "false"}),
    ]
    request_id = topic.processing("g", messages)
    topic.processed("g", request_id, messages, 0.031, error)
    send_all(topic)
    lines = topic.lines
    assert [line[:1] + line[2:] for line in lines[:2]] == [
        ["SubBefore", "R", "g", request_id, "1", "2", "a b"],
        ["SubBefore", "DefaultRegion", "g", request_id, "2", "0", "null"],
    ]
    assert [line[:7] + line[8:] for line in lines[2:]] == [
        ["SubAfter", request_id, "1", "10", success, "a b", code, "g"],
        ["SubAfter", request_id, "2", "10", success, "null", code, "g"],
    ]
    assert topic.messages[0].properties["KEYS"] == "1 a b 2"


def test_traces_that_are_processed_make_no_further_ones() -> None:
    topic = Kept()
    messages = [Message(topic.name, b"", id="1")]
    topic.processed("g", topic.processing("g", messages), messages, 0.031, None)
    send_all(topic)
    assert topic.lines == []


@pytest.mark.parametrize(
    ("decision", "state"), [(8, "COMMIT_MESSAGE"), (12, "ROLLBACK_MESSAGE"), (0, "UNKNOW")]
)
def test_a_transaction_that_has_ended(decision: int, state: str) -> None:
    topic = Kept()
    command = EndTransaction(
        producer_group="g",
        tran_state_table_offset=1,
        commit_log_offset=2,
        commit_or_rollback=decision,
        msg_id="ID",
        topic="t",
        from_transaction_check=True,
        transaction_id="TX",
    )
    topic.ended_transaction(command, "host:1", {"TAGS": "tag", "KEYS": "k"})
    send_all(topic)
    ((kind, _, *fields),) = topic.lines
    assert [kind, *fields] == [
        *("EndTransaction", "DefaultRegion", "g", "t", "ID", "tag", "k", "host:1", "2", "TX", state, "true")
    ]


def test_a_delayed_message_that_was_recalled() -> None:
    topic = Kept()
    topic.recalled("g", "t", "ID")
    send_all(topic)
    ((kind, _, *fields),) = topic.lines
    assert [kind, *fields] == ["Recall", "DefaultRegion", "g", "t", "ID", "true"]
    assert topic.messages[0].properties["KEYS"] == "ID"


def test_separators_in_a_field_do_no_harm() -> None:
    topic = Kept()
    topic.processing("g\x01\x02", [Message("t", b"", id="1\x022", keys=("a\x01b",))])
    send_all(topic)
    ((*_, group, _, message_id, _, keys),) = topic.lines
    assert (group, message_id, keys) == ("g", "12", "ab")
    assert decode_properties(f"KEYS\x01{topic.messages[0].properties['KEYS']}\x02")["KEYS"] == "12 ab"


def test_entries_are_sent_in_batches_that_a_broker_takes() -> None:
    topic = Kept()
    for number in range(250):
        topic.processing("g", [Message("t", b"", id=f"{number:032}", keys=(f"key-{number}",))])
    topic.processing("g", [Message("t", b"", id="long", keys=tuple(f"k{n:0100}" for n in range(300)))])
    send_all(topic)
    assert len(topic.lines) == 251
    assert topic.dropped == 0
    assert max(len(message.body.split(b"\x02")) - 1 for message in topic.messages) <= 100
    assert all(len(message.properties["KEYS"]) <= 8_000 for message in topic.messages[:-1])


def test_entries_past_the_limit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(trace_topic, "ENTRIES_MAX", 10)
    reader = InMemoryMetricReader()
    topic = Kept(MeterProvider([reader]))
    for number in range(15):
        topic.processing("g", [Message("t", b"", id=f"{number}")])
    assert topic.dropped == 5
    topic.refuses = True
    send_all(topic)
    assert topic.dropped == 15
    assert "15 trace entries were dropped" in caplog.text
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert [point.value for point in metrics["metaq.client.trace.dropped"].data.data_points] == [15]  # type: ignore[union-attr]


def test_a_close_gives_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_topic, "CLOSE_TIMEOUT_S", 0.05)
    topic = Kept()

    async def hang(message: Outgoing, timeout_s: float) -> None:
        await asyncio.sleep(3600)

    topic._sender.send = hang  # type: ignore[method-assign,assignment]
    topic.processing("g", [Message("t", b"", id="1")])
    topic.processing("g", [Message("t", b"", id="2")])
    send_all(topic)
    assert topic.dropped == 2
