"""What a client tells of its work: spans, metrics and, on request, entries of RocketMQ's own trace topic.

Where nobody listens nothing is made: no span, no attribute, no entry, and what it costs is to look at
`is_heard`. Providers of OpenTelemetry are looked for now and then, so that they may also be set after the
client was made. Whatever goes wrong in telling is logged and goes no further: a message is worth more.
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
from metaq.client.telemetry.metrics import Buffer, Buffers, Instruments, instruments
from metaq.client.telemetry.tracing import Spans, end
from metaq.errors import NotDurable

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.message import Message, Outgoing
    from metaq.client.producer.results import SendResult
    from metaq.client.session.routes import Routes
    from metaq.client.telemetry.trace_topic import TraceTopic
    from metaq.protocol.messages import EndTransaction

_log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")


def _harmless(tell: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Exporters and propagators are the user's: what they raise is no failure of a send or of a handler."""

    @functools.wraps(tell)
    def guarded(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        try:
            tell(*arguments, **named)
        except Exception:
            _log.exception("telemetry failed")

    return guarded


class Telemetry:
    """That of one client; its `routes` tell where brokers are."""

    def __init__(
        self,
        client_id: str,
        routes: Routes,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Without a provider of its own it uses the global one, from when there is one."""
        self._client_id = client_id
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._buffers = Buffers(client_id)
        self.routes = routes
        self.spans: Spans | None = None
        self.instruments: Instruments | None = None
        self.trace_topic: TraceTopic | None = None
        self.is_heard = False
        """Whether anybody wants to know anything."""
        self.look()

    def trace_to(self, trace_topic: TraceTopic) -> None:
        """From now on entries go there."""
        self.trace_topic = trace_topic
        self.is_heard = True

    @_harmless
    def look(self) -> None:
        """For providers, which may have come since."""
        if self.spans is None:
            tracers = self._tracer_provider or otel_trace.get_tracer_provider()
            if _does_something(tracers):
                self.spans = Spans(tracers.get_tracer("metaq", __version__), self._client_id)
        if self.instruments is None:
            meters = self._meter_provider or otel_metrics.get_meter_provider()
            if _does_something(meters):
                self.instruments = instruments(meters, __version__)
                self.instruments.watch(self._buffers)
        listeners = (self.spans, self.instruments, self.trace_topic)
        self.is_heard = any(listener is not None for listener in listeners)

    def watch_buffer(self, kind: str, buffer: Buffer) -> None:
        """Tells its size for as long as somebody else uses it."""
        self._buffers.add(kind, buffer)

    # Sending

    def sending(self, group: str, messages: Sequence[Outgoing]) -> Sending | Nothing:
        """Around one request, before its messages are encoded: they may get further properties."""
        if not self.is_heard:
            return NOTHING
        if self.trace_topic is not None and messages[0].topic == self.trace_topic.name:
            return NOTHING
        return Sending(self, group, messages)

    @_harmless
    def created(self, messages: Sequence[Outgoing]) -> None:
        """Many, before they are divided into requests by their sizes: their spans make them larger."""
        if self.spans is not None and len(messages) > 1:
            for message in messages:
                self.spans.create(message)

    def sending_later(self, group: str, message: Outgoing) -> Sending | Nothing:
        """Around taking a message that will be sent with others; its future is followed to its end."""
        return Sending(self, group, (message,)) if self.is_heard else NOTHING

    @_harmless
    def ended_transaction(self, command: EndTransaction, broker: str, properties: Mapping[str, str]) -> None:
        """Told to a broker, by its name or address; the properties are those of the message."""
        if self.trace_topic is not None:
            address = self.routes.address(broker) or broker
            self.trace_topic.ended_transaction(command, address, properties)

    # Consuming

    def processing(self, options: ConsumerOptions, messages: Sequence[Message]) -> Processing | Nothing:
        """Around the code of the user's that a message, or a batch of one topic, is given to."""
        return Processing(self, options, messages) if self.is_heard else NOTHING

    @_harmless
    def received(self, group: str | None, messages: Sequence[Message], started_ns: int) -> None:
        """What a caller asked for since then, and got."""
        if messages and self.is_heard:
            if self.spans is not None:
                self.spans.received(group, messages, started_ns)
            self.consumed(group, messages)

    def consumed(self, group: str | None, messages: Sequence[Message]) -> None:
        """Messages are given to the user."""
        if self.instruments is not None:  # Asked for every message: no further call where nobody listens.
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
    """Around what nobody listens to."""

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
    """That of asyncio, of threads or of the data plane."""

    def add_done_callback(self, function: Callable[[Any], object], /) -> Any: ...


class Sending:
    """Messages that are under way, in one request."""

    def __init__(self, telemetry: Telemetry, group: str, messages: Sequence[Outgoing]) -> None:
        self._telemetry = telemetry
        self._group = group
        self._messages = messages
        self._results: Sequence[SendResult] = ()
        self._is_followed = False
        # Before they are compressed.
        self._body_sizes = [len(message.body) for message in messages]
        self._span: Span | None = None

    def __enter__(self) -> Self:
        self._started_ms = time.time_ns() // 1_000_000
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
        """The end of the block is not the end of it: that comes with the future, in any thread."""
        self._is_followed = True
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        error: BaseException | None = None
        try:
            self._results = (future.result(),)
        except BaseException as problem:  # It is told, and raised where the future is asked.
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
    """Messages that are in the user's hands."""

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


def _does_something(provider: TracerProvider | MeterProvider) -> bool:
    """Providers of the API's own only stand in for real ones."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
