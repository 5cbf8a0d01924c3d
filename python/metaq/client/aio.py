"""The face for asyncio, where all the work is done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from metaq.client.compression import Format
from metaq.client.consumer.aio_consumers import Consuming
from metaq.client.consumer.handler import CLOSE_TIMEOUT_S, LEAVE_TIMEOUT_MIN_S
from metaq.client.message import BODY_BYTES_MAX, COMPRESS_FROM_BYTES, check_topic
from metaq.client.producer.options import KIB, MIB, ProducerOptions
from metaq.client.producer.producer import Producer
from metaq.client.producer.results import SendStatus
from metaq.client.session.session import Session
from metaq.client.telemetry.trace_topic import TraceTopic
from metaq.errors import NotDelivered
from metaq.protocol.names import TRACE_TOPIC

DEFAULT_GROUP = "metaq"


class Client(Consuming):
    """A client of a cluster, named by its name servers: `host:port`, several separated by semicolons.

    It belongs to the event loop in which it is started:

        async with metaq.aio.Client("127.0.0.1:9876") as client: …

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
        super().__init__()
        self._session = Session(
            nameservers,
            client_id=client_id,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
        )
        self._trace_topic: TraceTopic | None = None
        if trace_topic:
            name = TRACE_TOPIC if trace_topic is True else trace_topic
            check_topic(name)
            self._trace_topic = TraceTopic(self._session, name)
            self._session.telemetry.trace_to(self._trace_topic)
        self._producers: set[Producer] = set()
        self._is_closing = False
        self._ended = asyncio.Event()
        """The close is over."""

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    def producer(
        self,
        group: str = DEFAULT_GROUP,
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
        options = ProducerOptions(
            group,
            timeout_s=timeout,
            attempt_timeout_s=attempt_timeout,
            accept=SendStatus.all_of(accept),
            body_bytes_max=body_bytes_max,
            compression=compression,
            compress_from_bytes=compress_from_bytes,
            linger_s=linger,
            batch_bytes_max=batch_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
        )
        producer = Producer(self._session, options, on_close=self._producers.discard)
        self._producers.add(producer)
        return producer

    async def start(self) -> None:
        """Safe to call twice."""
        await self._session.start()
        if self._trace_topic is not None:
            self._trace_topic.start()
        await self._start_consumers()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Closes what was made of it, leaves its groups and closes its connections. Safe to call twice.

        Consumers have `timeout` seconds to end what they have in hand, and producers what is left of them to
        send theirs. Raises NotDelivered where a producer had something left that could not be sent. A second
        close waits for the first.
        """
        if self._ended.is_set():
            return
        self._session.require_process()
        self._session.require_loop()
        if self._is_closing:
            await self._ended.wait()
            return
        self._is_closing = True
        lost: list[NotDelivered] = []
        try:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            # Handlers may still send something, so the producers come after them.
            await self._close_consumers(timeout)
            left = max(deadline - loop.time(), LEAVE_TIMEOUT_MIN_S)
            closings = [producer.close(left) for producer in self._producers]
            for outcome in await asyncio.gather(*closings, return_exceptions=True):
                if isinstance(outcome, NotDelivered):
                    lost.append(outcome)
                elif outcome is not None:
                    raise outcome
            if self._trace_topic is not None:
                await self._trace_topic.close()
        finally:
            try:
                await self._session.close()
            finally:
                self._ended.set()
        if lost:
            raise NotDelivered(
                sum(error.count for error in lost),
                [failure for error in lost for failure in error.failures],
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except NotDelivered as lost:
            if error is None:
                raise
            error.add_note(str(lost))
