"""The invariants of every run: the oracle sees every acknowledgement, and compares all logs at the end."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from metaq.ha.settings import ReplicaMode
from metaq.ha.view import StateVersion

if TYPE_CHECKING:
    from tests.simulation.world import World


class Violation(AssertionError):
    """A promise was broken."""


class Oracle:
    """Remembers what was promised to clients."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.acks: list[tuple[float, int, int, int, int]] = []
        """(time, node, epoch, queue offset, record)"""
        self.masters: dict[int, set[int]] = defaultdict(set)
        self.seen: dict[int, int] = {}
        """The record that a consumer read, by queue offset."""
        self.state_acks: set[StateVersion] = set()
        """The entries of the control state that were acknowledged."""
        self.crashes: list[str] = []
        self.elections = 0
        self.closed_links = 0
        self.repairs = 0
        self.cut_confirmed: list[str] = []
        self.dead: dict[int, set[int]] = defaultdict(set)
        """The records that each node has begun to cut off."""

    def acknowledged(self, node: int, epoch: int, queue_offset: int, record: int) -> None:
        self.acks.append((self._world.loop.time(), node, epoch, queue_offset, record))

    def became_master(self, node: int, epoch: int) -> None:
        self.elections += 1
        self.masters[epoch].add(node)

    def truncated(self, node: int, end: int, confirmed: int) -> None:
        if end < confirmed:
            self.cut_confirmed.append(
                f"node {node} cut its log to {end}, below its confirmed end {confirmed}"
            )

    def cut(self, node: int, records: list[int]) -> None:
        self.dead[node].update(records)

    def repaired(self, node: int, record: int) -> None:
        """Only damaged bytes may be replaced."""
        self.repairs += 1
        if record > 0:
            self.crashes.append(f"node {node} replaced the sound record {record}")

    def received(self, node: int, records: list[int]) -> None:
        if self.dead[node]:
            self.dead[node].difference_update(records)

    def took_role(self, node: int, log: list[int]) -> None:
        """A node that takes part in the group again must not have records that it cut off."""
        if self.dead[node] and (alive := self.dead[node].intersection(log)):
            self.crashes.append(f"a stale tail of node {node} came back to life: {sorted(alive)[:5]}")

    def consumed(self, queue_offset: int, record: int) -> None:
        before = self.seen.setdefault(queue_offset, record)
        if before != record:
            raise Violation(f"queue offset {queue_offset} was {before} for one consumer and is {record} now")


def check(world: World) -> None:
    """Raises Violation if the run broke a promise."""
    oracle = world.oracle
    if oracle.crashes:
        raise Violation(oracle.crashes[0])
    if world.loop.failures:
        raise Violation(f"an error in a task: {world.loop.failures[0]!r}")
    for host in world.hosts.values():
        if host.conductor is not None and host.conductor.driver.unsettled:
            raise Violation(f"the decisions of node {host.name} do not settle")
    check_masters(world)
    if not world.losses_allowed and oracle.cut_confirmed:
        raise Violation(oracle.cut_confirmed[0])
    check_logs(world)


def check_masters(world: World) -> None:
    """One acknowledging master per epoch."""
    for epoch, nodes in world.oracle.masters.items():
        if len(nodes) > 1:
            raise Violation(f"nodes {sorted(nodes)} were masters of epoch {epoch}")
    acking: dict[int, int] = {}
    newest = 0
    for at, node, epoch, _, record in world.oracle.acks:
        if acking.setdefault(epoch, node) != node:
            raise Violation(f"nodes {acking[epoch]} and {node} acknowledged in epoch {epoch}")
        if world.settings.replicas is ReplicaMode.ASYNC:
            if epoch < newest:
                raise Violation(
                    f"at {at:.3f} node {node} acknowledged {record} in epoch {epoch} after {newest}"
                )
            newest = max(newest, epoch)


def check_logs(world: World) -> None:
    """Nothing acknowledged is lost, nothing read vanished, all logs are the same."""
    master = world.master()
    if master is None:
        if world.must_recover:
            raise Violation("the group has no master after everything healed")
        return
    disk = master.disk
    if not world.losses_allowed and (lost := world.oracle.state_acks.difference(disk.state)):
        raise Violation(f"control state {sorted(lost)} was acknowledged, and master {master.name} lacks it")
    final = {place: disk.places[place] for place in range(disk.log_start, disk.end)}
    if not world.losses_allowed:
        for at, node, epoch, queue_offset, record in world.oracle.acks:
            if final.get(queue_offset, record if queue_offset < disk.log_start else None) != record:
                raise Violation(
                    f"record {record}, acknowledged at {at - 1000:.3f} by node {node} in epoch {epoch} at "
                    f"queue offset {queue_offset}, is lost: {final.get(queue_offset)} is there"
                )
        for queue_offset, record in world.oracle.seen.items():
            if final.get(queue_offset, record if queue_offset < disk.log_start else None) != record:
                raise Violation(
                    f"a consumer read {record} at queue offset {queue_offset}, but it has vanished: "
                    f"{final.get(queue_offset)} is there"
                )
    if not world.must_recover:
        return
    if world.acked_after_heal == 0:
        raise Violation("nothing is acknowledged after everything healed")
    for host in world.hosts.values():
        if host.name in world.given_up:
            continue
        if not host.running:
            raise Violation(f"node {host.name} does not run at the end")
        start = max(host.disk.log_start, disk.log_start)
        if host.disk.places[start : host.disk.end] != disk.places[start : disk.end]:
            raise Violation(f"the log of node {host.name} differs from the log of master {master.name}")
        record = world.record()
        if record is None or record.member(host.name) is None:
            raise Violation(f"node {host.name} is not in sync after everything healed: {record}")
