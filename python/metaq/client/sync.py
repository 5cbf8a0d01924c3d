"""The client for plain code: the same names and signatures as on asyncio, with calls that wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Unpack, overload

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from metaq.client import aio
from metaq.client.consumer import aio_consumers
from metaq.client.consumer.options import (
    ConsumerKeywords,
    HandlerKeywords,
    PullerKeywords,
    consumer_options,
)
from metaq.client.consumer.sync_consumers import (
    AnyHandler,
    BatchHandler,
    Consumer,
    Handler,
    Puller,
    ReceivedMessage,
    Subscribed,
)
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, FAILED_START_CLOSE_S, Startable
from metaq.client.portal import Portal, require_plain
from metaq.client.producer.options import DEFAULT_GROUP, ProducerKeywords
from metaq.client.producer.sync_producer import Producer


class Client(Startable):
    """A client of a cluster. `nameservers` is `host:port`; separate several with semicolons.

    Any thread may call it:

        with metaq.Client("127.0.0.1:9876") as client: …

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
        """The id under which brokers know this client."""
        return self._client.client_id

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
        return Producer(self._portal, self._client.producer(group, **options))

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

        It runs in threads, up to `concurrency` at a time. Return to acknowledge the message. An exception
        retries it, `Retry` says when, and `Reject` sends it to the dead letters.

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

        def declare(handler: AnyHandler) -> aio_consumers.Consumer:
            return self._client._consumers.add_handler(
                handler, checked, lambda handled: ReceivedMessage(handled, self._portal)
            )

        def declare_plain(handler: AnyHandler) -> Consumer:
            require_plain(handler)
            if not self._portal.usable:
                return Consumer(self._portal, declare(handler))
            consumer = Consumer(self._portal, self._portal.call(lambda: declare(handler)))
            consumer.start()
            return consumer

        return declare_plain

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
        subscribed = self._client.subscribe(
            topic, group=group, auto_ack=auto_ack, idle_timeout=idle_timeout, **options
        )
        return Subscribed(self._portal, subscribed)

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
        return Puller(self._portal, self._client.puller(**options))

    def start(self, wait: float | None = None) -> None:
        """Starts the client and its declared consumers. Safe to call twice.

        With `wait`, it also waits up to that many seconds until a name server has answered and every consumer
        has joined its group, and raises Unreachable, NoRoute or Refused if that fails. Without it, only
        filters that a broker refuses and files that cannot be used are errors; other problems are logged and
        tried again. After a failed start the client is closed.
        """
        is_first = not self._portal.usable
        self._portal.start()
        try:
            self._portal.run(self._client.start, wait)
        except BaseException:
            if is_first and self._portal.usable:
                self.close(FAILED_START_CLOSE_S)
            raise

    def run(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Consumes until SIGTERM or SIGINT arrives, then closes within the timeout. For the main thread.

        A second signal ends the wait for running handlers: their messages come again.
        """
        ended = threading.Event()

        def end(number: int, frame: FrameType | None) -> None:
            if ended.is_set():
                raise KeyboardInterrupt  # It interrupts the close, and a third one the short close after it.
            ended.set()

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            try:
                self.start()
                ended.wait()
            finally:
                self.close(timeout)
        except KeyboardInterrupt:
            self.close(0)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Closes all consumers and producers, leaves their groups and closes all connections.

        Consumers have `timeout` seconds to finish the messages in hand, and producers have the rest of it to
        send theirs. Raises NotDelivered if a producer could not send everything. Safe to call twice: the
        second close waits for the first. One that was interrupted can be repeated.
        """
        if self._portal.usable:
            try:
                self._portal.run(self._client.close, timeout)
            except Exception:
                self._portal.close()
                raise
            # Ctrl-C leaves the client's thread running, so that another close can finish the work.
        self._portal.close()
