"""The servers of a cluster, on asyncio: who they are, their configuration and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from metaq.admin.brokers.clients import clients_of, joined
from metaq.admin.calls import Calls, in_parallel
from metaq.admin.results import (
    Broker,
    BrokerConfiguration,
    BrokerFigures,
    BrokerKind,
    ClientKind,
    Cluster,
    ConnectedClients,
    NameServer,
    Switched,
)
from metaq.admin.versions import described_version
from metaq.errors import MetaqError, UsageError
from metaq.protocol.bodies import KVTable
from metaq.protocol.commands.admin import (
    CHANGEABLE_SETTINGS,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    UpdateBrokerConfig,
)
from metaq.protocol.commands.replication import GroupStatus
from metaq.protocol.commands.routes import GetBrokerClusterInfo

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
        """Returns the settings that a broker runs with. Raises NoRoute for a name that is not known."""
        reply = await self._calls.ask(broker, GetBrokerConfig())
        values = {}
        for line in reply.body.decode("utf-8", "replace").splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                values[name.strip()] = value.strip()
        return BrokerConfiguration(broker, values)

    async def changeable_settings(self, broker: str) -> frozenset[str] | None:
        """Returns the settings that `configure` can change; None if the broker is not one of MetaQ's, because
        no other broker says. Raises NoRoute for a name that is not known."""
        return frozenset(CHANGEABLE_SETTINGS) if await self._calls.is_metaq(broker) else None

    async def configure(self, broker: str, values: Mapping[str, str]) -> BrokerConfiguration:
        """Changes settings of a running broker and returns all of them. Raises Refused, naming the settings
        that can be changed. A MetaQ broker forgets the changes when it stops."""
        for name, value in values.items():
            if not name or any(sign in name + value for sign in "\r\n") or "=" in name:
                raise UsageError(f"the setting {name!r} has no name or holds a line break or =")
        body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        await self._calls.change(broker, UpdateBrokerConfig(), body)
        return await self.configuration(broker)

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

    async def drain(self, broker: str) -> GroupStatus | None:
        """Takes a node of a broker group out of service: `name/id` or an address. Returns its group as it
        sees it afterwards. Raises CommandError or Refused if it cannot be drained; then it serves on."""
        return (await self._groups().drain(broker))[1]

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
