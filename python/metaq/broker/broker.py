"""A broker: its parts put together, started in order and stopped in the reverse one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path

from metaq._core import Clock, Closed, Server, Store
from metaq.broker.background.rebalance_notices import Notices
from metaq.broker.background.registration import Registration
from metaq.broker.background.subscription_inquiry import Inquiry
from metaq.broker.background.transaction_checks import Transactions
from metaq.broker.functions import Functions
from metaq.broker.options import BrokerOptions
from metaq.broker.requests import admin, consumption, resets
from metaq.broker.requests.admin import Admin
from metaq.broker.requests.consumption import Consumption
from metaq.broker.requests.heartbeats import Heartbeats
from metaq.broker.requests.messages import Messages
from metaq.broker.requests.recall import Recalls
from metaq.broker.requests.relays import Relays
from metaq.broker.requests.replies import Replies
from metaq.broker.requests.resets import Resets
from metaq.broker.requests.retry import Retries
from metaq.broker.requests.topics import TopicRequests
from metaq.broker.requests.unsupported import Absent
from metaq.broker.state.clients import Change, Clients, ConsumerGroup
from metaq.broker.state.delay_progress import DelayProgress
from metaq.broker.state.filters import Filters
from metaq.broker.state.groups import GroupDeletion, Groups
from metaq.broker.state.locks import QueueLocks
from metaq.broker.state.offsets import Offsets
from metaq.broker.state.policy import PolicyFeed
from metaq.broker.state.runtime_switches import Switches
from metaq.broker.state.stats import SAMPLE_INTERVAL_S, Statistics
from metaq.broker.state.topics import Topics
from metaq.protocol.dispatch import Handlers
from metaq.protocol.pump import Pump

log = logging.getLogger(__name__)

FIRST_REGISTRATION_WAIT_S = 2.0
CATCH_UP_TIMEOUT_MS = 60_000
HOUSEKEEPING_INTERVAL_S = 1.0
PROTECT_INTERVAL_S = 30.0
FUNCTIONS_REST_INTERVAL_S = 10.0
CLOCK_DRIFT_MS_MAX = 5_000
"""Beyond it the clock was set or the process did not run, and the time that passed means nothing."""


class Broker:
    """One broker; `start` returns once clients may connect and the name servers have been tried."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        directory = Path(options.store.directory) / "config"
        self.topics = Topics(options, clock, directory, self._topics_changed)
        self.groups = Groups(options, clock, directory, self._groups_changed)
        self.clients = Clients(clock, options.client_expiry_s, self._consumers_changed)
        self.locks = QueueLocks(clock, self.topics)
        self.registration = Registration(
            options, self.topics, lambda: self.address, lambda: self.admin.permission
        )
        self.switches = Switches()
        self.functions = Functions(options.filters)
        self._directory = directory
        self._tasks: list[asyncio.Task[None]] = []
        self._house_kept_ms = clock.now_ms()
        self._undo = AsyncExitStack()

    @property
    def address(self) -> str:
        """`host:port` that clients are told."""
        host, _, port = self.options.broker.store_host.rpartition(":")
        return f"{host}:{self.server.port if port == '0' else port}"

    @property
    def old_address(self) -> str | None:
        """The same for clients up to 4.4, where that second port is open."""
        port = self.server.old_port
        return None if port is None else f"{self.address.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Raises ConfigError, StoreFailure, MetadataDamaged or OSError; nothing is left open then."""
        async with AsyncExitStack() as undo:
            await self.functions.load()
            await self._open(undo)
            self._compose()
            self.topics.load()
            self.groups.load()
            self.offsets.load()
            self.delays.load()
            await self.transactions.load()
            undo.push_async_callback(self._persist_everything)
            undo.push_async_callback(asyncio.to_thread, self.server.stop)
            self.server.set_permission(self.options.permission)
            self.policy.send_all()
            await self.topics.publish(())
            await self.groups.publish(())
            await self.offsets.protect()
            # What comes from now on counts, also what comes before the next look.
            await asyncio.to_thread(self.statistics.sample)
            self.server.start()
            self.pump.start()
            undo.push_async_callback(self.pump.stop)
            self.functions.start(self.server)
            undo.push_async_callback(self.functions.stop)
            # Clients are let in before they are told the address, so none of them finds the door shut.
            undo.push_async_callback(self.registration.stop)
            await self.registration.start(FIRST_REGISTRATION_WAIT_S)
            undo.push_async_callback(self._end_housekeeping)
            self._begin_housekeeping()
            self._undo = undo.pop_all()
        log.info("broker %s is up at %s", self.options.broker.name, self.address)

    async def stop(self) -> None:
        """Undoes the start step by step, the routes first, so that clients go elsewhere. Twice is no harm."""
        undo, self._undo = self._undo, AsyncExitStack()
        await undo.aclose()

    def skip_time(self, by_ms: int, *, silent: bool = False) -> None:
        """The clock was moved by so much, and that is to count as time that passed. Clients did what they do
        meanwhile, unless they were `silent`; leases run on."""
        self._house_kept_ms += by_ms
        if not silent:
            self.clients.shift_time(by_ms)

    async def catch_up(self) -> None:
        """Does at once what is due by a moved clock; without this it is done a little later."""
        await self._keep_house()
        await self.transactions.check()
        if not await asyncio.to_thread(self.server.catch_up, CATCH_UP_TIMEOUT_MS):
            log.warning("not everything that is due by the moved clock has been delivered yet")

    async def _open(self, undo: AsyncExitStack) -> None:
        options = self.options
        self.store = await asyncio.to_thread(Store, options.store, self.clock)
        undo.push_async_callback(asyncio.to_thread, self.store.close)
        self.server = Server(options.server, self.store, options.broker)
        undo.push_async_callback(asyncio.to_thread, self.server.stop)

    def _compose(self) -> None:
        filters = Filters(self.options.enable_property_filter, self.functions.known)
        inquiry = Inquiry(
            self.clients, self.clock, lambda connection, command: self.pump.invoke(connection, command)
        )
        self.policy = PolicyFeed(
            self.server,
            self.topics,
            self.groups,
            self.clients,
            filters,
            send_default=self.options.send_default,
            consume_default=self.options.consume_default,
        )
        self.delays = DelayProgress(self.server, self.clock, self._directory)
        self.offsets = Offsets(self.server, self.store, self.clock, self._directory, self.groups)
        self.statistics = Statistics(self.server, self.store, self.clock, self.options.broker.cluster)
        self.admin = Admin(
            admin.Parts(
                options=self.options,
                clock=self.clock,
                server=self.server,
                store=self.store,
                topics=self.topics,
                groups=self.groups,
                statistics=self.statistics,
                switches=self.switches,
                address=lambda: self.address,
                filter_figures=self.functions.figures,
            )
        )
        self.handlers = Handlers(
            self.groups,
            self.locks,
            self.offsets,
            self.delays,
            self.admin,
            self.statistics,
            Absent(self.store),
            GroupDeletion(self.groups, self.server),
            Heartbeats(self.clients, self.groups, self.topics, self.clock, filters),
            Messages(self.topics, self.groups, self.store, self.server, filters, inquiry),
            Retries(self.topics, self.groups, self.store, self.server),
            Recalls(self.options, self.clock, self.server, self.topics, lambda: self.admin.permission),
            TopicRequests(
                self.topics, self.store, self.server, self.options.broker.name, lambda: self.address
            ),
        )
        self.pump = Pump(self.server, self.handlers, on_closed=self._connection_closed)
        self._compose_what_asks_clients()
        self.notices = Notices(self.pump, self.clients, self.groups)
        self.transactions = Transactions(self.options, self.clock, self.server, self.clients, self.pump)
        self.handlers.add(self.transactions)

    def _compose_what_asks_clients(self) -> None:
        """What needs the pump, which in turn needs the handlers."""
        name = self.options.broker.name
        self.handlers.add(
            Consumption(
                consumption.Parts(
                    broker_name=name,
                    clock=self.clock,
                    server=self.server,
                    store=self.store,
                    topics=self.topics,
                    groups=self.groups,
                    clients=self.clients,
                    statistics=self.statistics,
                    address=lambda: self.address,
                )
            )
        )
        self.handlers.add(
            Resets(
                resets.Parts(
                    server=self.server,
                    store=self.store,
                    topics=self.topics,
                    groups=self.groups,
                    clients=self.clients,
                    offsets=self.offsets,
                    statistics=self.statistics,
                    switches=self.switches,
                    broker_name=name,
                    tell=self.pump.send_oneway,
                )
            )
        )
        self.handlers.add(Relays(self.pump, self.clients, self.store, self.topics, self.groups, name))
        self.handlers.add(
            Replies(
                self.pump,
                self.clients,
                self.topics,
                self.clock,
                self.switches,
                lambda: self.address,
                self.options.broker.region,
            )
        )

    async def _persist_everything(self) -> None:
        """At the stop, when nothing changes any more."""
        results = await asyncio.gather(
            self._persist_offsets(),
            self.delays.persist(),
            self.topics.publish(()),
            self.groups.publish(()),
            return_exceptions=True,
        )
        for error in results:
            if isinstance(error, BaseException):
                log.error("not everything was written at the stop: %s", error)

    async def _persist_offsets(self) -> None:
        await self.transactions.keep_offsets()
        await self.offsets.persist()

    # What changes here and whom it concerns

    async def _topics_changed(self, touched: Collection[str]) -> None:
        self.policy.send_topics(touched)
        await self.registration.announce()

    def _groups_changed(self, touched: Collection[str]) -> None:
        self.policy.send_groups(touched)

    def _consumers_changed(self, group: ConsumerGroup, change: Change) -> None:
        self.policy.send_groups([group.name])
        if change is Change.SHARES:
            self.notices.consumers_changed(group)

    def _connection_closed(self, closed: Closed) -> None:
        self.clients.remove_connection(closed.connection)

    # What is done again and again

    def _begin_housekeeping(self) -> None:
        self._house_kept_ms = self.clock.now_ms()
        self._every(HOUSEKEEPING_INTERVAL_S, self._keep_house)
        self._every(self.options.offsets_persist_interval_s, self._persist_offsets)
        self._every(self.options.offsets_persist_interval_s, self.delays.persist)
        self._every(PROTECT_INTERVAL_S, self.offsets.protect)
        self._every(HOUSEKEEPING_INTERVAL_S, self.transactions.check)
        self._every(FUNCTIONS_REST_INTERVAL_S, self.functions.rest)
        self._every(SAMPLE_INTERVAL_S, lambda: asyncio.to_thread(self.statistics.sample))

    async def _end_housekeeping(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.notices.stop()

    def _every(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_s)
                try:
                    await work()
                except Exception:
                    # One failure, such as a full disk, must not end the housekeeping for good.
                    log.exception("housekeeping failed and will be tried again")

        self._tasks.append(asyncio.create_task(repeat()))

    async def _keep_house(self) -> None:
        now_ms, before_ms = self.clock.now_ms(), self._house_kept_ms
        self._house_kept_ms = now_ms
        drift_ms = now_ms - before_ms - int(HOUSEKEEPING_INTERVAL_S * 1000)
        if abs(drift_ms) > CLOCK_DRIFT_MS_MAX:
            log.warning("the clock moved by %d ms between two looks at it", now_ms - before_ms)
            self.clients.shift_time(drift_ms)
            self.locks.shift_time(drift_ms)
        for report in self.store.take_reports():
            log.warning("store: %s", report)
        for member in self.clients.remove_expired():
            log.warning("client %s (%s) was silent for too long", member.client_id, member.remote)
        self.locks.forget_expired()
