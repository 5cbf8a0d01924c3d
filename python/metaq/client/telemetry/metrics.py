"""Counters and histograms of OpenTelemetry.

Names that start with `messaging` follow the semantic conventions. A count with the attribute `error.type`
counts failures: `messaging.client.sent.messages` with it counts messages that were not sent.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Final, Protocol

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from metaq.client.telemetry.tracing import SYSTEM, error_type

_BOUNDARIES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The boundaries that the conventions advise."""


class Buffer(Protocol):
    """An object that holds messages."""

    @property
    def buffered_bytes(self) -> int: ...


class Buffers:
    """The buffers of one client. A buffer is forgotten when nobody else uses it."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self._lock = threading.Lock()
        self._kinds: weakref.WeakKeyDictionary[Buffer, str] = weakref.WeakKeyDictionary()

    def add(self, kind: str, buffer: Buffer) -> None:
        with self._lock:
            self._kinds[buffer] = kind

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each kind. The thread that reads the metrics calls it."""
        sizes: dict[str, int] = {}
        with self._lock:
            for buffer, kind in self._kinds.items():
                sizes[kind] = sizes.get(kind, 0) + buffer.buffered_bytes
        return sizes


class Instruments:
    """The instruments of one provider, shared by all clients."""

    def __init__(self, meter: Meter) -> None:
        self._clients: weakref.WeakSet[Buffers] = weakref.WeakSet()
        messages = "{message}"
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", messages, "Messages that a producer tried to send."
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of a send request with all its attempts.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES_S,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", messages, "Messages that the application received."
        )
        self._processed = meter.create_counter(
            "metaq.client.processed.messages", messages, "Messages that a handler has processed."
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of a handler call.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES_S,
        )
        self._retried = meter.create_counter(
            "metaq.client.retried.messages", messages, "Failed messages that will be delivered again."
        )
        self._dead = meter.create_counter(
            "metaq.client.dead_lettered.messages", messages, "Messages that were sent to the dead letters."
        )
        self._untraced = meter.create_counter(
            "metaq.client.trace.dropped", "{entry}", "Trace entries that were not sent."
        )
        meter.create_observable_up_down_counter(
            "metaq.client.buffer.size",
            [self._observe],
            "By",
            "Bytes that wait to be sent (send) and bytes that were pulled and not settled (receive).",
        )

    def watch(self, buffers: Buffers) -> None:
        self._clients.add(buffers)

    def sent(self, topic: str, count: int, seconds: float, error: BaseException | None) -> None:
        attributes = _attributes("send", topic, error)
        self._sent.add(count, attributes)
        self._operation.record(seconds, attributes)

    def consumed(self, topic: str, group: str | None, count: int) -> None:
        attributes = _attributes("receive", topic, None)
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        self._consumed.add(count, attributes)

    def processed(
        self, topic: str, group: str, count: int, seconds: float, error: BaseException | None
    ) -> None:
        attributes = _attributes("process", topic, error) | {"messaging.consumer.group.name": group}
        self._processed.add(count, attributes)
        self._process.record(seconds, attributes)

    def retried(self, topic: str, group: str, by: str) -> None:
        """Counts a retry; `by` is "broker" or "local"."""
        attributes = _attributes("retry", topic, None)
        attributes |= {"messaging.consumer.group.name": group, "metaq.retry.by": by}
        self._retried.add(1, attributes)

    def dead_lettered(self, topic: str, group: str) -> None:
        attributes = _attributes("reject", topic, None) | {"messaging.consumer.group.name": group}
        self._dead.add(1, attributes)

    def trace_dropped(self, count: int) -> None:
        self._untraced.add(count, {"messaging.system": SYSTEM})

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        for buffers in list(self._clients):
            for kind, size_bytes in buffers.sizes().items():
                yield Observation(
                    size_bytes, {"messaging.client.id": buffers.client_id, "metaq.buffer": kind}
                )


def _attributes(operation: str, topic: str, error: BaseException | None) -> dict[str, str]:
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }
    if error is not None:
        attributes["error.type"] = error_type(error)
    return attributes


_lock: Final = threading.Lock()
_made: Final[weakref.WeakKeyDictionary[MeterProvider, Instruments]] = weakref.WeakKeyDictionary()


def instruments(provider: MeterProvider, version: str) -> Instruments:
    """Returns the instruments of a provider, which accepts each name only once."""
    with _lock:
        if provider not in _made:
            _made[provider] = Instruments(provider.get_meter("metaq", version))
        return _made[provider]
