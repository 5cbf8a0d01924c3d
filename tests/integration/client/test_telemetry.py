"""Spans and metrics of both faces, collected by OpenTelemetry's SDK, and entries of the trace topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from metaq import Message, MetaqError, Queue, Reject, Retry
from metaq.client.telemetry.tracing import span_context
from tests.integration.client.conftest import Served
from tests.support.clients import Face, create_topic
from tests.support.reading import stored
from tests.support.waiting import run, until


class Telemetry:
    """The telemetry of one client."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def points(self, name: str, topic: str | None = None) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert isinstance(data, MetricsData)
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if topic in (None, point.attributes.get("messaging.destination.name"))
        ]

    def count(self, name: str, topic: str) -> int:
        return sum(point.value for point in self.points(name, topic))


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


@asynccontextmanager
async def connected(face: Face, served: Served, telemetry: Telemetry, **options: Any) -> Any:
    client = face.client(
        served.nameserver, tracer_provider=telemetry.tracers, meter_provider=telemetry.meters, **options
    )
    await face.call(client.start)
    try:
        yield client
    finally:
        await face.call(client.close, 60)


def of(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def test_a_trace_goes_from_the_sender_to_the_handler(
    face: Face, served: Served, telemetry: Telemetry
) -> None:
    topic = f"traced-{face.name}"
    seen: list[tuple[Message, SpanContext]] = []

    def handle(message: Message) -> None:
        seen.append((message, trace.get_current_span().get_span_context()))

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served, telemetry) as client:
            client.consumer(topic, group=f"{topic}-group", start="earliest")(face.handler(handle))
            producer = client.producer("traced")
            await face.call(producer.start)
            with telemetry.tracers.get_tracer("test").start_as_current_span("order"):
                await face.call(producer.send, topic, b"1", tag="t", keys=["k1", "k2"])
            await until(lambda: len(telemetry.spans(f"process {topic}")) == 1)

    run(scenario)
    ((message, current),) = seen
    send, process = telemetry.span(f"send {topic}"), telemetry.span(f"process {topic}")
    assert send.kind is SpanKind.PRODUCER
    assert send.parent is not None
    assert send.parent.span_id == of(telemetry.span("order")).span_id
    assert span_context(message.properties).span_id == of(send).span_id
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is not None
    assert process.parent.span_id == of(send).span_id
    assert of(process).trace_id == of(send).trace_id
    assert current == of(process), "the handler's span is the current one, in its thread too"

    attributes = dict(send.attributes or {})
    address, _, port = served.broker.rpartition(":")
    assert attributes.pop("messaging.client.id") == process.attributes["messaging.client.id"]  # type: ignore[index]
    assert attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.message.id": message.id,
        "messaging.rocketmq.message.tag": "t",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "server.address": address,
        "server.port": int(port),
    }
    consumed = process.attributes or {}
    assert consumed["messaging.consumer.group.name"] == f"{topic}-group"
    assert consumed["messaging.rocketmq.consumption_model"] == "clustering"
    assert consumed["messaging.message.id"] == message.id
    for name in ("messaging.client.sent.messages", "messaging.client.consumed.messages"):
        assert telemetry.count(name, topic) == 1
    assert telemetry.count("metaq.client.processed.messages", topic) == 1
    for name in ("messaging.client.operation.duration", "messaging.process.duration"):
        (point,) = telemetry.points(name, topic)
        assert point.count == 1
        assert 0 < point.sum < 60


def test_each_message_of_a_batch_has_its_own_context(
    face: Face, served: Served, telemetry: Telemetry
) -> None:
    topic = f"together-{face.name}"

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served, telemetry) as client:
            producer = client.producer("together", linger=60)
            await face.call(producer.start)
            tracer = telemetry.tracers.get_tracer("test")
            for number in range(3):
                with tracer.start_as_current_span(f"caller {number}"):
                    await face.call(producer.send_soon, topic, b"%d" % number)
            sizes = {
                p.attributes["metaq.buffer"]: p.value for p in telemetry.points("metaq.client.buffer.size")
            }
            assert sizes["send"] > 3
            await face.call(producer.flush)
            await until(lambda: len(telemetry.spans(f"send {topic}")) == 3)
            await face.call(producer.send_many, [Message(topic, b"3"), Message(topic, b"4")])
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            await until_polled(face, puller, 5)
            assert {p.value for p in telemetry.points("metaq.client.buffer.size")} == {0}

    run(scenario)
    spans = telemetry.spans(f"send {topic}")
    soon = sorted((span for span in spans if span.kind is SpanKind.PRODUCER), key=lambda s: s.start_time or 0)
    callers = [of(telemetry.span(f"caller {number}")) for number in range(3)]
    assert [span.parent.span_id for span in soon if span.parent] == [c.span_id for c in callers]
    created = telemetry.spans(f"create {topic}")
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    messages = sorted(stored(served.nameserver, topic), key=lambda message: message.body)
    assert [span_context(message.properties).span_id for message in messages] == [
        of(span).span_id for span in (*soon, *created)
    ]
    (request,) = (span for span in spans if span.kind is SpanKind.CLIENT)
    assert [link.context.span_id for link in request.links] == [of(span).span_id for span in created]
    assert request.attributes is not None
    assert request.attributes["messaging.batch.message_count"] == 2
    assert telemetry.count("messaging.client.sent.messages", topic) == 5
    assert telemetry.count("messaging.client.consumed.messages", topic) == 5
    received = telemetry.spans(f"receive {topic}")
    assert {span.kind for span in received} == {SpanKind.CLIENT}
    assert sum(len(span.links) for span in received) == 5


async def until_polled(face: Face, puller: Any, count: int) -> None:
    found = 0
    while found < count:
        found += len(await face.call(puller.poll, 60))


def test_failures_are_told(face: Face, served: Served, telemetry: Telemetry) -> None:
    topic = f"failing-{face.name}"
    group = f"{topic}-group"
    outcomes: dict[bytes, Exception] = {
        b"retry": Retry(after=3600),
        b"reject": Reject(),
        b"error": KeyError("x"),
    }

    def handle(message: Message) -> None:
        raise outcomes[message.body]

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served, telemetry) as client:
            client.consumer(topic, group=group, start="earliest")(face.handler(handle))
            producer = client.producer("failing")
            await face.call(producer.start)
            for body in outcomes:
                await face.call(producer.send, topic, body)
            await until(lambda: telemetry.count("metaq.client.retried.messages", topic) == 2)
            await until(lambda: telemetry.count("metaq.client.dead_lettered.messages", topic) == 1)
            with pytest.raises(MetaqError):
                await face.call(producer.send, topic, b"x", queue=Queue(topic, "broker-a", 99))

    run(scenario)
    processed = telemetry.spans(f"process {topic}")
    assert {span.status.status_code for span in processed} == {StatusCode.ERROR}
    errors = {(span.attributes or {})["error.type"] for span in processed}
    assert errors == {
        "KeyError",
        "metaq.client.consumer.subscription.Retry",
        "metaq.client.consumer.subscription.Reject",
    }
    assert all(
        point.attributes["error.type"] in errors
        for point in telemetry.points("metaq.client.processed.messages", topic)
    )
    *_, failed = telemetry.spans(f"send {topic}")
    assert failed.status.status_code is StatusCode.ERROR
    counts = {
        point.attributes.get("error.type"): point.value
        for point in telemetry.points("messaging.client.sent.messages", topic)
    }
    assert counts == {None: 3, (failed.attributes or {})["error.type"]: 1}


def test_a_batch_links_to_each_of_its_messages_and_a_block_is_processing(
    face: Face, served: Served, telemetry: Telemetry
) -> None:
    topic, done = f"batched-{face.name}", threading.Event()
    taken: list[Message] = []

    def handle(messages: list[Message]) -> None:
        taken.extend(messages)
        if len(taken) == 4:
            done.set()

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served, telemetry) as client:
            producer = client.producer("batched")
            await face.call(producer.start)
            await face.call(producer.send_many, [Message(topic, b"%d" % number) for number in range(4)])
            batched = client.consumer(topic, group=f"{topic}-group", start="earliest", batch=4)
            consumer = batched(face.handler(handle))
            await until(done.is_set)
            await face.call(consumer.close)
            before = len(telemetry.spans(f"process {topic}"))
            subscribed = client.subscribe(topic, group=f"{topic}-again", start="earliest")
            message = await face.take(subscribed)
            await face.process(message, lambda: None)
            assert len(telemetry.spans(f"process {topic}")) == before + 1
            await face.call(subscribed.close)

    run(scenario)
    *handled, block = telemetry.spans(f"process {topic}")
    links = [link.context for span in handled for link in span.links]
    carried = [span_context(message.properties) for message in taken]
    assert [context.span_id for context in links] == [c.span_id for c in carried] or len(handled) > 1
    assert block.parent is not None
    assert block.parent.span_id == carried[0].span_id
    assert telemetry.count("messaging.client.consumed.messages", topic) == 4 + 1


def test_many_are_divided_by_what_they_take_with_their_contexts(
    face: Face, served: Served, telemetry: Telemetry
) -> None:
    topic = f"divided-{face.name}"
    # Without trace contexts, both would just fit into one request.
    many = [Message(topic, bytes(2 * 1024 * 1024 - 100)) for _ in range(2)]

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served, telemetry) as client:
            producer = client.producer("divided")
            await face.call(producer.start)
            assert len(await face.call(producer.send_many, many)) == 2

    run(scenario)
    assert len(telemetry.spans(f"create {topic}")) == len(telemetry.spans(f"send {topic}")) == 2


def test_the_trace_topic_has_an_entry_for_every_step(face: Face, served: Served) -> None:
    topic = f"trace-topic-{face.name}"
    trace_topic = f"trace-of-{face.name}"

    ids: list[str] = []
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.body)
        if message.body == b"bad":
            raise Reject

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        client = face.client(served.nameserver, trace_topic=trace_topic)
        await face.call(client.start)
        producer = client.producer("tracing")
        await face.call(producer.start)
        good = await face.call(producer.send, topic, b"good", tag="t", keys=["k1", "k2"])
        results = await face.call(producer.send_many, [Message(topic, b"bad"), Message(topic, b"later")])
        ids.extend([good.id, *(result.id for result in results)])
        client.consumer(topic, group=f"{topic}-group", start="earliest")(face.handler(handle))
        await until(lambda: len(handled) == 3)
        await face.call(client.close)

    run(scenario)
    found = entries(served, trace_topic)
    by_kind = {
        kind: [entry for entry in found if entry[0] == kind] for kind in ("Pub", "SubBefore", "SubAfter")
    }
    assert sum(map(len, by_kind.values())) == len(found) == 9
    # Entries that are sent separately may go to different queues.
    published = {entry[5]: entry for entry in by_kind["Pub"]}
    assert published.keys() == set(ids) and len(by_kind["Pub"]) == len(ids)
    first = published[ids[0]]
    assert first[2:5] == ["DefaultRegion", "tracing", topic]
    assert first[6:10] == ["t", "k1 k2", served.broker, "4"]
    assert first[-1] == "true"
    assert published[ids[1]][6:8] == ["null", "null"]
    assert {entry[5] for entry in by_kind["SubBefore"]} == set(ids)
    assert {entry[4] for entry in by_kind["SubBefore"]} == {entry[1] for entry in by_kind["SubAfter"]}
    outcomes = {entry[2]: (entry[4], entry[6], entry[8]) for entry in by_kind["SubAfter"]}
    group = f"{topic}-group"
    assert outcomes == dict(
        zip(ids, [("true", "0", group), ("false", "4", group), ("true", "0", group)], strict=True)
    )
    keys = {key for message in stored(served.nameserver, trace_topic) for key in message.keys}
    assert keys == {*ids, "k1", "k2"}


def entries(served: Served, topic: str) -> list[list[str]]:
    bodies = (message.body.decode() for message in stored(served.nameserver, topic))
    return [line.split("\x01") for body in bodies for line in body.split("\x02")[:-1]]
