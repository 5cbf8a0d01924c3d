"""Telemetry of a client: spans, metrics and, if enabled, entries of RocketMQ's trace topic.

If nobody listens, it makes no span, no attribute and no entry, and costs one look at `is_heard`. It looks for
OpenTelemetry providers from time to time, so you may also set them after you made the client. A failure of
telemetry is logged and never disturbs a message.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, Self

from opentelemetry import metrics as otel_metrics
from opentelemetry import trace as otel_trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, TracerProvider

from metaq import __version__
from metaq.client.clock import now_ms
from metaq.client.telemetry.metrics import Buffer, Buffers, Instruments, instruments
from metaq.client.telemetry.tracing import Spans, end
from metaq.errors import NotDurable

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.message import Message, Outgoing
    from metaq.client.producer.results import SendResult
    from metaq.client.session.routes import Routes
    from metaq.client.telemetry.trace_topic import TraceTopic
    from metaq.protocol.commands.messages import EndTransaction

_log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")


def _harmless(report: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Logs exceptions, because a failing exporter or propagator must not fail a send or a handler."""

    @functools.wraps(report)
    def guarded(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        try:
            report(*arguments, **named)
        except Exception:
            _log.exception("telemetry failed")

    return guarded


class Telemetry:
    """The telemetry of one client, which uses its routes to find addresses."""

    def __init__(
        self,
        client_id: str,
        routes: Routes,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Without a provider it uses the global one, as soon as there is one."""
        self._client_id = client_id
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._buffers = Buffers(client_id)
        self.routes = routes
        self.spans: Spans | None = None
        self.instruments: Instruments | None = None
        self.trace_topic: TraceTopic | None = None
        self.is_heard = False
        """Whether anybody listens."""
        self.look()

    def trace_to(self, trace_topic: TraceTopic) -> None:
        """Writes trace entries to that topic from now on."""
        self.trace_topic = trace_topic
        self.is_heard = True

    @_harmless
    def look(self) -> None:
        """Looks for providers that were set since the last look."""
        if self.spans is None:
            tracers = self._tracer_provider or otel_trace.get_tracer_provider()
            if _is_real(tracers):
                self.spans = Spans(tracers.get_tracer("metaq", __version__), self._client_id)
        if self.instruments is None:
            meters = self._meter_provider or otel_metrics.get_meter_provider()
            if _is_real(meters):
                self.instruments = instruments(meters, __version__)
                self.instruments.watch(self._buffers)
        listeners = (self.spans, self.instruments, self.trace_topic)
        self.is_heard = any(listener is not None for listener in listeners)

    def watch_buffer(self, kind: str, buffer: Buffer) -> None:
        """Reports the size of a buffer as long as it is in use."""
        self._buffers.add(kind, buffer)

    # Sending

    def sending(self, group: str, messages: Sequence[Outgoing]) -> Sending | Nothing:
        """Surrounds one request. Enter it before the messages are encoded, because it may add properties."""
        if not self.is_heard:
            return NOTHING
        if self.trace_topic is not None and messages[0].topic == self.trace_topic.name:
            return NOTHING
        return Sending(self, group, messages)

    @_harmless
    def created(self, messages: Sequence[Outgoing]) -> None:
        """Adds spans to many messages. Call it before they are divided by size, as spans make them larger."""
        if self.spans is not None and len(messages) > 1:
            for message in messages:
                self.spans.create(message)

    def sending_later(self, group: str, message: Outgoing) -> Sending | Nothing:
        """Surrounds the put of one message into the buffer, and follows its future to the end."""
        return Sending(self, group, (message,)) if self.is_heard else NOTHING

    @_harmless
    def ended_transaction(self, command: EndTransaction, broker: str, properties: Mapping[str, str]) -> None:
        """Reports the end of a transaction; `properties` are those of its message."""
        if self.trace_topic is not None:
            address = self.routes.address(broker) or broker
            self.trace_topic.ended_transaction(command, address, properties)

    @_harmless
    def recalled(self, group: str, topic: str, message_id: str) -> None:
        """Reports that a delayed message was cancelled."""
        if self.trace_topic is not None:
            self.trace_topic.recalled(group, topic, message_id)

    # Consuming

    def processing(self, options: ConsumerOptions, messages: Sequence[Message]) -> Processing | Nothing:
        """Surrounds the user's processing of a message, or of a batch of one topic."""
        return Processing(self, options, messages) if self.is_heard else NOTHING

    @_harmless
    def received(self, group: str | None, messages: Sequence[Message], started_ns: int) -> None:
        """Reports messages that a caller received, and when it started to ask for them."""
        if messages and self.is_heard:
            if self.spans is not None:
                self.spans.received(group, messages, started_ns)
            self.consumed(group, messages)

    def consumed(self, group: str | None, messages: Sequence[Message]) -> None:
        """Counts messages that the user gets."""
        # This runs for every message, so it must be cheap if nobody listens.
        if self.instruments is not None:
            self._count_consumed(self.instruments, group, messages)

    @_harmless
    def _count_consumed(
        self, instruments: Instruments, group: str | None, messages: Sequence[Message]
    ) -> None:
        for topic in {message.topic for message in messages}:
            count = sum(message.topic == topic for message in messages)
            instruments.consumed(topic, group, count)

    @_harmless
    def retried(self, group: str, message: Message, by: str) -> None:
        if self.instruments is not None:
            self.instruments.retried(message.topic, group, by)

    @_harmless
    def dead_lettered(self, group: str, message: Message) -> None:
        if self.instruments is not None:
            self.instruments.dead_lettered(message.topic, group)

    @_harmless
    def trace_dropped(self, count: int) -> None:
        if self.instruments is not None:
            self.instruments.trace_dropped(count)


class Nothing:
    """Surrounds what nobody listens to."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stored(self, results: Sequence[SendResult]) -> None:
        pass

    def follow(self, future: SendFuture) -> None:
        pass


NOTHING: Final = Nothing()


class SendFuture(Protocol):
    """A future of asyncio, of threads or of the data plane."""

    def add_done_callback(self, function: Callable[[Any], object], /) -> Any: ...


class Sending:
    """Messages of one request while they are being sent."""

    def __init__(self, telemetry: Telemetry, group: str, messages: Sequence[Outgoing]) -> None:
        self._telemetry = telemetry
        self._group = group
        self._messages = messages
        self._results: Sequence[SendResult] = ()
        self._is_followed = False
        # The sizes before compression.
        self._body_sizes = [len(message.body) for message in messages]
        self._span: Span | None = None

    def __enter__(self) -> Self:
        self._started_ms = now_ms()
        self._started = time.perf_counter()
        self._begin()
        return self

    @_harmless
    def _begin(self) -> None:
        if self._telemetry.spans is not None:
            self._span = self._telemetry.spans.send(self._messages)

    def stored(self, results: Sequence[SendResult]) -> None:
        self._results = results

    def follow(self, future: SendFuture) -> None:
        """Ends the report when the future is done, in any thread, and not with the block."""
        self._is_followed = True
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        error: BaseException | None = None
        try:
            self._results = (future.result(),)
        except BaseException as problem:  # The owner of the future gets it too.
            error = problem
        self._end(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_followed:
            self._end(error)

    @_harmless
    def _end(self, error: BaseException | None) -> None:
        seconds = time.perf_counter() - self._started
        telemetry = self._telemetry
        topic = self._messages[0].topic
        results = [error.result] if isinstance(error, NotDurable) else self._results
        queue = results[0].queue if results else None
        address = None if queue is None else telemetry.routes.address(queue.broker)
        if telemetry.instruments is not None:
            telemetry.instruments.sent(topic, len(self._messages), seconds, error)
        if self._span is not None:
            end(self._span, error, queue, address)
        if telemetry.trace_topic is not None:
            cost_ms = int(seconds * 1000)
            for message, size_bytes, result in zip(self._messages, self._body_sizes, results, strict=False):
                telemetry.trace_topic.sent(
                    self._group, message, result, address, size_bytes, self._started_ms, cost_ms
                )


class Processing:
    """Messages while the user processes them."""

    def __init__(self, telemetry: Telemetry, options: ConsumerOptions, messages: Sequence[Message]) -> None:
        self._telemetry = telemetry
        self._options = options
        self._messages = messages
        self._traced: str | None = None
        self._spans = telemetry.spans
        self._span: tuple[Span, Token[Context]] | None = None

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._begin()
        return self

    @_harmless
    def _begin(self) -> None:
        telemetry, options, messages = self._telemetry, self._options, self._messages
        if telemetry.trace_topic is not None:
            self._traced = telemetry.trace_topic.processing(options.group, messages)
        if self._spans is not None:
            self._span = self._spans.process(options.group, options.is_broadcast, messages)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    @_harmless
    def _end(self, error: BaseException | None) -> None:
        seconds = time.perf_counter() - self._started
        telemetry, messages = self._telemetry, self._messages
        if self._spans is not None and self._span is not None:
            span, token = self._span
            self._spans.leave(token)
            end(span, error)
        if telemetry.instruments is not None:
            telemetry.instruments.processed(
                messages[0].topic, self._options.group, len(messages), seconds, error
            )
        if telemetry.trace_topic is not None and self._traced is not None:
            telemetry.trace_topic.processed(self._options.group, self._traced, messages, seconds, error)


def _is_real(provider: TracerProvider | MeterProvider) -> bool:
    """Returns whether a provider is real. Those of the API package do nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
