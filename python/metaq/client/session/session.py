"""What every part of a client shares: connections, routes, heartbeats and what brokers ask of it."""

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
from metaq.client.producer.unique_ids import month_start_ms, unique_ids
from metaq.client.session.routes import MASTER_ID, NameServers, Queue, Route, Routes
from metaq.client.telemetry.telemetry import Telemetry
from metaq.errors import ClientClosed, MetaqError, NoRoute, UsageError
from metaq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from metaq.protocol.clients import HeartBeat, UnregisterClient
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Response
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply
from metaq.remoting import Connection, Connections, split_address
from metaq.settings import NetworkSettings

__all__ = ["NOT_MINE", "Queue", "Route", "Session"]

_log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 30.0
ROUTE_INTERVAL_S: Final = 30.0
ROUTE_LOST_INTERVAL_S: Final = 1.0
"""At most so often routes are asked for because a broker could not be reached."""
CALL_TIMEOUT_S: Final = 5.0
LEAVE_TIMEOUT_S: Final = 1.0

Provider = Callable[[], ConsumerData]
"""What a consumer says of itself in the next heartbeat."""

Handler = Callable[[str, Frame], Awaitable[Response | None]]
"""Answers what the broker at an address asks, in a task of its own; NOT_MINE passes it on."""

NOT_MINE: Final = Response()
"""Returned (this very object) by a handler for what is meant for another one of the same code."""


class Session:
    """One client as brokers see it. It belongs to the event loop that started it and to its process.

    Nothing of the user's runs here: heartbeats go on however long a handler takes.
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
        """`nameservers` is `host:port`, several separated by semicolons. Raises UsageError."""
        addresses = _addresses(nameservers)
        self._host = _own_address(addresses[0])
        self.client_id = client_id or f"{self._host}@{os.getpid()}#{time.time_ns()}"
        self.unique_ids = unique_ids(self._host)
        self._networks: dict[str, Network] = {}
        self._endings: list[Callable[[], None]] = []
        self.connections = Connections(on_request=self._take, on_open=self._greet, binary=True)
        self._nameservers = NameServers(addresses, self.connections.call)
        self.routes = Routes(self._nameservers.ask, self._brokers_changed)
        self.telemetry = Telemetry(
            self.client_id, self.routes, tracer_provider=tracer_provider, meter_provider=meter_provider
        )
        self._heartbeat_interval_s = heartbeat_interval_s
        self._producers: dict[str, int] = {}
        self._consumers: list[Provider] = []
        self._handlers: dict[int, list[Handler]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._closed = False
        self._routes_due = 0.0

    # Its life

    async def start(self) -> None:
        """Begins to keep routes and heartbeats; connects to nothing yet. Safe to call twice."""
        if self._closed:
            raise ClientClosed("this client is closed", hint="make another one")
        if self._loop is not None:
            self.require_usable()
            return
        self._loop = asyncio.get_running_loop()
        self.telemetry.look()
        self._spawn(self._keep_beating, "heartbeats")
        self._spawn(self._keep_routes, "routes")

    async def close(self) -> None:
        """Leaves every group, ends its tasks and closes its connections. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for ending in list(self._endings):
            ending()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        groups = [
            UnregisterClient(client_id=self.client_id, producer_group=group) for group in self._producers
        ]
        groups += [
            UnregisterClient(client_id=self.client_id, consumer_group=provider().group_name)
            for provider in self._consumers
        ]
        for group in groups:
            await self._leave(group)
        self._producers.clear()
        self._consumers.clear()
        await self.connections.close()
        for network in self._networks.values():
            network.close()

    def at_end(self, ending: Callable[[], None]) -> None:
        """Called when the session is closed, however that came about; it must not raise."""
        self._endings.append(ending)

    def remove_ending(self, ending: Callable[[], None]) -> None:
        self._endings.remove(ending)

    def network(self, purpose: Literal["send", "pull"]) -> Network:
        """Connections of the data plane, for what touches every message; started when first needed. What is
        pulled is long, and would keep the answers of what is sent waiting.

        Brokers ask nothing of us there: they know our groups by the connections of this session.
        """
        if purpose not in self._networks:
            self._networks[purpose] = Network(NetworkSettings())
        return self._networks[purpose]

    @property
    def closed(self) -> bool:
        return self._closed

    def require_usable(self) -> None:
        """Raises where a call cannot work: closed, not started, after a fork, on another event loop."""
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
        if os.getpid() != self._pid:
            raise UsageError(
                "this client was made before a fork and belongs to the other process",
                hint="make one in each process",
            )

    def require_loop(self) -> None:
        """Raises UsageError where it was started on another event loop."""
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
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
        """Asks a broker, by its name or its address; the answer may have any code.

        Raises Unreachable where no answer comes, NoRoute where the broker's name is unknown.
        """
        try:
            return await self.connections.call(self.address(broker, broker_id), command, body, timeout)
        except (Unreachable, NoRoute):
            self._refresh_routes_soon()
            raise

    async def send_oneway(self, broker: str, command: Command, body: bytes = b"") -> None:
        """Tells a broker and waits for no answer; raises as `call` does."""
        await self.connections.send_oneway(self.address(broker), command, body)

    async def ask_nameserver(self, command: Command) -> Reply:
        """The first name server that answers; raises Unreachable."""
        return await self._nameservers.ask(command)

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str:
        """Where a broker of that name and id is; an address is its own."""
        address = self.routes.address(broker, broker_id)
        if address is not None:
            return address
        if ":" in broker:
            return broker
        which = "master" if broker_id == MASTER_ID else f"broker {broker_id}"
        raise NoRoute(
            f"no route tells of a {which} of {broker}",
            hint="its broker may be down, or not registered with this name server",
        )

    # Membership

    async def add_producer(self, group: str) -> None:
        """From now on brokers know this client as a producer of the group."""
        self.telemetry.look()
        self._producers[group] = self._producers.get(group, 0) + 1
        if self._producers[group] == 1:
            await self.beat()

    async def remove_producer(self, group: str) -> None:
        """Leaves the group where no other producer of this client is in it."""
        count = self._producers.get(group, 0)
        if count > 1:
            self._producers[group] = count - 1
        elif count == 1:
            del self._producers[group]
            await self._leave(UnregisterClient(client_id=self.client_id, producer_group=group))

    async def add_consumer(self, provider: Provider) -> None:
        """From now on brokers know this client as a consumer, as the provider tells for each heartbeat."""
        self.telemetry.look()
        self._consumers.append(provider)
        await self.beat()

    async def remove_consumer(self, provider: Provider) -> None:
        """Leaves the group: brokers tell its other members at once."""
        if provider in self._consumers:
            self._consumers.remove(provider)
            group = provider().group_name
            await self._leave(UnregisterClient(client_id=self.client_id, consumer_group=group))

    async def beat(self) -> None:
        """A heartbeat to every known broker now; one that cannot be reached is left to the next."""
        data = self._heartbeat()
        if data is None:
            return
        addresses = self._members_are_known_by()
        await asyncio.gather(*(self._beat_one(address, data) for address in addresses))

    # What brokers ask

    def on_request(self, code: int, handler: Handler) -> None:
        """Answers this code; handlers of the same code are asked in turn until one does not say NOT_MINE."""
        self._handlers.setdefault(code, []).append(handler)

    def remove_handler(self, code: int, handler: Handler) -> None:
        with contextlib.suppress(ValueError):
            self._handlers.get(code, []).remove(handler)

    async def _take(self, address: str, frame: Frame) -> Response | None:
        for handler in list(self._handlers.get(frame.code, ())):
            response = await handler(address, frame)
            if response is not NOT_MINE:
                return response
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"nothing here answers request {frame.code}")

    # Inside

    def _heartbeat(self) -> bytes | None:
        if not self._producers and not self._consumers:
            return None
        return HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[provider() for provider in self._consumers],
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
        ).encode()

    def _members_are_known_by(self) -> set[str]:
        """Masters; where there are consumers their replicas too, since those may be read from."""
        return {
            address
            for addresses in self.routes.brokers().values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or self._consumers
        }

    async def _beat_one(self, address: str, data: bytes) -> None:
        try:
            connection = await self.connections.get(address)
            (await connection.call(HeartBeat(), data, CALL_TIMEOUT_S)).check()
        except MetaqError as error:
            _log.info("heartbeat to %s: %s", address, error)

    async def _greet(self, connection: Connection) -> None:
        """A broker that was restarted knows nothing of us: the first thing it hears is a heartbeat."""
        data = self._heartbeat()
        if data is not None and connection.address in self._members_are_known_by():
            (await connection.call(HeartBeat(), data, CALL_TIMEOUT_S)).check()

    async def _leave(self, command: UnregisterClient) -> None:
        async def leave(connection: Connection) -> None:
            # Who has no connection is not there for the broker, or will be forgotten by it.
            with contextlib.suppress(MetaqError):
                await connection.call(command, timeout=LEAVE_TIMEOUT_S)

        known = self._members_are_known_by()
        opened = [connection for connection in self.connections.opened() if connection.address in known]
        await asyncio.gather(*(leave(connection) for connection in opened))

    def _brokers_changed(self) -> None:
        if not self._closed and self._loop is not None:
            self._spawn(self.beat, "heartbeat to new brokers")

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            self.telemetry.look()
            await self._reported(self.beat)

    async def _keep_routes(self) -> None:
        while True:
            await asyncio.sleep(ROUTE_INTERVAL_S)
            await self._reported(self.routes.refresh_all)
            self.unique_ids.begin_month(month_start_ms())

    def _refresh_routes_soon(self) -> None:
        """A broker that cannot be reached may have moved: whoever tries again should find it."""
        now = time.monotonic()
        if not self._closed and now >= self._routes_due:
            self._routes_due = now + ROUTE_LOST_INTERVAL_S
            self._spawn(self.routes.refresh_all, "routes of lost brokers")

    async def _reported(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:  # Whatever it is, the next round must come.
            _log.exception("background work of client %s failed", self.client_id)

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        # Called by the task: a coroutine made before is left over where the task is cancelled at once.
        task = asyncio.ensure_future(self._reported(work))
        task.set_name(f"metaq {name}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _addresses(nameservers: str) -> tuple[str, ...]:
    if not isinstance(nameservers, str):
        raise UsageError(f"name servers are a text such as 'host:9876', not {type(nameservers).__name__}")
    addresses = tuple(address.strip() for address in nameservers.split(";") if address.strip())
    if not addresses:
        raise UsageError("no name server is given", hint="write host:port, several separated by semicolons")
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise UsageError(str(error), hint="write host:port, several separated by semicolons") from None
    return addresses


def _own_address(nameserver: str) -> str:
    """The address of this machine as the name server sees it; nothing is sent to find it."""
    host, port = split_address(nameserver)
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
