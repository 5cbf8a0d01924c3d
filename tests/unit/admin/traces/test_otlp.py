"""A timeline as OTLP JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from metaq import Queue
from metaq.admin import Timeline, TimelineEvent, spans
from metaq.admin.traces.otlp import _OPERATIONS
from metaq.admin.traces.timelines import EVENT_ORDER

ID = "7F0000010A3C18B4AAC2000000010001"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TIMELINE = Timeline(
    id=ID,
    topic="orders",
    tag="T",
    keys=("k1", "k2"),
    type="normal",
    body_bytes=12,
    traceparent=None,
    events=(
        TimelineEvent(
            "born", 1000, "trace", group="shop", address="10.0.0.7:5000", duration_ms=3, result="success"
        ),
        TimelineEvent(
            "stored", 1001, "store", address="b:1", queue=Queue("orders", "broker-a", 2), queue_offset=7
        ),
        TimelineEvent(
            "delivered", 1005, "trace", group="billing", duration_ms=40, result="exception", retries=0
        ),
        TimelineEvent("delivered", 1099, "trace", group="billing", retries=1),
        TimelineEvent("dead", 1100, "store", group="billing", reason="no stock", error_type="LookupError"),
        TimelineEvent("delivered", None, "trace", group="old"),
    ),
    groups=(),
    notes=(),
)


def flat(document: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Returns the service, the span and its attributes."""
    found = []
    for resource in document["resourceSpans"]:
        [service] = resource["resource"]["attributes"]
        [scope] = resource["scopeSpans"]
        assert resource["schemaUrl"] == scope["schemaUrl"] == "https://opentelemetry.io/schemas/1.44.0"
        for span in scope["spans"]:
            found.append((service["value"]["stringValue"], span, plain(span["attributes"])))
    return found


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    def value(encoded: dict[str, Any]) -> Any:
        [(kind, content)] = encoded.items()
        if kind == "arrayValue":
            return [value(one) for one in content["values"]]
        return int(content) if kind == "intValue" else content

    names = [attribute["key"] for attribute in attributes]
    assert len(names) == len(set(names))
    return {attribute["key"]: value(attribute["value"]) for attribute in attributes}


def test_each_event_with_a_time_is_a_span() -> None:
    found = flat(spans(TIMELINE))
    assert [(service, span["name"], span["kind"]) for service, span, _ in found] == [
        ("shop", "send orders", 4),
        ("broker-a", "store orders", 1),
        ("billing", "process orders", 5),
        ("billing", "process orders", 5),
        ("unknown_service", "dead_letter orders", 1),
    ]
    (_, send, sent), (_, _, stored), (_, process, processed), (_, _, running), (_, died, dead) = found
    assert (send["startTimeUnixNano"], send["endTimeUnixNano"]) == ("1000000000", "1003000000")
    assert {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": ID,
        "messaging.message.body.size": 12,
        "messaging.rocketmq.message.tag": "T",
        "messaging.rocketmq.message.keys": ["k1", "k2"],
        "messaging.rocketmq.message.type": "normal",
        "client.address": "10.0.0.7",
        "client.port": 5000,
    }.items() <= sent.items()
    assert (stored["messaging.destination.partition.id"], stored["metaq.message.queue_offset"]) == ("2", 7)
    assert (processed["messaging.consumer.group.name"], processed["error.type"]) == ("billing", "exception")
    assert process["status"] == {"code": 2, "message": "exception"}
    assert running["metaq.is_unfinished"] is True
    assert (dead["error.type"], died["status"]["message"]) == ("LookupError", "no stock")


def test_ids_come_from_the_message() -> None:
    found = [span for _, span, _ in flat(spans(TIMELINE))]
    [trace_id] = {span["traceId"] for span in found}
    assert len(trace_id) == 32
    assert len({span["spanId"] for span in found}) == len(found)
    assert all(len(span["spanId"]) == 16 for span in found)
    assert "parentSpanId" not in found[0]
    assert {span["parentSpanId"] for span in found[1:]} == {found[0]["spanId"]}
    assert spans(TIMELINE) == spans(TIMELINE)
    other = flat(spans(replace(TIMELINE, id=ID[:-1] + "2")))
    assert other[0][1]["traceId"] != trace_id


def test_the_context_that_the_message_carries_is_used() -> None:
    found = [span for _, span, _ in flat(spans(replace(TIMELINE, traceparent=TRACEPARENT)))]
    assert {span["traceId"] for span in found} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert {span["parentSpanId"] for span in found} == {"00f067aa0ba902b7"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        TRACEPARENT.upper(),
        f"ff{TRACEPARENT[2:]}",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
def test_a_context_that_is_not_valid_is_ignored(text: str) -> None:
    assert spans(replace(TIMELINE, traceparent=text)) == spans(TIMELINE)


def test_every_kind_of_event_has_a_name_and_json_can_hold_it() -> None:
    assert set(_OPERATIONS) == set(EVENT_ORDER)
    events = tuple(TimelineEvent(kind, 1, "store", address="[::1]:1") for kind in EVENT_ORDER)
    document = spans(replace(TIMELINE, events=events, topic=None, tag=None, keys=()))
    assert json.loads(json.dumps(document)) == document
    assert len(flat(document)) == len(EVENT_ORDER)
