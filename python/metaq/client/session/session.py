"""The session of a client: connections, routes, heartbeats and requests from brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from metaq._core import Frame, Network
from metaq.client.lifecycle import GOODBYE_TIMEOUT_MIN_S, goodbye_timeout_s, require_process
from metaq.client.producer.unique_ids import month_start_ms, unique_ids
from metaq.client.session.broker_watch import LOOK_INTERVAL_S, BrokerWatch
from metaq.client.session.routes import NameServers, Queue, Route, Routes
from metaq.client.tasks import Tasks
from metaq.client.telemetry.telemetry import Telemetry
from metaq.errors import ClientClosed, MetaqError, NoRoute, UsageError
from metaq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import HeartBeat, UnregisterClient
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.dispatch import Response
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.names import MASTER_ID
from metaq.protocol.reply import Reply
from metaq.remoting import Connection, Connections, split_address, split_addresses
from metaq.settings import NetworkSettings

__all__ = ["NOT_MINE", "Queue", "Route", "Session"]

_log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 30.0
ROUTE_INTERVAL_S: Final = 30.0
ROUTE_LOST_INTERVAL_S: Final = 1.0
"""The shortest interval between two refreshes of routes because of unreachable brokers."""
CALL_TIMEOUT_S: Final = 5.0
NAMESERVER_INTERVAL_S: Final = 0.2

Provider = Callable[[], ConsumerData]
"""Returns what the next heartbeat says about a consumer."""

Handler = Callable[[str, Frame], Awaitable[Response | None]]
"""Answers a request from the broker at an address, in a task of its own. NOT_MINE passes it on."""

NOT_MINE: Final = Response()
"""A handler returns this very object if the request is for another handler of the same code."""


class Session:
    """One client as brokers see it. It belongs to its process and to the event loop that started it.

    No user code runs here, so heartbeats continue however long a handler takes.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        client_id: str | None = None,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """`nameservers` is `host:port`; separate several with semicolons. Raises UsageError."""
        addresses = _addresses(nameservers)
        self._host = _own_address(addresses[0])
        self.client_id = client_id or f"{self._host}@{os.getpid()}#{time.time_ns()}"
        self.unique_ids = unique_ids(self._host)
        self._networks: dict[str, Network] = {}
        self._endings: list[Callable[[], None]] = []
        self._lost_watchers: list[Callable[[str], None]] = []
        self.connections = Connections(
            on_request=self._answer, on_open=self._greet, on_end=self._connection_ended, binary=True
        )
        self._nameservers = NameServers(addresses, self.connections.call)
        self.routes = Routes(self._nameservers.ask, self._brokers_changed)
        self._broker_watch = BrokerWatch(self.routes, self._nameservers.ask, self.beat)
        self.telemetry = Telemetry(
            self.client_id, self.routes, tracer_provider=tracer_provider, meter_provider=meter_provider
        )
        self._heartbeat_interval_s = heartbeat_interval_s
        self._producers: dict[str, int] = {}
        self._consumers: list[Provider] = []
        self._beats: set[asyncio.Future[None]] = set()
        """Heartbeats without an answer yet."""
        self._handlers: dict[int, list[Handler]] = {}
        self._tasks = Tasks(f"client {self.client_id}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._closed = False
        self._has_ended = False
        self._routes_due = 0.0

    # Start and close

    async def start(self) -> None:
        """Starts heartbeats and refreshes of routes. Does not connect to anything yet. Safe to call twice."""
        if self._closed:
            raise ClientClosed("this client is closed", hint="make another one")
        if self._loop is not None:
            self.require_usable()
            return
        self._loop = asyncio.get_running_loop()
        self.telemetry.look()
        self._tasks.run_every(self._heartbeat_interval_s, self._beat_regularly, "heartbeat")
        self._tasks.run_every(ROUTE_INTERVAL_S, self._refresh_regularly, "refresh of routes")
        self._tasks.run_every(LOOK_INTERVAL_S, self._broker_watch.look, "look for brokers")

    async def close(self) -> None:
        """Leaves all groups, ends all tasks and closes all connections. Safe to call twice.

        A close that was cancelled can be repeated.
        """
        if self._has_ended:
            return
        self._closed = True
        for ending in list(self._endings):
            ending()
        await self._tasks.end()
        groups = [
            UnregisterClient(client_id=self.client_id, producer_group=group) for group in self._producers
        ]
        groups += [
            UnregisterClient(client_id=self.client_id, consumer_group=provider().group_name)
            for provider in self._consumers
        ]
        await asyncio.gather(*(self._leave(group) for group in groups))
        self._producers.clear()
        self._consumers.clear()
        # A peer that reads nothing must not hold us up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(goodbye_timeout_s() + GOODBYE_TIMEOUT_MIN_S):
                await self.connections.close()
        for network in self._networks.values():
            network.close()
        self._has_ended = True

    def at_end(self, ending: Callable[[], None]) -> None:
        """Calls a function when the session closes. The function must not raise."""
        self._endings.append(ending)

    def remove_ending(self, ending: Callable[[], None]) -> None:
        self._endings.remove(ending)

    def network(self, purpose: Literal["send", "pull"]) -> Network:
        """Returns the data plane's connections for one purpose, and opens them when first needed.

        Pulls have connections of their own, because their long answers would delay the answers to sends.
        Brokers send no requests there: they know our groups by the connections of this session.
        """
        if purpose not in self._networks:
            self._networks[purpose] = Network(NetworkSettings())
        return self._networks[purpose]

    @property
    def closed(self) -> bool:
        return self._closed

    def require_usable(self) -> None:
        """Raises if a call cannot work: closed, not started, after a fork, or on another event loop."""
        if self._closed:
            raise ClientClosed("this client is closed", hint="make another one")
        self.require_process()
        if self._loop is None:
            raise ClientClosed(
                "this client is not started", hint="use it as a context manager, or call start"
            )
        self.require_loop()

    def require_process(self) -> None:
        """Raises UsageError after a fork."""
        require_process(self._pid)

    def require_loop(self) -> None:
        """Raises UsageError if the client was started on another event loop."""
        # Unlike its public sister it does not raise in a plain thread.
        if self._loop is not None and asyncio._get_running_loop() is not self._loop:
            raise UsageError(
                "this client belongs to another event loop",
                hint="make one in each event loop, or use metaq.Client, which any thread may call",
            )

    # Calls

    async def call(
        self,
        broker: str,
        command: Command,
        body: bytes = b"",
        *,
        timeout: float = CALL_TIMEOUT_S,
        broker_id: int = MASTER_ID,
    ) -> Reply:
        """Sends a request to a broker, by name or address, and returns the answer, whatever its code.

        Raises Unreachable if no answer comes, and NoRoute if the broker's name is unknown.
        """
        try:
            return await self.connections.call(self.address(broker, broker_id), command, body, timeout)
        except (Unreachable, NoRoute):
            self._refresh_routes_soon()
            raise

    async def call_group(
        self, queue: Queue, command: Command, body: bytes = b"", *, timeout: float = CALL_TIMEOUT_S
    ) -> Reply:
        """Asks the master of a queue's broker, or a replica while there is no master.

        A node that cannot be reached is looked up again, and asked once more if it has moved. Raises the
        errors of `call`.
        """
        address = self._group_address(queue.broker)
        try:
            return await self.connections.call(address, command, body, timeout)
        except Unreachable:
            await self.routes.get(queue.topic, refresh=True)
            moved = self._group_address(queue.broker)
            if moved == address:
                raise
        return await self.connections.call(moved, command, body, timeout)

    def _group_address(self, broker: str) -> str:
        return self.routes.group_address(broker) or self.address(broker)

    async def send_oneway(self, broker: str, command: Command, body: bytes = b"") -> None:
        """Sends a request without an answer. Raises the errors of `call`."""
        await self.connections.send_oneway(self.address(broker), command, body)

    async def ask_nameserver(self, command: Command) -> Reply:
        """Returns the answer of the first name server that replies. Raises Unreachable."""
        return await self._nameservers.ask(command)

    async def wait_for_nameserver(self, timeout: float) -> None:
        """Waits until a name server answers. Raises Unreachable after the timeout."""
        problem: MetaqError = Unreachable(f"no name server answered within {timeout:g} s")
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        (await self._nameservers.ask(GetBrokerClusterInfo())).check()
                        return
                    except (Unreachable, Refused) as error:
                        problem = error
                    await asyncio.sleep(NAMESERVER_INTERVAL_S)
        except TimeoutError:
            raise problem from None

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str:
        """Returns the address of a broker; an address stands for itself. Raises NoRoute."""
        address = self.routes.address(broker, broker_id)
        if address is not None:
            return address
        if ":" in broker:
            return broker
        which = "master" if broker_id == MASTER_ID else f"broker {broker_id}"
        raise NoRoute(
            f"no route contains a {which} of {broker}",
            hint="the broker may be down, or not registered with this name server",
        )

    # Membership

    async def add_producer(self, group: str) -> None:
        """Registers a producer of the group with the brokers."""
        self.telemetry.look()
        self._producers[group] = self._producers.get(group, 0) + 1
        if self._producers[group] == 1:
            await self.beat()
        if self._broker_watch.wants_masters:
            self._look_for_brokers()

    def know_all_brokers(self) -> None:
        """Makes every master of the cluster know our producers from now on, whether or not they send there.
        Any thread may call it."""
        self._broker_watch.wants_masters = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._look_for_brokers)

    def _look_for_brokers(self) -> None:
        if not self._closed:
            self._tasks.run_once(self._broker_watch.look, "look for brokers")

    async def remove_producer(self, group: str) -> None:
        """Leaves the group if no other producer of this client is in it."""
        count = self._producers.get(group, 0)
        if count > 1:
            self._producers[group] = count - 1
        elif count == 1:
            del self._producers[group]
            await self._leave(UnregisterClient(client_id=self.client_id, producer_group=group))

    async def add_consumer(self, provider: Provider) -> None:
        """Registers a consumer with the brokers. Each heartbeat asks the provider about it."""
        self.telemetry.look()
        self._consumers.append(provider)
        await self.beat()

    async def remove_consumer(self, provider: Provider) -> None:
        """Leaves the group; brokers notify its other members at once."""
        if provider in self._consumers:
            self._consumers.remove(provider)
            group = provider().group_name
            await self._leave(UnregisterClient(client_id=self.client_id, consumer_group=group))

    async def beat(self) -> None:
        """Sends a heartbeat to every known broker now. Failures are logged."""
        addresses = self._heartbeat_addresses() | self._broker_watch.masters
        await asyncio.gather(*map(self._beat_one, addresses))

    # Requests from brokers

    def on_request(self, code: int, handler: Handler) -> None:
        """Adds a handler for a request code. Handlers are asked in turn while they return NOT_MINE."""
        self._handlers.setdefault(code, []).append(handler)

    def remove_handler(self, code: int, handler: Handler) -> None:
        with contextlib.suppress(ValueError):
            self._handlers.get(code, []).remove(handler)

    async def _answer(self, address: str, frame: Frame) -> Response | None:
        for handler in list(self._handlers.get(frame.code, ())):
            response = await handler(address, frame)
            if response is not NOT_MINE:
                return response
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"this client does not answer request {frame.code}"
        )

    def watch_lost(self, watcher: Callable[[str], None]) -> None:
        """Calls the watcher with the address of a broker whose connection has ended."""
        self._lost_watchers.append(watcher)

    def unwatch_lost(self, watcher: Callable[[str], None]) -> None:
        with contextlib.suppress(ValueError):
            self._lost_watchers.remove(watcher)

    def _connection_ended(self, address: str) -> None:
        if not self._closed:
            for watcher in list(self._lost_watchers):
                watcher(address)

    # Heartbeats and goodbyes

    def _heartbeat_for(self, address: str) -> bytes | None:
        """Returns the heartbeat for a broker; None if it need not know us. A broker that no route shows only
        hears of our producers: it may have to ask them how a transaction ended."""
        from metaq import __version__  # `metaq` imports this module before it has its version.

        is_routed = address in self._heartbeat_addresses()
        consumers = self._consumers if is_routed else []
        producers = self._producers if is_routed or address in self._broker_watch.masters else {}
        if not producers and not consumers:
            return None
        return HeartbeatData(
            client_id=self.client_id,
            client_version=__version__,
            consumer_data_set=[provider() for provider in consumers],
            producer_data_set=[ProducerData(group_name=group) for group in producers],
        ).encode()

    def _heartbeat_addresses(self) -> set[str]:
        """Returns the addresses of all masters, and with consumers also of replicas, which they may read."""
        return {
            address
            for addresses in self.routes.brokers().values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or self._consumers
        }

    async def _beat_one(self, address: str) -> None:
        if self._heartbeat_for(address) is None:
            return
        try:
            await self._greet(await self.connections.get(address))
        except MetaqError as error:
            _log.info("heartbeat to %s failed: %s", address, error)

    async def _greet(self, connection: Connection) -> None:
        """Sends a heartbeat. It comes first on a new connection: a restarted broker does not know us."""
        data = self._heartbeat_for(connection.address)
        if data is None:
            return
        under_way = asyncio.get_running_loop().create_future()
        self._beats.add(under_way)
        try:
            (await connection.call(HeartBeat(), data, CALL_TIMEOUT_S)).check()
        finally:
            self._beats.discard(under_way)
            under_way.set_result(None)

    async def _leave(self, command: UnregisterClient) -> None:
        async def leave(connection: Connection) -> None:
            # A broker that we cannot tell forgets us when the connection ends.
            with contextlib.suppress(MetaqError):
                await connection.call(command, timeout=goodbye_timeout_s())

        # A broker handles requests side by side: a heartbeat that is under way could bring us back.
        if self._beats:
            await asyncio.wait(set(self._beats), timeout=goodbye_timeout_s())
        known = self._heartbeat_addresses() | self._broker_watch.masters
        opened = [connection for connection in self.connections.opened() if connection.address in known]
        await asyncio.gather(*(leave(connection) for connection in opened))

    def _brokers_changed(self) -> None:
        if not self._closed and self._loop is not None:
            self._tasks.run_once(self.beat, "heartbeat to new brokers")

    async def _beat_regularly(self) -> None:
        self.telemetry.look()
        await self.beat()

    async def _refresh_regularly(self) -> None:
        self.unique_ids.begin_month(month_start_ms())
        await self.routes.refresh_all()

    def _refresh_routes_soon(self) -> None:
        """Refreshes routes because a broker could not be reached: it may have moved."""
        now = time.monotonic()
        if not self._closed and now >= self._routes_due:
            self._routes_due = now + ROUTE_LOST_INTERVAL_S
            self._tasks.run_once(self.routes.refresh_all, "refresh of routes")


def _addresses(nameservers: str) -> tuple[str, ...]:
    if not isinstance(nameservers, str):
        raise UsageError(f"nameservers is a str such as 'host:9876', not {type(nameservers).__name__}")
    return split_addresses(nameservers)


def _own_address(nameserver: str) -> str:
    """Returns the address of this machine as the name server sees it. Sends nothing."""
    host, port = split_address(nameserver)
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
