"""The operator of a trial: starts dead nodes again, and does what a refusal asks for."""

from __future__ import annotations

import random
import re
import signal
import time

from tests.faults.replication.damage import plan
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.world import World
from tests.faults.replication.nodes import BrokerNode

_LOOK_S = 0.1
_PATIENCE_S = 12.0
"""After this time with an older register, the group counts as one that refuses to serve."""
_ADVICE_S = 3.0
"""A node that still does not join after this time is taken at its word."""
_ACTS_MAX = 6
_TAIL = 25
_ADVICE = re.compile(r"(empty its data directory|move it away|restore|metaq cluster switch)", re.I)


class Operator:
    """Heals a group, and notes what it took. An act is only what a refusal asks for."""

    def __init__(self, world: World, damage: Damage, choice: random.Random) -> None:
        self._world, self._damage, self._choice = world, damage, choice
        self.acts: list[str] = []
        self.refusals = 0
        """How often somebody refused to serve and said why and what to do."""
        self._wrong: list[str] = []

    def heal(self, within_s: float) -> list[str]:
        """Waits until the group is healthy; returns what is wrong if it does not become so."""
        began = time.monotonic()
        deadline = began + within_s
        asked = self._damage.file != plan.REGISTER
        self._wrong = []
        while why := self._world.why_unhealthy():
            for node in self._world.nodes.nodes.values():
                if not node.alive and len(self.acts) < _ACTS_MAX:
                    self._care_for(node)
            if time.monotonic() - began > _ADVICE_S and len(self.acts) < _ACTS_MAX:
                self._obey_advice()
            if act := self._world.help_stuck():
                self.acts.append(act)
            if not asked and time.monotonic() - began > _PATIENCE_S:
                asked = True
                self._repair_register(why)
                deadline = time.monotonic() + within_s
            if time.monotonic() > deadline:
                return [*self._wrong, f"unhealed: {why}"]
            time.sleep(_LOOK_S)
        return self._wrong

    def _care_for(self, node: BrokerNode) -> None:
        code, tail = node.end_of_life(_TAIL)
        if code < 0:
            if code == -signal.SIGBUS:
                self._wrong.append(f"ended: node {node.id} touched a page that its file had lost")
            self.acts.append(f"node {node.id} died of signal {-code}, started again")
            node.start()
            return
        said = next(
            (line for line in reversed(tail) if "rror" in line or "efuse" in line or "damaged" in line), ""
        )
        advice = next((line for line in reversed(tail) if _ADVICE.search(line)), "")
        if not advice:
            self._wrong.append(f"unexplained: node {node.id} ended with {code}: {said or tail[-1:]}")
        else:
            self.refusals += 1
        if "move it away" in advice and (node.data / "journal").exists():
            self.acts.append(f"moved the journal of node {node.id} away: {said[:200]}")
            (node.data / "journal").rename(node.data.parent / f"journal-of-{node.id}-{time.monotonic_ns()}")
        else:
            self.acts.append(f"emptied node {node.id}: {said[:200]}")
            node.wipe()
        node.start()

    def _obey_advice(self) -> None:
        """A node that runs but does not join may say what it wants in the status of its group."""
        for node in self._world.nodes.nodes.values():
            if node.alive and "let it join" in self._world.problem(node):
                self.refusals += 1
                self.acts.append(f"emptied node {node.id}: {self._world.problem(node)}")
                node.kill()
                node.wipe()
                node.start()

    def _repair_register(self, why: str) -> None:
        """The group refuses the register: `cluster status` must say so, and what to do. Then that is done."""
        code, text = self._world.command("cluster", "status")
        if code == 0:
            self._wrong.append(f"untruthful: `cluster status` is healthy: {text[:30]}; but {why}")
        elif "register" not in text.lower():
            self._wrong.append(f"untruthful: the status does not name the register: {text[:300]}")
        else:
            self.refusals += 1
        if self._choice.random() < 0.5:
            self._world.replace_register("newest")
            self.acts.append("put the newest register back")
            return
        target = max(self._world.nodes.nodes.values(), key=lambda node: (node.alive, node.log_bytes()))
        code, text = self._world.command(
            "cluster", "switch", "broker-a", "--to", str(target.id), "--force", "--yes"
        )
        self.acts.append(f"forced node {target.id} ({code}): {text[:300]}")
