"""Requests to name servers and brokers, in parallel and with a second try where that is safe."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

from metaq.admin.results import BrokerFailure
from metaq.client.session.answers import read_body
from metaq.client.session.mistaken_address import name_servers_of
from metaq.client.session.routes import NameServers, Route, Routes
from metaq.credentials import Credentials
from metaq.errors import ClientClosed, MetaqError, NoRoute, UsageError
from metaq.protocol.bodies import ClusterInfo
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.messages import MeasureQueue
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.errors import Unreachable
from metaq.protocol.names import MASTER_ID
from metaq.protocol.reply import Reply
from metaq.remoting import Connections, split_addresses
from metaq.retry import retry

_LOG = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_T = TypeVar("_T")

AT_ONCE_MAX: Final = 16
"""Requests that one call has under way."""
UNKNOWN_REQUEST: Final = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
"""The answer of a broker that does not know a request of ours: it is Apache's, or older."""


class Calls:
    """Connections to the servers of one cluster.

    Questions are repeated for `retry_s` while their errors may pass. Changes are sent once: an answer that
    got lost must not make a change twice.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        timeout_s: float,
        retry_s: float,
        is_partial: bool,
        credentials: Credentials | None = None,
    ) -> None:
        self.name_servers = split_addresses(nameservers)
        self.timeout_s = timeout_s
        self._retry_s = retry_s
        self._is_partial = is_partial
        self._closed = False
        self._connections = Connections(connect_timeout=timeout_s, credentials=credentials)
        self._asking = NameServers(self.name_servers, self._call)
        self._routes = Routes(self._ask_nameserver, lambda: None)
        self._brokers: dict[str, dict[int, str]] = {}
        self._lost: set[str] = set()
        """Brokers that could not be reached at the address that we know."""
        self._metaq_addresses: dict[str, bool] = {}

    async def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
        await self._connections.close()

    # Name servers

    async def ask_nameserver(self, command: Command) -> Reply:
        """Returns the answer of the first name server that gives one. Raises Unreachable or Refused."""
        return await retry(lambda: self._ask_nameserver(command), self._retry_s)

    async def tell_nameservers(self, command: Command) -> None:
        """Sends a change to every name server. One that is down learns of it from the brokers later."""

        async def tell(address: str) -> None:
            with contextlib.suppress(Unreachable):
                (await self._call(address, command)).check()

        await in_parallel(self.name_servers, tell)

    async def ask_each_nameserver(self, command: Command) -> dict[str, MetaqError | None]:
        """Asks every name server once. Returns the errors by address."""

        async def ask(address: str) -> MetaqError | None:
            try:
                (await self._call(address, command)).check()
            except MetaqError as error:
                return error
            return None

        return await in_parallel(self.name_servers, ask)

    async def name_servers_of(self, address: str, error: MetaqError) -> str | None:
        """Returns the name servers of a broker that was taken for a name server; None if the error that it
        answered has another reason."""
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        return await name_servers_of(self._call, address)

    async def brokers(self) -> ClusterInfo:
        """Returns all brokers that are registered."""
        return await retry(self._ask_brokers, self._retry_s)

    async def masters(self, cluster: str | None = None) -> list[str]:
        """Returns the names of the brokers that have a master, of one cluster or of all. Raises NoRoute."""
        table = (await self.brokers()).broker_addr_table
        names = sorted(
            name
            for name, data in table.items()
            if MASTER_ID in data.broker_addrs and cluster in (None, data.cluster)
        )
        if not names:
            where = f"cluster {cluster}" if cluster else "the name server"
            raise NoRoute(f"no broker is registered with {where}", hint="is a broker running?")
        return names

    async def route(self, topic: str) -> Route:
        """Returns where the topic lives. Raises NoRoute."""
        route = await retry(lambda: self._routes.get(topic, refresh=True, creatable=True), self._retry_s)
        if route.is_template:
            raise NoRoute(
                f"topic {topic} does not exist",
                hint=f"`metaq topic create {topic}` creates it, `metaq topic list` lists all topics",
            )
        self._brokers.update({name: dict(addresses) for name, addresses in route.brokers.items()})
        return route

    # Brokers

    async def ask(
        self,
        broker: str,
        command: Command,
        *,
        accept: Collection[int] = (),
        broker_id: int = MASTER_ID,
        any_node: bool = False,
        timeout_s: float | None = None,
        retry_s: float | None = None,
    ) -> Reply:
        """Asks a broker, by its name or its address. Raises Unreachable, NoRoute, and Refused for a code that
        is neither success nor accepted.

        With `any_node`, a replica is asked while the broker has no master.
        """

        async def once() -> Reply:
            reply = await self._call_broker(broker, broker_id, command, b"", timeout_s, any_node=any_node)
            return reply if reply.code in accept else reply.check()

        return await retry(once, self._retry_s if retry_s is None else retry_s)

    async def change(
        self,
        broker: str,
        command: Command,
        body: bytes = b"",
        *,
        accept: Collection[int] = (),
        any_node: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Sends a change to a broker, once. Raises as `ask`."""
        reply = await self._call_broker(broker, MASTER_ID, command, body, timeout_s, any_node=any_node)
        return reply if reply.code in accept else reply.check()

    async def from_each(
        self, brokers: Iterable[str], ask: Callable[[str], Awaitable[_T]]
    ) -> tuple[dict[str, _T], tuple[BrokerFailure, ...]]:
        """Asks all brokers in parallel. Returns their answers, and the brokers that gave none, refused or
        answered nonsense; raises what one of those raised if no partial results are wanted, or if no broker
        answered."""
        errors: dict[str, Exception] = {}

        async def one(broker: str) -> list[_T]:
            try:
                return [await ask(broker)]
            except (UsageError, ClientClosed):
                # The caller is wrong, not the broker.
                raise
            except Exception as error:
                if not self._is_partial:
                    raise
                if not isinstance(error, MetaqError):
                    _LOG.warning("the answer of broker %s cannot be read", broker, exc_info=True)
                errors[broker] = error
                return []

        found = await in_parallel(brokers, one)
        answers = {broker: answer[0] for broker, answer in found.items() if answer}
        if errors and not answers:
            # An error that stays says more than one that may pass.
            raise min(errors.values(), key=_may_pass)
        failures = tuple(BrokerFailure(broker, _reason(error)) for broker, error in sorted(errors.items()))
        return answers, failures

    async def on_each(self, brokers: Iterable[str], change: Callable[[str], Awaitable[_T]]) -> dict[str, _T]:
        """Makes a change on all brokers in parallel. If one fails, the others are still changed; then its
        error is raised."""
        errors: list[MetaqError] = []

        async def one(broker: str) -> list[_T]:
            try:
                return [await change(broker)]
            except MetaqError as error:
                errors.append(error)
                return []

        done = await in_parallel(brokers, one)
        if errors:
            raise errors[0]
        return {broker: answer[0] for broker, answer in done.items()}

    async def is_metaq(self, broker: str, broker_id: int = MASTER_ID) -> bool:
        """Returns whether a broker is one of MetaQ's: only those can measure a queue."""
        address = await self.address(broker, broker_id)
        known = self._metaq_addresses.get(address)
        if known is None:
            command = MeasureQueue(topic="", queue_id=0, queue_offset=0, end_offset=0)
            codes = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST)
            reply = await self.ask(address, command, accept=codes)
            known = reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._metaq_addresses[address] = known
        return known

    async def address(self, broker: str, broker_id: int = MASTER_ID, *, any_node: bool = False) -> str:
        """Returns where a broker is; an address is returned as it is. Raises NoRoute.

        With `any_node`, that is the replica with the lowest id while the broker has no master.
        """
        if ":" in broker:
            return broker
        is_known = broker_id in self._brokers.get(broker, {})
        if not is_known or broker in self._lost:
            try:
                await self._ask_brokers()
            except Unreachable:
                # Brokers work without name servers: the old address may still be right.
                if not is_known:
                    raise
        addresses = self._brokers.get(broker, {})
        if any_node and addresses and broker_id not in addresses:
            return addresses[min(addresses)]
        try:
            return addresses[broker_id]
        except KeyError:
            which = "master" if broker_id == MASTER_ID else f"replica {broker_id}"
            error = NoRoute(
                f"broker {broker} has no {which} that is registered",
                hint=f"there are {', '.join(sorted(self._brokers)) or 'no brokers'}",
            )
            error.retriable = True  # It may be starting.
            raise error from None

    # Inside

    async def _call_broker(
        self,
        broker: str,
        broker_id: int,
        command: Command,
        body: bytes,
        timeout_s: float | None,
        *,
        any_node: bool,
    ) -> Reply:
        try:
            address = await self.address(broker, broker_id, any_node=any_node)
            reply = await self._call(address, command, body, timeout_s)
        except Unreachable:
            # It may have moved: the next call asks the name servers where it is.
            self._lost.add(broker)
            raise
        if reply.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._lost.add(broker)  # Another node may be the master by now.
        return reply

    async def _ask_brokers(self) -> ClusterInfo:
        info = await read_body(ClusterInfo, (await self._ask_nameserver(GetBrokerClusterInfo())).body)
        self._brokers = {name: dict(data.broker_addrs) for name, data in info.broker_addr_table.items()}
        self._lost.clear()
        return info

    async def _ask_nameserver(self, command: Command) -> Reply:
        reply = await self._asking.ask(command)
        return reply if reply.code == ResponseCode.TOPIC_NOT_EXIST else reply.check()

    async def _call(
        self, address: str, command: Command, body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        if self._closed:
            raise ClientClosed("this client is closed", hint="make another one")
        return await self._connections.call(address, command, body, timeout_s or self.timeout_s)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, NoRoute) or (isinstance(error, MetaqError) and error.retriable)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MetaqError) else f"{type(error).__name__}: {error}"


async def in_parallel(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_T]], *, at_once: int = AT_ONCE_MAX
) -> dict[_Item, _T]:
    """Works on all items, a bounded number at a time, and returns the results by item. The first error ends
    the rest."""
    wanted = list(items)
    free = asyncio.Semaphore(at_once)

    async def one(item: _Item) -> _T:
        async with free:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in wanted]
    try:
        return dict(zip(wanted, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
