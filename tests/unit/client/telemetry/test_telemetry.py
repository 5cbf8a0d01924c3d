"""Providers that exist, come later or never come; failing exporters; and the loggers."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider

import metaq
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import Outgoing, outgoing
from metaq.client.session.session import Session
from metaq.client.stderr_fallback import OnceOnStderr
from metaq.client.telemetry import tracing
from metaq.client.telemetry.telemetry import NOTHING, Telemetry
from metaq.errors import NotSent, UsageError

PYTHON = (sys.executable, "-W", "error", "-c")


def silent(**providers: object) -> Telemetry:
    session = Session("127.0.0.1:1")
    return Telemetry("client", session.routes, **providers)  # type: ignore[arg-type]


def message() -> Outgoing:
    return outgoing("t", b"x", "ID")


@pytest.mark.parametrize(
    "providers", [{}, {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider()}]
)
def test_nothing_is_made_where_nobody_listens(providers: dict[str, object]) -> None:
    quiet, one = silent(**providers), message()
    before = dict(one.properties)
    assert quiet.sending("g", [one]) is NOTHING
    assert quiet.sending_later("g", one) is NOTHING
    assert quiet.processing(None, []) is NOTHING  # type: ignore[arg-type]
    assert one.properties == before
    assert quiet.spans is quiet.instruments is None


def test_a_global_provider_may_come_later() -> None:
    # In a process of its own, because a global provider of OpenTelemetry cannot be replaced.
    program = """
import asyncio
from metaq.client.session.session import Session
async def main():
    session = Session("127.0.0.1:1", heartbeat_interval_s=0.001)
    client = session.telemetry
    assert not client.is_heard
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
    await session.start()
    assert client.is_heard and client.spans is not None and client.instruments is None
    metrics.set_meter_provider(MeterProvider())
    async with asyncio.timeout(60):
        while client.instruments is None:
            await asyncio.sleep(0.001)
    await session.close()
asyncio.run(main())
"""
    subprocess.run([*PYTHON, program], check=True, timeout=60)


@pytest.mark.parametrize("outcome", ["stored", "failed", "cancelled"])
def test_a_buffered_message_is_reported_when_it_is_done(outcome: str) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    client = silent(tracer_provider=tracers)
    future: Future[metaq.SendResult] = Future()
    with client.sending_later("g", message()) as sending:
        sending.follow(future)
    assert not exporter.get_finished_spans()
    if outcome == "stored":
        queue = metaq.Queue("t", "b", 3)
        future.set_result(metaq.SendResult("ID", queue, 7, metaq.SendStatus.STORED))
    elif outcome == "failed":
        future.set_exception(NotSent("no"))
    else:
        assert future.cancel()
    (span,) = exporter.get_finished_spans()
    attributes = span.attributes or {}
    if outcome == "stored":
        assert attributes["messaging.destination.partition.id"] == "3"
        assert "error.type" not in attributes
    else:
        kinds = {"failed": "metaq.errors.NotSent", "cancelled": "concurrent.futures._base.CancelledError"}
        assert attributes["error.type"] == kinds[outcome]


def test_a_message_that_is_not_accepted_is_an_error_at_once() -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.raises(NotSent), silent(tracer_provider=tracers).sending_later("g", message()):
        raise NotSent("the buffer is full")
    (span,) = exporter.get_finished_spans()
    assert span.status.description == "the buffer is full"


class Broken:
    """Spans, instruments or a trace topic whose calls all fail."""

    name = "trace"

    def __getattr__(self, name: str) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise RuntimeError(f"{name} failed")

        return fail


@pytest.mark.parametrize("part", ["spans", "instruments", "trace_topic"])
def test_telemetry_that_fails_harms_nobody(part: str, caplog: pytest.LogCaptureFixture) -> None:
    client = silent()
    setattr(client, part, Broken())
    client.is_heard = True
    options = ConsumerOptions("g", (Subscription.of("t"),))
    received = metaq.Message("t", b"x")
    with client.sending("g", [message()]) as sending:
        sending.stored([metaq.SendResult("ID", metaq.Queue("t", "b", 3), 7, metaq.SendStatus.STORED)])
    with pytest.raises(NotSent), client.sending_later("g", message()):
        raise NotSent("the buffer is full")
    with client.processing(options, [received]):
        pass
    with pytest.raises(KeyError), client.processing(options, [received]):
        raise KeyError
    client.consumed("g", [received])
    client.received("g", [received], 0)
    client.retried("g", received, "local")
    client.dead_lettered("g", received)
    client.trace_dropped(1)
    client.ended_transaction(None, "b", {})  # type: ignore[arg-type]
    assert "failed" in caplog.text


def test_a_context_that_a_message_has_stays() -> None:
    spans = tracing.Spans(TracerProvider().get_tracer("test"), "client")
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    one = outgoing("t", b"x", "ID", properties={"traceparent": given})
    spans.create(one)
    spans.send([one]).end()
    assert one.properties["traceparent"] == given


def test_a_context_gives_way_to_the_properties_of_a_message() -> None:
    spans = tracing.Spans(TracerProvider().get_tracer("test"), "client")
    one = outgoing("t", b"x", "ID", properties={"p": "v" * 32_700})
    spans.send([one]).end()
    assert "traceparent" not in one.properties
    small = outgoing("t", b"x", "ID")
    spans.send([small]).end()
    assert tracing.span_context(small.properties).is_valid


def test_a_context_leaves_room_for_what_a_broker_adds() -> None:
    spans = tracing.Spans(TracerProvider().get_tracer("test"), "client")
    one = outgoing("t", b"x", "ID", properties={"p": "v" * 32_500})
    spans.send([one]).end()
    assert "traceparent" not in one.properties


def test_a_message_is_created_once_also_where_it_has_no_room_for_a_context() -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    client = silent(tracer_provider=tracers)
    many = [outgoing("t", b"x", "ID", properties={"p": "v" * 32_700}) for _ in range(2)]
    client.created(many)
    with client.sending("g", many):
        pass
    assert [span.name for span in exporter.get_finished_spans()] == ["create t", "create t", "send t"]


def test_a_trace_topic_needs_a_name() -> None:
    for kind in (metaq.Client, metaq.aio.Client):
        with pytest.raises(UsageError):
            kind(trace_topic="no topic")


def test_loggers_are_silent_by_default() -> None:
    program = """
import logging, sys
import metaq
if sys.argv[1:]:
    logging.basicConfig(format="%(name)s %(message)s")
import metaq.client.telemetry.trace_topic as module
module._log.warning("something")
"""
    quiet = subprocess.run([*PYTHON, program], capture_output=True, text=True, check=True, timeout=60)
    assert quiet.stderr == ""
    loud = subprocess.run([*PYTHON, program, "x"], capture_output=True, text=True, check=True, timeout=60)
    assert loud.stderr == "metaq.client.telemetry.trace_topic something\n"


def test_every_logger_is_below_metaq() -> None:
    assert any(isinstance(handler, OnceOnStderr) for handler in logging.getLogger("metaq").handlers)
    names = [name for name in logging.root.manager.loggerDict if "metaq" in name]
    assert names
    assert all(name == "metaq" or name.startswith("metaq.") for name in names)
