"""One run: the group, its clients, its faults, and the trace of what happened."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable

from metaq.ha.conducting.conductor import Conductor
from metaq.ha.decisions.forced import force_master
from metaq.ha.group_record import Beat, GroupRecord, RecordInvalid
from metaq.ha.settings import HaSettings
from tests.simulation.checks import Oracle, Violation, check
from tests.simulation.clients import Consumer, Producer
from tests.simulation.faulty_register import RegisterStore
from tests.simulation.host import FIXED_MASTER, KEYS, Host
from tests.simulation.network import Network
from tests.simulation.virtual_loop import VirtualLoop


class World:
    """A group of nodes, a register and clients, all driven by one seed."""

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        settings: HaSettings | None = None,
        flush_is_sync: bool = True,
        mutants: Iterable[str] = (),
        send_interval_s: float = 0.08,
        fixed: bool = False,
        old: bool = False,
    ) -> None:
        """With `old`, all nodes begin with a MetaQ that reads no record with a version."""
        self.seed = seed
        self.fixed = fixed
        """Roles are fixed: node 1 is master, and there is no register."""
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.network = Network(self.loop, self.rng)
        self.register = RegisterStore(self.loop, self.network, self.rng)
        self.settings = settings if settings is not None else HaSettings()
        self.flush_is_sync = flush_is_sync
        self.mutants = frozenset(mutants)
        self.trace: list[str] = []
        self.oracle = Oracle(self)
        self.violation: Violation | None = None
        self.losses_allowed = False
        self.must_recover = True
        self.given_up: set[int] = set()
        """Nodes that need not come back."""
        self.clients_stopped = False
        self.oks = self.refusals = 0
        self.acked_after_heal = 0
        self._records = 0
        self.truncation_step: Callable[[Host], None] = lambda host: None
        self.hosts = {node_id: Host(self, node_id) for node_id in range(1, nodes + 1)}
        for host in self.hosts.values():
            host.is_old = old
        self.register.on_swap = self._swapped
        self._send_interval_s = send_interval_s
        self.producers: list[Producer] = []

    # ---- time

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self.loop.run_until(self.loop.time() + seconds)

    def run_until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Lets time pass until something is true. Raises Violation if it takes too long."""
        end = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() >= end:
                raise Violation(f"after {limit_s:g} s still not: {what}")
            self.run(0.05)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.time() - 1000:8.3f}  {text}")

    def _swapped(self, client: str, key: str, value: bytes, outcome: object) -> None:
        if key == KEYS.group:
            self.note(f"node {client} swaps the record to {value.decode()}: {outcome}")
        self._check_older_nodes(key, value)

    def _check_older_nodes(self, key: str, value: bytes) -> None:
        """While a node of the set is old, it must be able to read all that others write."""
        old = {host.name for host in self.hosts.values() if host.is_old}
        if not old & self.in_sync():
            return
        if key == KEYS.group:
            is_readable = set(json.loads(value)) == {"epoch", "master", "in_sync", "min_in_sync"}
        elif key.startswith(KEYS.beats):
            beat = Beat.decode(value)
            is_readable = beat == beat.for_older()
        else:
            return
        if not is_readable:
            self.violation = self.violation or Violation(f"an older node cannot read {value.decode()}")

    # ---- state

    def record(self) -> GroupRecord | None:
        """Returns the group's record; for fixed roles, one made up from what the master believes."""
        if self.fixed:
            node = self.hosts[FIXED_MASTER].node
            if node is None or not node.is_master:
                return None
            return GroupRecord(node.epoch, FIXED_MASTER, tuple(node.required), self.settings.min_in_sync)
        stored = self.register.values.get(KEYS.group)
        try:
            return GroupRecord.decode(stored.value) if stored is not None else None
        except RecordInvalid as error:
            raise Violation(f"a node wrote an invalid record: {error}") from error

    def master(self) -> Host | None:
        """Returns the node that the record names, if it serves in that epoch."""
        record = self.record()
        host = self.hosts.get(record.master) if record is not None else None
        if record is None or host is None or host.node is None or not host.node.is_master:
            return None
        return host if host.node.epoch == record.epoch else None

    def replicas(self) -> list[Host]:
        master = self.master()
        return [host for host in self.hosts.values() if host is not master]

    def in_sync(self) -> set[int]:
        record = self.record()
        return {member.id for member in record.in_sync} if record is not None else set()

    def next_record(self) -> int:
        self._records += 1
        return self._records

    def consumed(self, queue_offset: int, record: int) -> None:
        try:
            self.oracle.consumed(queue_offset, record)
        except Violation as violation:
            if not self.losses_allowed:
                self.violation = self.violation or violation

    def crashed(self, host: Host, error: BaseException) -> None:
        self.note(f"node {host.name} crashes: {error!r}")
        self.oracle.crashes.append(f"node {host.name} crashed: {error!r}")

    # ---- what scenarios do

    def begin(self, producers: int = 2) -> None:
        """Starts all nodes and clients, and waits until everybody is in sync."""
        for host in self.hosts.values():
            self.loop.after(self.rng.random() * 0.2, host.start)
        self.producers = [
            Producer(self, f"client-{number}", self._send_interval_s) for number in range(producers)
        ]
        Consumer(self, 0.1)
        self.run_until(
            lambda: self.in_sync() == set(self.hosts) and self.oks > 0, 20, "all nodes in sync at the start"
        )
        self.run(0.5 + self.rng.random())

    def heal(self) -> None:
        """Ends all faults and starts all nodes that are to come back."""
        self.note("everything heals")
        self.network.heal()
        self.register.up = True
        self.register.late = self.register.lost_answers = self.register.duplicates = 0.0
        self.register.swap_delay_s = lambda client, key, value: 0.0
        self.truncation_step = lambda host: None
        for host in self.hosts.values():
            host.disk.hangs = host.disk.fails = host.disk.is_full = False
            host.thaw()
            if host.node is not None and host.node.facts().disk.value == "failed":
                host.kill()
            if host.name not in self.given_up:
                host.start()

    def finish(self, patience_s: float = 40.0) -> None:
        """Heals everything, waits until the group is whole again, and checks all promises."""
        self.heal()
        oks = self.oks

        def is_whole() -> bool:
            record, master = self.record(), self.master()
            return (
                record is not None
                and master is not None
                and self.in_sync() >= set(self.hosts) - self.given_up
                and not self.read_damage()
                and self.oks > oks + 3
            )

        end = self.loop.time() + patience_s
        while self.must_recover and not is_whole() and self.loop.time() < end:
            self.run(0.25)
        self.acked_after_heal = self.oks - oks
        self.run(0.5)
        self.clients_stopped = True
        self.run(4.0)
        if self.violation is not None:
            raise self.violation
        check(self)

    def read_damage(self) -> bool:
        """Lets consumers read all damaged records; returns whether there are any."""
        is_damaged = False
        for host in self.hosts.values():
            for place in host.disk.damaged():
                is_damaged = True
                if host.node is not None:
                    host.node.read(place)
        return is_damaged

    def force(self, target: int) -> None:
        """An operator names a master in spite of losses."""
        beats = [
            Beat.decode(stored.value)
            for key, stored in self.register.values.items()
            if key.startswith(KEYS.beats)
        ]
        forced = force_master(self.record(), beats, target)
        stored = self.register.values.get(KEYS.group)
        self.register.swap(
            "operator", KEYS.group, stored.revision if stored is not None else 0, forced.record.encode()
        )

    def force_the_best(self) -> None:
        """An operator reads what the running nodes have, and chooses the one that has seen most."""
        running = [host for host in self.hosts.values() if host.running and host.conductor is not None]
        best = max(
            running,
            key=lambda host: (
                host.conductor.driver.kept.promised_record.version,  # type: ignore[union-attr]
                host.conductor.driver.kept.history.log_epoch(host.disk.end),  # type: ignore[union-attr]
                host.disk.state_version,
                host.disk.end,
            ),
        )
        self.note(f"the operator forces node {best.name}")
        self.force(best.name)

    def refuses(self, host: Host) -> bool:
        """Whether a node says that the register went back."""
        view = host.conductor.view if isinstance(host.conductor, Conductor) else None
        return view is not None and bool(view.register.fault)

    def shuffle(self) -> list[Host]:
        hosts = list(self.hosts.values())
        self.rng.shuffle(hosts)
        return hosts
