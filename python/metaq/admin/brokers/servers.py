"""The servers of a cluster, on asyncio: who they are, their configuration and their figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from metaq.admin.brokers.clients import clients_of, joined
from metaq.admin.calls import Calls, in_parallel
from metaq.admin.results import (
    Broker,
    BrokerConfiguration,
    BrokerFigures,
    BrokerKind,
    BrokerOption,
    ClientKind,
    Cluster,
    ConnectedClients,
    NameServer,
    Switched,
)
from metaq.admin.versions import described_version
from metaq.config.upstream import SAME
from metaq.errors import MetaqError, UsageError
from metaq.protocol.bodies import KVTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import (
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    UpdateBrokerConfig,
)
from metaq.protocol.commands.options import (
    ChangeOptions,
    GetOptions,
    OptionChanges,
    OptionState,
    OptionStates,
)
from metaq.protocol.commands.replication import GroupStatus
from metaq.protocol.commands.routes import (
    GetBrokerClusterInfo,
    GetNameServerConfig,
    UpdateNameServerConfig,
)

if TYPE_CHECKING:
    from metaq.admin.brokers.broker_groups import BrokerGroups


class Brokers:
    """Describes and configures brokers. A broker is named by its name, which means its master, or by its
    address."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def cluster(self) -> Cluster:
        """Returns all name servers and brokers. One that does not answer has an `error`."""
        errors = await self._calls.ask_each_nameserver(GetBrokerClusterInfo())
        info = await self._calls.brokers()
        registered = [
            Broker(name, data.cluster, broker_id, address)
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        brokers = await in_parallel(registered, self._describe)
        return Cluster(
            tuple(
                NameServer(address, None if error is None else str(error))
                for address, error in errors.items()
            ),
            tuple(brokers[broker] for broker in registered),
        )

    async def clients(self, broker: str | None = None, *, kind: ClientKind | None = None) -> ConnectedClients:
        """Lists the producers and consumers that are connected to a broker, or to all; or those of one kind.
        Raises NoRoute for a name that is not known."""
        brokers = [broker] if broker is not None else await self._calls.masters()
        found, failures = await self._calls.from_each(
            brokers, lambda name: clients_of(self._calls, name, kind)
        )
        return ConnectedClients(
            joined(client for name in sorted(found) for client in found[name].clients),
            tuple(note for name in sorted(found) for note in found[name].notes),
            failures,
        )

    async def configuration(self, broker: str) -> BrokerConfiguration:
        """Returns the settings that a broker, or the name server at this address, runs with. Raises NoRoute
        for a name that is not known."""
        is_nameserver = self.is_nameserver(broker)
        reply = await self._calls.ask(broker, GetNameServerConfig() if is_nameserver else GetBrokerConfig())
        values = {}
        for line in reply.body.decode("utf-8", "replace").splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                values[name.strip()] = value.strip()
        return BrokerConfiguration(broker, values)

    def is_nameserver(self, address: str) -> bool:
        """Returns whether this is the address of a name server that was given to this client."""
        return address in self._calls.name_servers

    async def options(self, broker: str) -> tuple[BrokerOption, ...] | None:
        """Returns all options of a broker with their sources; None if the broker is not one of MetaQ's, or
        too old to say. Raises NoRoute for a name that is not known."""
        if self.is_nameserver(broker) or not await self._calls.is_metaq(broker):
            return None
        reply = await self._calls.ask(broker, GetOptions(), accept=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,))
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        return tuple(map(_option, OptionStates.decode(reply.body).options))

    async def changeable_settings(self, broker: str) -> frozenset[str] | None:
        """Returns the settings that `configure` can change, under our names and RocketMQ's; None if the
        broker does not say. Raises NoRoute for a name that is not known."""
        options = await self.options(broker)
        if options is None:
            return None
        changeable = [option for option in options if option.at_run_time]
        return frozenset(name for option in changeable for name in (option.name, option.apache_name) if name)

    async def configure(
        self, broker: str, values: Mapping[str, str], *, persist: bool = False
    ) -> BrokerConfiguration:
        """Changes settings of a running broker, all or none, and returns all of them. Raises Refused, naming
        the settings that can be changed. A MetaQ broker forgets the changes when it stops, unless they
        `persist`; an Apache broker writes them into its configuration file. The address of a name server
        works as well; it forgets them."""
        for name, value in values.items():
            if not name or any(sign in name + value for sign in "\r\n") or "=" in name:
                raise UsageError(f"the setting {name!r} has no name or holds a line break or =")
        if self.is_nameserver(broker):
            if persist:
                raise UsageError(f"{broker} is a name server, which keeps no settings")
            body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
            await self._calls.change(broker, UpdateNameServerConfig(), body)
        elif persist:
            changes = OptionChanges(dict(values), persist=True)
            await self._calls.change(broker, ChangeOptions(), changes.encode())
        else:
            body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
            await self._calls.change(broker, UpdateBrokerConfig(), body)
        return await self.configuration(broker)

    async def unset(self, broker: str, names: Iterable[str]) -> tuple[BrokerOption, ...]:
        """Forgets values that were changed at run time, kept ones too, and returns what counts now: what the
        broker's start would set. Raises Refused for options that cannot change at run time."""
        reply = await self._calls.change(broker, ChangeOptions(), OptionChanges(forget=tuple(names)).encode())
        return tuple(map(_option, OptionStates.decode(reply.body).options))

    async def figures(self, broker: str) -> BrokerFigures:
        """Returns what a broker measures of itself. Raises NoRoute for a name that is not known."""
        reply = await self._calls.ask(broker, GetBrokerRuntimeInfo())
        values = KVTable.decode(reply.body).table
        return BrokerFigures(
            broker,
            version=described_version(values.get("brokerVersionDesc", "")),
            started_ms=_whole(values.get("bootTimestamp")),
            messages_in=_whole(values.get("msgPutTotalTodayNow")),
            messages_out=_whole(values.get("msgGetTotalTodayNow")),
            messages_in_per_second=_first_rate(values.get("putTps")),
            messages_out_per_second=_first_rate(values.get("getTransferredTps")),
            disk_used_ratio=_fraction(values.get("commitLogDiskRatio")),
            earliest_stored_ms=_whole(values.get("earliestMessageTimeStamp")),
            values=dict(values),
        )

    async def group(self, name: str) -> GroupStatus:
        """Returns the state of a broker group: who is master, and who is in sync. Raises CommandError if
        there is none; Apache's brokers are in none."""
        return await self._groups().group(name)

    async def switch(self, name: str, to: int) -> Switched:
        """Makes another node of a broker group master, without losses. Raises CommandError or Refused if that
        is not possible; then the master stays."""
        return await self._groups().switch(name, to)

    async def drain(self, broker: str, *, wait_s: int | None = None) -> GroupStatus | None:
        """Takes a broker out of service: `name/id`, an address, or the name of a lone broker. Returns its
        group as it sees it afterwards. A lone broker refuses messages, and stops when its clients have left,
        or after `wait_s`. Raises CommandError or Refused if it cannot be drained; then it serves on."""
        return (await self._groups().drain(broker, wait_s=wait_s))[1]

    def _groups(self) -> BrokerGroups:
        # It loads the register, which Spark's processes do not need.
        from metaq.admin.brokers.broker_groups import BrokerGroups

        return BrokerGroups(self._calls, None)

    async def _describe(self, broker: Broker) -> Broker:
        try:
            figures = await self.figures(broker.address)
            is_metaq = await self._calls.is_metaq(broker.address)
        except MetaqError as error:
            return Broker(broker.name, broker.cluster, broker.id, broker.address, error=str(error))
        kind: BrokerKind = "metaq" if is_metaq else "rocketmq"
        return Broker(broker.name, broker.cluster, broker.id, broker.address, kind, figures.version)


_APACHE_NAMES: Final = {option: key for key, (option, _) in SAME.items()}


def _option(state: OptionState) -> BrokerOption:
    return BrokerOption(
        state.name,
        state.value,
        state.source,
        state.origin,
        state.at_run_time,
        state.next_start,
        _APACHE_NAMES.get(state.name),
    )


def _whole(text: str | None) -> int | None:
    """Brokers write -1 for a missing value."""
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None


def _fraction(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None


def _first_rate(text: str | None) -> float | None:
    """Brokers write three rates: of the last ten seconds, minute and ten minutes."""
    return _fraction((text or "").split(" ")[0])
