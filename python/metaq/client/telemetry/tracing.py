"""Spans of OpenTelemetry, and the context that a message carries from its producer to its consumers.

Names and kinds follow the semantic conventions for messaging. A message that is sent alone carries the
context of its `send` span. A message that is sent with others has a `create` span of its own, to which the
`send` span of the request links. A consumer's `process` span is a child of the context that its message
carries; for a batch it links to all of them. Messages that a caller polled have a `receive` span with links.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Setter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from metaq.protocol.properties import KEYS, TAGS, encode_properties

if TYPE_CHECKING:
    from metaq.client.message import Message, Outgoing
    from metaq.client.session.routes import Queue

SYSTEM: Final = "rocketmq"
"""The name of this protocol in the conventions."""
PROPERTIES_BYTES_MAX: Final = 32_767 - 1024
"""A context is added up to this size: the limit of a message, less room for what its broker adds."""

Attributes = dict[str, AttributeValue]


class Spans:
    """The spans of one client."""

    def __init__(self, tracer: Tracer, client_id: str) -> None:
        self._tracer = tracer
        self._client_id = client_id

    def create(self, message: Outgoing) -> None:
        """Gives a message that is sent with others a context of its own, unless it has one."""
        if not message.has_span and not span_context(message.properties).is_valid:
            attributes = self._attributes("create", message.topic) | _one(message)
            span = self._tracer.start_span(
                f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            _inject(message, trace.set_span_in_context(span))
            span.end()
            message.has_span = True

    def send(self, messages: Sequence[Outgoing]) -> Span:
        """Starts the span of a send, which ends when the messages are stored."""
        first = messages[0]
        attributes = self._attributes("send", first.topic)
        if len(messages) == 1 and not span_context(first.properties).is_valid:
            attributes |= _one(first)
            span = self._tracer.start_span(
                f"send {first.topic}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            _inject(first, trace.set_span_in_context(span))
            return span
        for message in messages:
            self.create(message)
        attributes |= _one(first) if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}
        return self._tracer.start_span(
            f"send {first.topic}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[Link(span_context(message.properties)) for message in messages],
        )

    def process(
        self, group: str, is_broadcast: bool, messages: Sequence[Message]
    ) -> tuple[Span, Token[Context]]:
        """Starts the span of a handler and makes it current, until `leave`."""
        first = messages[0]
        attributes = self._attributes("process", first.topic) | {
            "messaging.consumer.group.name": group,
            "messaging.rocketmq.consumption_model": "broadcasting" if is_broadcast else "clustering",
        }
        carried, links = Context(), []
        if len(messages) == 1:
            attributes |= _received(first)
            carried = propagate.extract(first.properties, Context())
        else:
            attributes["messaging.batch.message_count"] = len(messages)
            links = _links(messages)
        span = self._tracer.start_span(
            f"process {first.topic}",
            context=carried,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        return span, contexts.attach(trace.set_span_in_context(span, carried))

    def leave(self, token: Token[Context]) -> None:
        contexts.detach(token)

    def received(self, group: str | None, messages: Sequence[Message], started_ns: int) -> None:
        """Records the span of messages that a caller polled."""
        first = messages[0]
        attributes = self._attributes("receive", first.topic)
        attributes["messaging.batch.message_count"] = len(messages)
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        self._tracer.start_span(
            f"receive {first.topic}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(messages),
            start_time=started_ns,
        ).end()

    def _attributes(self, operation: str, topic: str) -> Attributes:
        return {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            "messaging.client.id": self._client_id,
        }


def end(
    span: Span, error: BaseException | None, queue: Queue | None = None, address: str | None = None
) -> None:
    """Ends a span, with the destination of the messages or with the error."""
    if queue is not None:
        span.set_attribute("messaging.destination.partition.id", str(queue.id))
    if address is not None:
        host, _, port = address.rpartition(":")
        span.set_attribute("server.address", host)
        span.set_attribute("server.port", int(port))
    if error is not None:
        span.set_attribute("error.type", error_type(error))
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def error_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def span_context(properties: Mapping[str, str]) -> trace.SpanContext:
    """Returns the context that a message carries, or an invalid one if it carries none."""
    return trace.get_current_span(propagate.extract(properties, Context())).get_span_context()


def _links(messages: Sequence[Message]) -> list[Link]:
    found = (span_context(message.properties) for message in messages)
    return [Link(carried) for carried in found if carried.is_valid]


def _one(message: Outgoing) -> Attributes:
    properties = message.properties
    attributes: Attributes = {"messaging.message.id": message.id}
    if TAGS in properties:
        attributes["messaging.rocketmq.message.tag"] = properties[TAGS]
    if KEYS in properties:
        attributes["messaging.rocketmq.message.keys"] = tuple(properties[KEYS].split())
    return attributes


def _received(message: Message) -> Attributes:
    attributes: Attributes = {"messaging.message.id": message.id}
    if message.tag is not None:
        attributes["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = tuple(message.keys)
    if message.queue is not None:
        attributes["messaging.destination.partition.id"] = str(message.queue.id)
    return attributes


class _Properties(Setter[MutableMapping[str, str]]):
    """Sets only values that a property can hold."""

    def set(self, carrier: MutableMapping[str, str], key: str, value: str) -> None:
        if value and "\x01" not in value and "\x02" not in value:
            carrier[key] = value


_SETTER: Final = _Properties()


def _inject(message: Outgoing, context: Context) -> None:
    added: dict[str, str] = {}
    propagate.inject(added, context, _SETTER)
    together = message.properties | added
    # The message is more important than its trace.
    if len(encode_properties(together).encode()) <= PROPERTIES_BYTES_MAX:
        message.properties.update(added)
