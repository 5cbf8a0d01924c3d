"""One trial: a damage, the healing, every node in turn as master, and the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from metaq.errors import MetaqError
from tests.faults.replication.damage import oracle, plan
from tests.faults.replication.damage.files import NothingToDamage, apply
from tests.faults.replication.damage.operator import Operator
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.reading import (
    Queue,
    Read,
    consume,
    found_by_key,
    knows_topics,
    read_node,
    read_state,
)
from tests.faults.replication.damage.traffic import (
    COMMITS,
    DELAYED,
    QUEUES,
    TOPICS,
    Acknowledged,
    committed_before,
)
from tests.faults.replication.damage.world import World
from tests.faults.replication.nodes import BrokerNode
from tests.support.waiting import wait_until

_ELECTION_S = 120.0
_LATE_S = 60.0
"""Delayed messages come within a second after a new master serves. So they are waited for."""
_LOOK_S = 0.2
_KEYS_ASKED = {plan.INDEX: 60}
_INDEX_S = 10.0
_PARKED_MESSAGES = 30
_BEFORE = 10
_AFTER = 5


@dataclass
class Outcome:
    """The result of one trial."""

    seed: int
    damage: Damage
    what: str = ""
    findings: list[str] = field(default_factory=list)
    detected: bool = False
    repaired: bool = False
    repeated: int = 0
    """How many delayed messages came again: nothing is lost by that."""
    refused: int = 0
    """How often the group or a node refused to serve, said why, and an operator did what it asked for."""
    acts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Lines of the nodes' logs that speak of damage."""
    seconds: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to damage."""
        return self.what.startswith("nothing")

    def report(self) -> str:
        """Returns a line for people, with what is needed to run the trial again."""
        verdict = "ok  " if not self.findings else "FAIL"
        more = f" — {self.findings[0]} ({len(self.findings)} findings)" if self.findings else ""
        return f"{verdict} seed {self.seed}: {self.damage} [{self.what}] {self.seconds:.1f} s{more}"


class Trial:
    """Runs one damage on a world that is healthy."""

    def __init__(self, world: World, seed: int, damage: Damage) -> None:
        self._world, self._damage = world, damage
        self._nodes, self._traffic = world.nodes, world.traffic
        self._choice = random.Random(f"trial {seed}")
        self._outcome = Outcome(seed, damage)
        self._reads: list[Read] = []
        self._checked = 0
        """How many messages were acknowledged when the last reading began."""
        self._read_at = 0.0
        self._pid = 0
        """The process whose files were damaged while it ran."""
        self._committed = 0
        self._topics: dict[str, int] = {}
        self._made = (0, 0)

    def run(self) -> Outcome:
        """Returns the outcome. If it has findings, the world is not healthy any more."""
        outcome, world = self._outcome, self._world
        began, since = time.monotonic(), world.log_sizes()
        try:
            self._prepare()
            victim = self._hurt()
            operator = Operator(world, self._damage, self._choice)
            if self._is_healed(operator):
                self._rotate(victim, operator)
            self._judge()
        except NothingToDamage as nothing:
            outcome.what = f"nothing: {nothing}"
            for node in self._nodes.nodes.values():
                node.thaw()
            self._nodes.start_dead()
            outcome.findings += Operator(world, self._damage, self._choice).heal(world.heal_s)
        except (TimeoutError, AssertionError, OSError, RuntimeError, MetaqError) as error:
            outcome.findings.append(f"stuck: {type(error).__name__}: {str(error)[:300]}")
        outcome.lines = world.log_lines(since)
        outcome.detected = bool(outcome.lines)
        if self._damage.file == plan.NOTHING:
            outcome.findings += [f"false alarm: {line}" for line in outcome.lines if "damaged" in line]
        outcome.repaired = not outcome.findings and not outcome.is_empty
        outcome.seconds = time.monotonic() - began
        return outcome

    # ---- the damage

    def _prepare(self) -> None:
        """Makes something new, and reads what is new so far, as a reference."""
        world, traffic = self._world, self._traffic
        if self._damage.kind == plan.OLDER and self._damage.file != plan.REGISTER:
            world.copy_files("recent")
        traffic.create_topic(f"made-{self._outcome.seed}", self._choice.randrange(1, 4))
        # A topic is acknowledged before other nodes have it; the trial is about what all of them have.
        wait_until(
            lambda: all(knows_topics(node, traffic.memory.topics) for node in self._nodes.nodes.values())
        )
        traffic.flows(_BEFORE)
        settled = time.monotonic() - world.committed_for_s
        self._committed = committed_before(traffic.memory.offsets, settled)
        self._topics = dict(traffic.memory.topics)
        self._made = (len(traffic.memory.committed), len(traffic.memory.undone))
        messages = list(traffic.memory.messages)
        found = read_node(self._nodes.master(), _ends(messages), world.read_to)
        new = [one for one in messages if one.queue_offset >= world.read_to.get((one.topic, one.queue_id), 0)]
        self._outcome.findings += [
            f"before the damage: {one}" for one in oracle.check_read(found, new, world.references)
        ]
        for queue, records in found.records.items():
            if records:
                world.read_to[queue] = records[-1].queue_offset + 1

    def _hurt(self) -> BrokerNode:
        """Does the damage at its moment, and returns the node that it hit."""
        nodes, damage = self._nodes, self._damage
        if damage.file == plan.REGISTER:
            return self._hurt_register()
        master, replicas = nodes.master(), nodes.replicas()
        victim = master if damage.who == plan.MASTER else self._choice.choice(replicas)
        others = [node for node in nodes.nodes.values() if node is not victim]
        {
            plan.STOPPED: self._while_stopped,
            plan.ALL_STOPPED: self._while_all_stopped,
            plan.RUNNING: self._while_running,
            plan.COPY: self._during_copy,
            plan.ELECTION: self._during_election,
            plan.POWER: self._with_power_loss,
        }[damage.moment](victim, others)
        return victim

    def _apply(self, victim: BrokerNode) -> None:
        if self._damage.file == plan.NOTHING:
            self._outcome.what = f"node {victim.id}"
            return
        older = self._world.copies / _BACKUPS.get(self._damage.place, "recent") / str(victim.id)
        self._pid = victim.pid if victim.alive else 0
        done = apply(self._damage, victim.data, older, self._choice, self._world.patterns)
        self._outcome.what = f"node {victim.id} {done}"

    def _end(self, node: BrokerNode) -> None:
        self._way_to_end(node)()

    def _way_to_end(self, node: BrokerNode) -> Callable[[], object]:
        """Returns how to end a node: by a kill, or in order."""
        return node.kill if self._choice.random() < 0.5 else node.stop

    def _while_stopped(self, victim: BrokerNode, _: Sequence[BrokerNode]) -> None:
        self._end(victim)
        self._apply(victim)
        self._traffic.flows(_AFTER)
        victim.start()

    def _while_all_stopped(self, victim: BrokerNode, others: Sequence[BrokerNode]) -> None:
        """The damaged node starts first, so it would become master if it could."""
        # At the same time: a master that is stopped alone waits for the other nodes.
        ends = [self._way_to_end(node) for node in (*others, victim)]
        with ThreadPoolExecutor(len(ends)) as pool:
            list(pool.map(lambda end: end(), ends))
        self._apply(victim)
        victim.start()
        time.sleep(self._choice.uniform(0.0, 3.0))
        for node in others:
            node.start()

    def _while_running(self, victim: BrokerNode, _: Sequence[BrokerNode]) -> None:
        self._apply(victim)
        if self._choice.random() < 0.5:
            self._traffic.flows(_AFTER)
            self._end(victim)
            victim.start()

    def _during_copy(self, victim: BrokerNode, others: Sequence[BrokerNode]) -> None:
        late = victim if self._damage.who == plan.REPLICA else self._choice.choice(others)
        late.kill()
        self._traffic.burst(300)
        before = late.log_bytes()
        late.start()
        wait_until(lambda: late.log_bytes() > before or not late.alive, _ELECTION_S, "a copy that runs")
        self._apply(victim)

    def _during_election(self, victim: BrokerNode, _: Sequence[BrokerNode]) -> None:
        epoch, old = self._nodes.record().epoch, self._nodes.master()
        old.kill()
        self._apply(victim)
        with suppress(TimeoutError):
            wait_until(lambda: self._nodes.record().epoch > epoch, _ELECTION_S)
        old.start()

    def _with_power_loss(self, victim: BrokerNode, others: Sequence[BrokerNode]) -> None:
        assert self._world.powered is not None, "this world cannot lose its power"
        dark = self._choice.choice(others)
        self._apply(victim)
        self._world.powered.lose_power(dark)
        dark.start()
        if self._choice.random() < 0.5 and victim.alive:
            self._end(victim)
            victim.start()

    def _hurt_register(self) -> BrokerNode:
        """Brings an older register back. A recent one names a node in sync that was left behind since."""
        damage, nodes, world = self._damage, self._nodes, self._world
        behind = self._choice.choice(nodes.replicas())
        if damage.place == plan.RECENT and damage.kind == plan.OLDER:
            world.copy_register("recent")
            behind.kill()
            self._traffic.flows(_PARKED_MESSAGES)
        if damage.moment == plan.ALL_STOPPED:
            for node in nodes.nodes.values():
                node.kill()
        kind = "emptied" if damage.kind == plan.MISSING else f"of the {damage.place} backup"
        world.replace_register("" if damage.kind == plan.MISSING else _BACKUPS[damage.place])
        self._outcome.what = f"the register is {kind}; node {behind.id} starts first"
        if not behind.alive:
            behind.start()
        if damage.moment == plan.ALL_STOPPED:
            time.sleep(self._choice.uniform(0.5, 3.0))
            nodes.start_dead()
        return behind

    # ---- afterwards

    def _rotate(self, victim: BrokerNode, operator: Operator) -> None:
        """Makes every node master, the damaged one first, and reads everything there."""
        outcome = self._outcome
        for node in sorted(self._nodes.nodes.values(), key=lambda node: node is not victim):
            if why := self._world.switch(node, self._world.heal_s):
                outcome.findings.append(f"unhealed: {why}")
                break
            self._look(node, operator)
            if not self._is_healed(operator):
                return
        if victim.pid == self._pid:
            # A start reads files that nobody needed while it ran.
            self._end(victim)
            victim.start()
            if not self._is_healed(operator):
                return
            self._look(victim, operator)
        self._traffic.flows(_AFTER)

    def _is_healed(self, operator: Operator) -> bool:
        """Waits until the group is healthy, and notes what is wrong if it does not become so."""
        wrong = operator.heal(self._world.heal_s)
        self._outcome.findings += wrong
        self._outcome.refused, self._outcome.acts = operator.refusals, operator.acts
        return not any(finding.startswith("unhealed") for finding in wrong)

    def _look(self, node: BrokerNode, operator: Operator) -> None:
        """Reads everything from a node, by queue offset and by key, and from the first one as a consumer."""
        messages, findings = list(self._traffic.memory.messages), self._outcome.findings
        self._checked, self._read_at = len(messages), time.time()
        read = read_node(node, _ends(messages), {})
        if not node.alive:
            findings.append(f"ended: node {node.id} ended while it was read")
            self._is_healed(operator)
            read = read_node(node, _ends(messages), {})
        read_state(read, node, COMMITS, TOPICS[0])
        findings += oracle.check_read(read, messages, self._world.references)
        findings += oracle.check_state(read, self._topics, self._committed)
        findings += self._ask_for_keys(node, messages[:-10])
        if not self._reads:
            ends = {queue: len(records) for queue, records in read.records.items()}
            findings += oracle.check_consumed(
                consume(
                    self._nodes.namesrv,
                    TOPICS,
                    {queue: end for queue, end in ends.items() if queue[0] in TOPICS},
                ),
                messages,
            )
        self._reads.append(read)

    def _ask_for_keys(self, node: BrokerNode, messages: Sequence[Acknowledged]) -> list[str]:
        for one in self._choice.sample(messages, _KEYS_ASKED.get(self._damage.file, self._world.keys_asked)):
            keys, deadline = dict(one.properties)["KEYS"], time.monotonic() + _INDEX_S
            while one.body not in found_by_key(node.address, one.topic, keys):
                if time.monotonic() > deadline:
                    return [f"skipped: node {node.id} does not find {keys} of {one.topic}"]
                time.sleep(0.05)
        return []

    def _judge(self) -> None:
        """Checks what needs the end of the trial: delayed messages, transactions, masters, and the logs."""
        outcome, memory = self._outcome, self._traffic.memory
        outcome.findings += oracle.check_acknowledged(list(memory.messages))
        outcome.findings += oracle.check_masters(self._nodes.watch.masters())
        if not self._reads:
            return
        last = self._reads[-1]
        records = [raw for queue, raws in last.records.items() if queue[0] in TOPICS for raw in raws]
        outcome.findings += oracle.check_transactions(records, memory, *self._made)
        found = self._check_delayed()
        again = [finding for finding in found if finding.startswith("repeated")]
        outcome.repeated = len(set(again) - self._world.repeated)
        self._world.repeated |= set(again)
        outcome.findings += [finding for finding in found if finding not in again]
        lost = oracle.lost_everywhere(self._reads, list(memory.messages)[: self._checked])
        outcome.findings += [f"lost: {one.topic}/{one.queue_id} offset {one.queue_offset}" for one in lost]
        outcome.findings += self._world.differing_logs(last)

    def _check_delayed(self) -> list[str]:
        """Waits until every delayed message that was due when all was read has come, and judges them all."""
        due_before_ms, deadline = int(self._read_at * 1000), time.monotonic() + _LATE_S
        ends = {(DELAYED, queue_id): 0 for queue_id in range(QUEUES)}
        while True:
            found = read_node(self._nodes.master(), ends, {})
            delayed = [raw for raws in found.records.values() for raw in raws]
            wrong = oracle.check_delayed(delayed, list(self._traffic.memory.delayed), due_before_ms)
            is_late = any(finding.startswith("skipped") for finding in wrong)
            if not is_late or time.monotonic() > deadline:
                return wrong
            time.sleep(_LOOK_S)


def _ends(messages: Sequence[Acknowledged]) -> dict[Queue, int]:
    """Returns how many messages each queue has at least."""
    ends = {(topic, queue_id): 0 for topic in (*TOPICS, DELAYED) for queue_id in range(QUEUES)}
    for one in messages:
        queue = (one.topic, one.queue_id)
        ends[queue] = max(ends.get(queue, 0), one.queue_offset + 1)
    return ends


_BACKUPS = {plan.OLD: "start", plan.RECENT: "recent"}
