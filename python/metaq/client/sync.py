"""The face for plain code: the same names and signatures, and calls that wait."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from metaq.client import aio
from metaq.client.compression import Format
from metaq.client.consumer.handler import CLOSE_TIMEOUT_S
from metaq.client.consumer.sync_consumers import Consuming
from metaq.client.message import BODY_BYTES_MAX, COMPRESS_FROM_BYTES
from metaq.client.portal import Portal
from metaq.client.producer.options import KIB, MIB
from metaq.client.producer.results import SendStatus
from metaq.client.producer.sync_producer import Producer
from metaq.errors import NotDelivered


class Client(Consuming):
    """A client of a cluster, named by its name servers: `host:port`, several separated by semicolons.

    Any thread may call it:

        with metaq.Client("127.0.0.1:9876") as client: …

    Spans and metrics go to OpenTelemetry's global providers, or to those given here. With `trace_topic` what
    becomes of messages is also written to RocketMQ's own trace topic, or to one of that name.
    """

    def __init__(
        self,
        nameservers: str = "127.0.0.1:9876",
        *,
        client_id: str | None = None,
        trace_topic: bool | str = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._client = aio.Client(
            nameservers,
            client_id=client_id,
            trace_topic=trace_topic,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
        )
        self._portal = Portal()

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._client.client_id

    def producer(
        self,
        group: str = aio.DEFAULT_GROUP,
        *,
        timeout: float = 15.0,
        attempt_timeout: float = 6.0,
        accept: Iterable[SendStatus | str] = (),
        body_bytes_max: int = BODY_BYTES_MAX,
        compression: Format | None = "zlib",
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        linger: float = 0.002,
        batch_bytes_max: int = 256 * KIB,
        buffer_bytes_max: int = 32 * MIB,
    ) -> Producer:
        """A producer of that group; a context manager, which ends with its client at the latest.

        `timeout` is for a send with all its tries, `attempt_timeout` for one of them. `accept` names what is
        no error besides a message that is stored as it should be: flush-timeout, replica-missing or
        replica-timeout. Bodies from `compress_from_bytes` on are compressed, unless `compression` is None.
        `linger`, `batch_bytes_max` and `buffer_bytes_max` are for `send_soon`.
        """
        producer = self._client.producer(
            group,
            timeout=timeout,
            attempt_timeout=attempt_timeout,
            accept=accept,
            body_bytes_max=body_bytes_max,
            compression=compression,
            compress_from_bytes=compress_from_bytes,
            linger=linger,
            batch_bytes_max=batch_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
        )
        return Producer(self._portal, producer)

    def start(self) -> None:
        """Safe to call twice."""
        self._portal.start()
        self._portal.run(self._client.start)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Closes what was made of it, leaves its groups and closes its connections. Safe to call twice.

        Consumers have `timeout` seconds to end what they have in hand, and producers what is left of them to
        send theirs. Raises NotDelivered where a producer had something left that could not be sent. A second
        close waits for the first.
        """
        try:
            if self._portal.usable:
                self._portal.run(self._client.close, timeout)
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NotDelivered as lost:
            if error is None:
                raise
            error.add_note(str(lost))
