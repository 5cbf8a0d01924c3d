"""The pause of clients when the master changes: kills it, then switches it by plan, while our client sends.

A pause is the longest time between two acknowledgements that follow each other, from just before the event
until all nodes are in sync again. There is no peer.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.workloads import Outcome, Plan, say
from metaq import MetaqError, aio
from metaq.admin.brokers.broker_groups import BrokerGroups
from metaq.cli.reading.connection import broker_groups
from metaq.dev.plan import CLUSTER
from metaq.protocol.commands.replication import GroupStatus
from tests.support.dev_cluster import DevCluster

GROUP = "broker-a"
NODES = (1, 2, 3)
BODY = b"x" * 128
CALM_S = 1.0
"""How long messages flow between two events."""
SEND_INTERVAL_S = 0.002
POLL_S = 0.1
WELL_TIMEOUT_S = 120.0
_TOPIC = "bench"


@dataclass
class Flow:
    """Sends one message after the other, and notes when each was acknowledged."""

    acknowledged: list[float] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)

    async def run(self, client: aio.Client) -> None:
        async with client.producer("bench") as producer:
            while True:
                try:
                    await producer.send(_TOPIC, BODY)
                    self.acknowledged.append(time.monotonic())
                except MetaqError as error:
                    self.errors.append((time.monotonic(), str(error)))
                await asyncio.sleep(SEND_INTERVAL_S)

    def pause_s(self, begin: float, end: float) -> float:
        """The longest pause that overlaps this time."""
        before = [at for at in self.acknowledged if at <= begin][-1:]
        moments = [*before, *(at for at in self.acknowledged if begin < at <= end), end]
        return max(after - at for at, after in itertools.pairwise(moments))

    def errors_since(self, begin: float) -> int:
        return sum(at >= begin for at, _ in self.errors)


@dataclass(frozen=True)
class Event:
    """One kill or switch, as the client saw it."""

    pause_s: float
    errors: int


def switch(plan: Plan) -> Outcome:
    """Pauses of a client when the master is killed, and when it is switched by plan."""
    arguments = ("--replicas", str(len(NODES)), "--restart-after", "1", "--flush", plan.options.flush)
    with DevCluster(plan.home / "switch", *arguments) as cluster:
        killed, switched = asyncio.run(_measure(cluster, plan.switches))
    outcome = Outcome("switch")
    outcome.add("metaq", figures(killed, switched))
    return outcome


def figures(killed: Sequence[Event], switched: Sequence[Event]) -> dict[str, float]:
    gaps, pauses = [event.pause_s for event in killed], [event.pause_s for event in switched]
    return {
        "killed_p50_s": percentile(gaps, 50),
        "killed_p99_s": percentile(gaps, 99),
        "killed_errors": sum(event.errors for event in killed),
        "switched_p50_s": percentile(pauses, 50),
        "switched_max_s": max(pauses),
        "switched_errors": sum(event.errors for event in switched),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns the percentile by the nearest rank."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


async def _measure(cluster: DevCluster, count: int) -> tuple[list[Event], list[Event]]:
    async with (
        broker_groups(cluster.register, None, CLUSTER) as groups,
        aio.Client(cluster.nameservers) as client,
    ):
        flow = Flow()
        sending = asyncio.create_task(flow.run(client))
        try:
            killed = [await _event("kill", flow, groups, cluster, number) for number in range(1, count + 1)]
            switched = [
                await _event("switch", flow, groups, cluster, number) for number in range(1, count + 1)
            ]
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return killed, switched


async def _event(what: str, flow: Flow, groups: BrokerGroups, cluster: DevCluster, number: int) -> Event:
    before = await _well(groups)
    enough = time.monotonic() + CALM_S
    while not flow.acknowledged or flow.acknowledged[-1] < enough:
        await asyncio.sleep(POLL_S)
    begin = time.monotonic()
    if what == "kill":
        os.kill(cluster.pid(before.master), signal.SIGKILL)
    else:
        await groups.switch(GROUP, next(node_id for node_id in NODES if node_id != before.master))
    after = await _well(groups, beyond=before.epoch)
    # One more acknowledgement, in case the pause has not ended.
    enough = time.monotonic()
    while flow.acknowledged[-1] < enough:
        await asyncio.sleep(POLL_S)
    event = Event(flow.pause_s(begin, flow.acknowledged[-1]), flow.errors_since(begin))
    say(
        f"switch   {what:<6} {number:>3}  node {before.master} → {after.master}, "
        f"pause {event.pause_s:6.3f} s, errors {event.errors}"
    )
    return event


async def _well(groups: BrokerGroups, beyond: int = 0) -> GroupStatus:
    """Waits until all nodes are in sync, in a later epoch than `beyond`. Raises TimeoutError."""
    async with asyncio.timeout(WELL_TIMEOUT_S):
        while True:
            try:
                group = await groups.group(GROUP)
            except MetaqError:
                group = None
            if group is not None and group.epoch > beyond and _is_well(group):
                return group
            await asyncio.sleep(POLL_S)


def _is_well(group: GroupStatus) -> bool:
    in_sync = {node.id for node in group.nodes if node.state == "in sync"}
    return in_sync == set(group.in_sync) == set(NODES) and group.master in in_sync
