"""A timeline as OpenTelemetry spans, in the JSON encoding of OTLP. Nothing is sent.

Each event that has a time is one span. Names and attributes follow the semantic conventions for messaging in
the version of `SCHEMA_URL`, because later versions may change them. Ids come from the message, so the same
event always has the same span id.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from metaq import __version__
from metaq.admin.traces.timelines import EventKind, Timeline, TimelineEvent

CONVENTIONS_VERSION: Final = "1.44.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{CONVENTIONS_VERSION}"

_INTERNAL, _CLIENT, _PRODUCER, _CONSUMER = 1, 3, 4, 5
"""Kinds of spans, as numbered by OTLP."""
_ERROR: Final = 2
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_OPERATIONS: Final[dict[EventKind, tuple[str, str | None, int]]] = {
    "born": ("send", "send", _PRODUCER),
    "scheduled": ("schedule", None, _INTERNAL),
    "stored": ("store", None, _INTERNAL),
    "committed": ("commit", "settle", _CLIENT),
    "rolled-back": ("rollback", "settle", _CLIENT),
    "undecided": ("decide_later", "settle", _CLIENT),
    "recalled": ("recall", None, _CLIENT),
    "delivered": ("process", "process", _CONSUMER),
    "returned": ("return", "settle", _INTERNAL),
    "retried": ("retry", None, _INTERNAL),
    "dead": ("dead_letter", "settle", _INTERNAL),
    "resent": ("resend", None, _INTERNAL),
}
"""Names and types of the operations, and the kinds of their spans. The conventions have few types."""
_FROM_PRODUCER: Final = ("born", "committed", "rolled-back", "undecided", "recalled")

Json = dict[str, Any]


def spans(timeline: Timeline) -> Json:
    """Returns the events of a timeline as the `TracesData` of OTLP, ready to be written as JSON.

    If the message carries a `traceparent`, the spans belong to its trace. Otherwise the trace id comes from
    the id of the message.
    """
    trace_id, parent_id = _context(timeline)
    services: dict[str, list[Json]] = {}
    for number, event in enumerate(timeline.events):
        if event.at_ms is None:
            continue
        span = _span(timeline, event, trace_id, _digest(f"{trace_id}/{number}/{_identity(event)}", 8))
        if parent_id is not None:
            span["parentSpanId"] = parent_id
        elif event.kind == "born":
            # The first send is the parent of all later events.
            parent_id = span["spanId"]
        services.setdefault(_service(event), []).append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": service})},
                "scopeSpans": [
                    {
                        "scope": {"name": "metaq.admin", "version": __version__},
                        "spans": found,
                        "schemaUrl": SCHEMA_URL,
                    }
                ],
                "schemaUrl": SCHEMA_URL,
            }
            for service, found in services.items()
        ]
    }


def _context(timeline: Timeline) -> tuple[str, str | None]:
    """Returns the trace id, and the span id of the parent if the message carries one."""
    found = _TRACEPARENT.fullmatch(timeline.traceparent or "")
    if found is not None and int(found[1], 16) and int(found[2], 16):
        return found[1], found[2]
    return _digest(f"rocketmq/{timeline.id}", 16), None


def _digest(text: str, size_bytes: int) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[: 2 * size_bytes]


def _identity(event: TimelineEvent) -> str:
    return f"{event.kind}/{event.at_ms}/{event.group}/{event.request_id}/{event.offset_id}"


def _service(event: TimelineEvent) -> str:
    if event.kind == "delivered" or event.kind in _FROM_PRODUCER:
        return event.group or "unknown_service"
    return event.queue.broker if event.queue is not None else "unknown_service"


def _span(timeline: Timeline, event: TimelineEvent, trace_id: str, span_id: str) -> Json:
    name, operation_type, kind = _OPERATIONS[event.kind]
    topic = timeline.topic or "unknown"
    begin_ms = event.at_ms or 0
    span: Json = {
        "traceId": trace_id,
        "spanId": span_id,
        "name": f"{name} {topic}",
        "kind": kind,
        "startTimeUnixNano": str(begin_ms * 1_000_000),
        "endTimeUnixNano": str((begin_ms + (event.duration_ms or 0)) * 1_000_000),
    }
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": operation_type,
        "messaging.destination.name": timeline.topic,
        "messaging.message.id": timeline.id,
        "messaging.message.body.size": timeline.body_bytes,
        "messaging.rocketmq.message.type": timeline.type,
        "messaging.rocketmq.message.tag": timeline.tag,
        "messaging.rocketmq.message.keys": timeline.keys or None,
        **_details(event),
    }
    error = _error(event)
    if error is not None:
        attributes["error.type"] = event.error_type or error
        span["status"] = {"code": _ERROR, "message": event.reason or error}
    span["attributes"] = _attributes(attributes)
    return span


def _details(event: TimelineEvent) -> dict[str, object]:
    is_producer = event.kind in _FROM_PRODUCER
    host, port = _endpoint(event.address)
    is_client = is_producer or event.kind == "delivered"
    has_no_end = event.kind == "delivered" and event.result is None
    return {
        "messaging.client.id": event.client_id,
        "messaging.consumer.group.name": None if is_producer else event.group,
        "messaging.destination.partition.id": str(event.queue.id) if event.queue is not None else None,
        "messaging.rocketmq.message.delivery_timestamp": event.due_ms,
        "client.address" if is_client else "server.address": host,
        "client.port" if is_client else "server.port": port,
        "metaq.event": event.kind,
        "metaq.source": event.source,
        "metaq.producer.group": event.group if is_producer else None,
        "metaq.message.queue_offset": event.queue_offset,
        "metaq.message.offset_id": event.offset_id,
        "metaq.message.retries": event.retries,
        "metaq.result": event.result,
        "metaq.is_unfinished": True if has_no_end else None,
    }


def _error(event: TimelineEvent) -> str | None:
    if event.kind == "dead":
        return "dead_letter"
    return event.result if event.result not in (None, "success") else None


def _endpoint(address: str | None) -> tuple[str | None, int | None]:
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isascii() and port.isdigit() and len(port) <= 5:
        return host, int(port)
    return address or None, None


def _attributes(values: dict[str, object]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: object) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}
