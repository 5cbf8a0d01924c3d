"""The client for asyncio. It does all the work; `sync` is a face over it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Unpack, overload

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from metaq.client.consumer.aio_consumers import (
    AnyHandler,
    BatchHandler,
    Consumer,
    Handler,
    Puller,
    Subscribed,
)
from metaq.client.consumer.options import (
    ConsumerKeywords,
    HandlerKeywords,
    PullerKeywords,
    consumer_options,
)
from metaq.client.consumer.registry import ConsumerRegistry
from metaq.client.lifecycle import (
    CLOSE_TIMEOUT_S,
    FAILED_START_CLOSE_S,
    LEAVE_TIMEOUT_MIN_S,
    AsyncStartable,
    OpenMark,
    SharedClose,
    closing_within,
)
from metaq.client.message import check_topic
from metaq.client.producer.options import DEFAULT_GROUP, ProducerKeywords, check_timeout, producer_options
from metaq.client.producer.producer import Producer
from metaq.client.session.session import Session
from metaq.client.telemetry.trace_topic import TraceTopic
from metaq.errors import NotDelivered
from metaq.protocol.names import TRACE_TOPIC


class Client(AsyncStartable):
    """A client of a cluster. `nameservers` is `host:port`; separate several with semicolons.

    It belongs to the event loop on which it is started:

        async with metaq.aio.Client("127.0.0.1:9876") as client: …

    Spans and metrics go to the given OpenTelemetry providers, or to the global ones. With `trace_topic` the
    client also writes RocketMQ's own message trace: to its standard topic, or to a topic that you name.
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
        self._open_mark = OpenMark(f"metaq client {self._session.client_id}")
        self._consumers = ConsumerRegistry(self._session, self._open_mark)
        self._closing = SharedClose()
        self._is_closed = False

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._session.client_id

    def producer(self, group: str = DEFAULT_GROUP, **options: Unpack[ProducerKeywords]) -> Producer:
        """Makes a producer, a context manager. It closes with its client at the latest.

        The options and their defaults:

        - `timeout` (15.0): seconds for one send with all its attempts
        - `attempt_timeout` (6.0): seconds for one attempt
        - `accept` (()): statuses besides "stored" that are not errors: "flush-timeout", "replica-missing",
          "replica-timeout"
        - `body_bytes_max` (4 MiB): the largest body
        - `compression` ("zlib"): "zlib", "lz4", "zstd" or None
        - `compress_from_bytes` (4096): the smallest body that is compressed
        - `linger` (0.002): seconds for which `send_soon` waits for more messages
        - `batch_bytes_max` (256 KiB): how much `send_soon` sends at once
        - `buffer_bytes_max` (32 MiB): how much `send_soon` holds before it waits
        - `batches_in_flight_max` (4): batches of one topic that `send_soon` sends at the same time
        - `delay_levels_max` (18): the highest `delay_level` of a message

        Raises UsageError.
        """
        checked = producer_options(group, options)
        producer = Producer(self._session, checked, on_close=self._producers.discard)
        producer._open_mark = self._open_mark
        self._producers.add(producer)
        return producer

    @overload
    def consumer(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        batch: None = None,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[Handler], Consumer]: ...
    @overload
    def consumer(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        batch: int,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[BatchHandler], Consumer]: ...
    @overload
    def consumer(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        batch: int | None,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[AnyHandler], Consumer]: ...
    def consumer(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        batch: int | None = None,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[Any], Consumer]:
        """Declares a handler, as a decorator. It starts with the client, or at once if that has started.

        A coroutine function runs as a task, a plain function in a thread, up to `concurrency` at a time.
        Return to acknowledge the message. An exception retries it, `Retry` says when, and `Reject` sends it
        to the dead letters.

        The options and their defaults:

        - `tags`, `sql`, `function` (None): the filter; they exclude each other
        - `mode` ("cluster"): "cluster" shares the messages among members, "broadcast" gives each member all
        - `start` ("latest"): where a group without a committed offset starts: "earliest", "latest" or a
          datetime
        - `concurrency` (20): how many calls of the handler run at a time
        - `batch` (None): the handler gets a list of up to that many messages
        - `ordered` (False): process the messages of a queue one after the other
        - `priority` (False), `priority_patience` (8): take queues with a higher id first
        - `strategy` ("average"): how queues are divided: "average", "circular", "sticky" or a function
        - `retries_max` (None), `suspend` (1.0): when a message becomes a dead letter, and how many seconds an
          ordered queue rests after a failure
        - `retry` (None): a `metaq.RetryPolicy` with the delays and the number of retries; None leaves them to
          the broker
        - `handler_timeout` (None): after how many seconds a call of the handler counts as failed
        - `pull_count` (256), `buffer_count` (1000), `buffer_bytes` (100 MiB), `buffer_span` (2000): how much
          is read ahead
        - `on_rebalance` (None): called with the queues gained and the queues lost
        - `offsets` ("file"), `offsets_file` (None): where broadcast mode keeps its offsets: in "memory", in a
          file of each process, or in the file that you name
        - `read_from` ("master"): read "replica" nodes if there are any, or only if the master is away
        - `on_failure` ("broker"): who retries, the "broker" or this machine with "local"
        - `local_after` (5), `local_retries_max` (16), `local_first_wait` (10.0), `local_directory` (None):
          how local retry works
        - `local_bytes_max` (1024 MiB): the size that its file may have

        Raises UsageError.
        """
        checked = consumer_options(topic, group, options, batch)
        return lambda handler: self._consumers.add_handler(handler, checked)

    def subscribe(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        auto_ack: bool = True,
        idle_timeout: float | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Subscribed:
        """Returns an iteration over messages, a context manager.

        It ends when it is closed, or when no message came for `idle_timeout` seconds. With `auto_ack` the
        next message acknowledges the one before. The other options are those of `consumer`, without `batch`
        and local retry. Raises UsageError.
        """
        checked = consumer_options(topic, group, options)
        return self._consumers.add_subscribed(checked, auto_ack=auto_ack, idle_timeout=idle_timeout)

    def puller(self, **options: Unpack[PullerKeywords]) -> Puller:
        """Makes a puller, a context manager, which reads queues that you assign to it.

        The options and their defaults:

        - `group` (None): whose committed offsets are used; without a group you cannot commit
        - `tags`, `sql`, `function` (None): the filter; they exclude each other
        - `start` ("latest"): where a queue without a committed offset starts: "earliest", "latest", a
          datetime or an offset
        - `buffer_count` (1000), `buffer_bytes` (100 MiB): how much is read ahead
        - `read_from` ("master"): read "replica" nodes if there are any, or only if the master is away

        Raises UsageError.
        """
        return self._consumers.add_puller(options)

    async def start(self, wait: float | None = None) -> None:
        """Starts the client and its declared consumers. Safe to call twice.

        With `wait`, it also waits up to that many seconds until a name server has answered and every consumer
        has joined its group, and raises Unreachable, NoRoute or Refused if that fails. Without it, only
        filters that a broker refuses and files that cannot be used are errors; other problems are logged and
        tried again. After a failed start the client is closed.
        """
        is_first = not self._open_mark.is_open
        if wait is not None:
            check_timeout(wait, "wait")
        await self._session.start()
        self._open_mark.is_open = True
        try:
            if self._trace_topic is not None:
                self._trace_topic.start()
            await self._consumers.start(wait)
        except BaseException as error:
            if is_first:
                # Consumers that have started would otherwise go on without anybody who can close them.
                try:
                    await self.close(FAILED_START_CLOSE_S)
                except NotDelivered as lost:
                    error.add_note(str(lost))
            raise

    async def run(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Consumes until SIGTERM or SIGINT arrives, then closes within the timeout. For the main thread.

        A second signal ends the wait for running handlers: their messages come again.
        """
        ended, hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        # Set before the start, because the first consumer already has messages while the others start.
        for number in signals:
            loop.add_signal_handler(number, lambda: (hurried if ended.is_set() else ended).set())
        try:
            try:
                if await _finished(self.start(), hurried):
                    await ended.wait()
            finally:
                if not await _finished(self.close(timeout), hurried):
                    await self.close(0)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Closes all consumers and producers, leaves their groups and closes all connections.

        Consumers have `timeout` seconds to finish the messages in hand, and producers have the rest of it to
        send theirs. Raises NotDelivered if a producer could not send everything. Safe to call twice: the
        second close waits for the first. One that was interrupted can be repeated.
        """
        if self._is_closed:
            return
        self._session.require_process()
        self._session.require_loop()
        await self._closing.run(lambda: self._close(timeout), None)

    async def _close(self, timeout: float) -> bool:
        with closing_within(timeout):
            lost: list[NotDelivered] = []
            try:
                await self._close_all(timeout, lost)
            except Exception:
                await self._end()
                raise
            await self._end()
        if lost:
            raise NotDelivered(
                sum(error.count for error in lost),
                [failure for error in lost for failure in error.failures],
            )
        return True

    async def _end(self) -> None:
        await self._session.close()
        self._is_closed = True
        self._open_mark.is_open = False

    async def _close_all(self, timeout: float, lost: list[NotDelivered]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        # Handlers may still send messages, so producers close after them and need a little time too.
        kept_back = min(LEAVE_TIMEOUT_MIN_S, timeout / 4) if self._producers else 0.0
        await self._consumers.close(max(timeout - kept_back, 0.0))
        left = max(deadline - loop.time(), LEAVE_TIMEOUT_MIN_S)
        closings = [producer.close(left) for producer in self._producers]
        for outcome in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(outcome, NotDelivered):
                lost.append(outcome)
            elif outcome is not None:
                raise outcome
        if self._trace_topic is not None:
            await self._trace_topic.close(max(deadline - loop.time(), LEAVE_TIMEOUT_MIN_S))


async def _finished(work: Coroutine[Any, Any, None], hurried: asyncio.Event) -> bool:
    """Runs a coroutine to its end and returns True, or cancels it when the event is set and returns False."""
    task = asyncio.ensure_future(work)
    hurry = asyncio.ensure_future(hurried.wait())
    try:
        await asyncio.wait((task, hurry), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, hurry):
            each.cancel()
        await asyncio.wait((task, hurry))
