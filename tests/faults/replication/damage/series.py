"""Many trials, one after the other; one group serves many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from tests.faults.replication.damage import plan
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.trial import Outcome, Trial
from tests.faults.replication.damage.world import World

TRIALS_PER_WORLD = 25
"""After this many, a new group is started: reading everything takes longer with each trial."""


class Series:
    """Runs trials on a group, and starts a new group when one was ruined or has served long enough."""

    def __init__(
        self,
        home: Path,
        say: Callable[[str], None] = print,
        *,
        heal_s: float = 60.0,
        new_world: type[World] = World,
    ) -> None:
        """A group may need `heal_s` for each step of its healing."""
        self._home, self._say, self._heal_s, self._new_world = home, say, heal_s, new_world
        self._stack = ExitStack()
        self._world: World | None = None
        self._served = 0
        self._worlds = 0

    def run(self, seed: int, damage: Damage) -> Outcome:
        """Runs one trial. Prints its line, with the seed that runs it again."""
        world = self._usable(seed, power=damage.moment == plan.POWER)
        outcome = Trial(world, seed, damage).run()
        self._served += 1
        lines = (*outcome.acts, *(outcome.lines[:6] if outcome.findings else ()))
        # At once: another series may run beside this one.
        self._say(
            "\n       ".join(
                [outcome.report(), *outcome.findings[1:6], *(f"> {line}" for line in lines)],
            )
        )
        if outcome.findings:
            self.close()
        return outcome

    def run_all(self, trials: Iterable[tuple[int, Damage]]) -> list[Outcome]:
        return [self.run(seed, damage) for seed, damage in trials]

    def _usable(self, seed: int, *, power: bool) -> World:
        world = self._world
        if world is not None and (self._served >= TRIALS_PER_WORLD or (world.powered is not None) != power):
            self.close()
        if self._world is None:
            self._worlds, self._served = self._worlds + 1, 0
            home = self._home / f"world-{self._worlds}"
            self._world = self._new_world(home, seed, self._stack, power=power)
            self._world.heal_s = self._heal_s
        return self._world

    def close(self) -> None:
        """Ends the group. If another thread runs a trial on it, that trial fails."""
        stack, self._stack, self._world = self._stack, ExitStack(), None
        stack.close()

    def __enter__(self) -> Series:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
