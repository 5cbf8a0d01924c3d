"""The health of a cluster, on asyncio: collects its state with a few requests to each server, and judges it.

Each name server gets one request, and the first of them two. Each MetaQ broker gets three: for its figures,
its group and its report. An Apache broker has no report; `apache_report.py` asks it for the same facts, with
a bounded number of requests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from metaq.admin.brokers.servers import Brokers
from metaq.admin.calls import Calls, in_parallel
from metaq.admin.groups.consumer_groups import ConsumerGroups
from metaq.admin.health.apache_report import UNKNOWN_AT_APACHE, consumption_of, replicas_of
from metaq.admin.health.findings import judge, summarize
from metaq.admin.health.results import BrokerHealth, Health, ScrubHealth
from metaq.admin.health.state import BrokerState, ClusterState
from metaq.admin.health.stuck_members import stuck_members
from metaq.admin.offsets import Offsets
from metaq.admin.results import BrokerFigures, NameServer
from metaq.errors import MetaqError
from metaq.protocol.bodies import ClusterInfo
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.health import BrokerReport, GetBrokerReport, ScrubReport
from metaq.protocol.commands.replication import GroupStatus
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.names import MASTER_ID

if TYPE_CHECKING:
    from metaq.admin.brokers.broker_groups import Survey

_UNSUPPORTED: Final = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
_REPLICA_BUSY: Final = ResponseCode.SERVICE_NOT_AVAILABLE
_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


class HealthChecks:
    """Judges the health of a cluster."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._brokers = Brokers(calls)
        self._groups = ConsumerGroups(calls, Offsets(calls))

    async def check(
        self, *, cluster: str | None = None, register: str | None = None, ask_name_servers: bool = True
    ) -> Health:
        """Returns the health of one cluster or of all. A server that does not answer is a finding, never an
        error.

        With the address of a register, such as `etcd://host:2379`, the records of its broker groups count,
        and name servers need not be asked. Raises RegisterUnavailable, and ConfigError for a bad address.
        """
        name_servers: tuple[NameServer, ...] = ()
        mistaken: dict[str, str] = {}
        brokers: list[BrokerState] = []
        if ask_name_servers:
            name_servers, mistaken, brokers = await self._ask_name_servers(cluster)
        is_found = any(server.error is None for server in name_servers)
        survey = await self._survey(cluster, register, ask_name_servers=is_found)
        if survey is not None:
            brokers += _only_in_groups(survey.groups, brokers, cluster or "")
        replicated = {broker.name for broker in brokers if not broker.is_master}
        described = await in_parallel(
            brokers, lambda broker: self._describe(broker, has_replicas=broker.name in replicated)
        )
        answered = [described[broker] for broker in brokers]
        state = ClusterState(
            now_ms=_now_ms(),
            name_servers=name_servers,
            mistaken=mistaken,
            brokers=tuple(answered),
            stuck=await stuck_members(self._calls, self._groups, answered) if is_found else (),
            groups=() if survey is None else survey.groups,
            register=register or "",
            notes=() if survey is None else _faults(survey),
        )
        findings = judge(state)
        healthy_brokers = sum(broker.error is None for broker in state.brokers)
        return Health(
            summarize(findings, healthy_brokers),
            findings,
            state.name_servers,
            tuple(_health_of(broker) for broker in state.brokers),
            state.groups,
        )

    async def _ask_name_servers(
        self, cluster: str | None
    ) -> tuple[tuple[NameServer, ...], dict[str, str], list[BrokerState]]:
        infos: list[ClusterInfo] = []
        mistaken: dict[str, str] = {}

        async def ask(address: str) -> NameServer:
            try:
                reply = await self._calls.ask(address, GetBrokerClusterInfo())
                infos.append(ClusterInfo.decode(reply.body))
            except MetaqError as error:
                if (right := await self._calls.name_servers_of(address, error)) is not None:
                    mistaken[address] = right
                return NameServer(address, str(error))
            return NameServer(address)

        asked = await in_parallel(self._calls.name_servers, ask)
        found: dict[tuple[str, int], BrokerState] = {}
        for info in infos:
            for name, data in info.broker_addr_table.items():
                for broker_id, address in data.broker_addrs.items():
                    if cluster in (None, "", data.cluster):
                        found[name, broker_id] = BrokerState(name, data.cluster, broker_id, address)
        return tuple(asked.values()), mistaken, [found[key] for key in sorted(found)]

    async def _survey(
        self, cluster: str | None, register: str | None, *, ask_name_servers: bool
    ) -> Survey | None:
        from metaq.admin.brokers.broker_groups import BrokerGroups

        async with AsyncExitStack() as stack:
            opened = None
            if register is not None:
                from metaq.ha.register import open_register

                opened = open_register(register)
                stack.push_async_callback(opened.close)
            elif not ask_name_servers:
                return None
            groups = BrokerGroups(self._calls, cluster, register=opened, asks_nameservers=ask_name_servers)
            return await groups.survey()

    # One broker

    async def _describe(self, broker: BrokerState, *, has_replicas: bool) -> BrokerState:
        try:
            figures = await self._brokers.figures(broker.address)
            began_ms = _now_ms()
            report = await self._report(broker.address)
            ended_ms = _now_ms()
            if report is None and not await self._calls.is_metaq(broker.address):
                described = await self._describe_apache(broker, figures, began_ms)
                return await self._with_replicas(described) if has_replicas else described
        except MetaqError as error:
            return replace(broker, error=str(error))
        if report is None:
            unknown = ("its health: it is older than this command, or changes its role",)
            return replace(broker, kind="metaq", figures=figures, unknown=unknown)
        return replace(
            broker,
            kind="metaq",
            figures=figures,
            report=report,
            backlogs=report.backlogs,
            dead_letters=report.dead_letters,
            clock_skew_ms=_beyond(report.now_ms, began_ms, ended_ms),
        )

    async def _report(self, address: str) -> BrokerReport | None:
        reply = await self._calls.ask(address, GetBrokerReport(), accept=(_UNSUPPORTED, _REPLICA_BUSY))
        return BrokerReport.decode(reply.body) if reply.code == ResponseCode.SUCCESS else None

    async def _describe_apache(
        self, broker: BrokerState, figures: BrokerFigures, asked_ms: int
    ) -> BrokerState:
        described = replace(
            broker, kind="rocketmq", figures=figures, clock_skew_ms=_skew_of(figures, asked_ms)
        )
        if not broker.is_master:
            return described
        found = await consumption_of(self._calls, broker.address)
        return replace(
            described,
            backlogs=found.backlogs,
            dead_letters=found.dead_letters,
            unknown=(*UNKNOWN_AT_APACHE, *found.unknown),
        )

    async def _with_replicas(self, broker: BrokerState) -> BrokerState:
        if not broker.is_master:
            return broker
        try:
            return replace(broker, apache_replicas=await replicas_of(self._calls, broker.address))
        except MetaqError as error:
            return replace(broker, unknown=(*broker.unknown, f"the state of its replicas ({error})"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _beyond(now_ms: int, began_ms: int, ended_ms: int) -> int:
    """How far a clock that was read between two moments is beyond both of them."""
    if now_ms < began_ms:
        return now_ms - began_ms
    return max(now_ms - ended_ms, 0)


def _skew_of(figures: BrokerFigures, asked_ms: int) -> int | None:
    """Apache's brokers tell their start and how long they run, in whole seconds. Half a second is taken off
    for the rest."""
    found = _RUNTIME.search(figures.values.get("runtime", ""))
    if found is None or figures.started_ms is None:
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    ran_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return figures.started_ms + ran_s * 1000 + 500 - asked_ms


def _only_in_groups(
    groups: tuple[GroupStatus, ...], known: list[BrokerState], cluster: str
) -> Iterator[BrokerState]:
    """Yields the nodes of groups that name servers did not list."""
    addresses = {broker.address for broker in known}
    for group in groups:
        for node in group.nodes:
            if node.address and node.address not in addresses:
                broker_id = MASTER_ID if node.id == group.master else node.id
                yield BrokerState(group.name, cluster, broker_id, node.address)


def _faults(survey: Survey) -> tuple[str, ...]:
    """The notes of a survey, without those about Apache's brokers."""
    return tuple(note for note in survey.notes if note.partition(" ")[0] not in survey.left_out)


def _health_of(broker: BrokerState) -> BrokerHealth:
    health = BrokerHealth(
        broker.name,
        broker.cluster,
        broker.id,
        "master" if broker.is_master else "replica",
        broker.address,
        kind=broker.kind,
        clock_skew_ms=broker.clock_skew_ms,
        error=broker.error,
    )
    if (figures := broker.figures) is not None:
        health = replace(
            health,
            version=figures.version,
            started_ms=figures.started_ms,
            messages_in_per_second=figures.messages_in_per_second,
            messages_out_per_second=figures.messages_out_per_second,
            disk_used_ratio=figures.disk_used_ratio,
        )
    if (report := broker.report) is not None:
        health = replace(
            health,
            metaq_version=report.version,
            metrics_address=report.metrics,
            scrub=None if report.scrub is None else _scrub_of(report.scrub),
        )
    return health


def _scrub_of(report: ScrubReport) -> ScrubHealth:
    return ScrubHealth(
        report.percent,
        report.completed_ms,
        report.damaged,
        report.repaired,
        report.unrepaired,
        is_on=report.interval_ms > 0,
    )
