"""The processes that attack a broker and its name server together, until a given moment."""

from __future__ import annotations

import contextlib
import copy
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.queues import Queue

from tests.support.hostile.attacks import ATTACKS, KINDS
from tests.support.hostile.crowds import Crowd, keep_crowds
from tests.support.hostile.generation import Generator
from tests.support.hostile.mutation import FrameThrower, Mutator, throw_frames
from tests.support.hostile.target import Deceived, Target
from tests.support.plain_client import ServerClosed

THROWERS = 3
IDLE_CONNECTIONS, TRICKLING_CONNECTIONS = 5_000, 2_000
NICENESS = 5
"""Attackers on other machines would take no time from the broker and its healthy client."""
_PAUSE_S = 0.2
_TELL_EVERY_S = 1.0
_FRAMES_PART = 0.8


@dataclass
class Tally:
    """The work of one process of attackers, and its findings."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    deceived: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Attacks that could not be made as intended."""


class Told:
    """Tells the other process from time to time how far this one is: it may be ended at any moment."""

    def __init__(self, tallies: Queue[Tally]) -> None:
        self._tallies = tallies
        self._last: Tally | None = None
        self._told_at = 0.0

    def tell(self, tally: Tally) -> None:
        self._last = tally
        if time.monotonic() - self._told_at > _TELL_EVERY_S:
            self.end()

    def end(self) -> None:
        self._told_at = time.monotonic()
        if self._last is not None:
            self._tallies.put(copy.deepcopy(self._last))


@dataclass(frozen=True)
class Plan:
    """Everything that a process of attackers needs to know."""

    target: Target
    ends_at: float
    """By the clock `time.monotonic`, which all processes of a machine share."""
    frames: int
    generated: int
    """Requests that are made from the types of their fields."""
    seed: int
    to_broker: Sequence[bytes]
    to_names: Sequence[bytes]
    idle: int = IDLE_CONNECTIONS
    trickling: int = TRICKLING_CONNECTIONS

    def processes(self) -> dict[str, Callable[[Plan, Queue[Tally]], None]]:
        found: dict[str, Callable[[Plan, Queue[Tally]], None]] = {"crowds": run_crowds}
        found |= {f"frames {number}": _thrower(number) for number in range(THROWERS)}
        found["generated"] = run_generated
        found |= {kind: _attacker(kind) for kind in KINDS}
        return found


@dataclass(frozen=True)
class _thrower:
    number: int

    def __call__(self, plan: Plan, tallies: Queue[Tally]) -> None:
        seed = plan.seed + self.number
        throwers = [
            FrameThrower(plan.target.broker, Mutator(plan.to_broker, seed)),
            FrameThrower(plan.target.nameserver, Mutator(plan.to_names, seed + THROWERS)),
        ]
        told = Told(tallies)

        def tell() -> None:
            tally = Tally(f"frames {self.number}")
            tally.counts["mutated frames"] = sum(thrower.frames for thrower in throwers)
            tally.counts["their connections"] = sum(thrower.connections for thrower in throwers)
            told.tell(tally)

        now = time.monotonic()
        # On a machine that is short of time they may be late, but not too late.
        ends_at = now + _FRAMES_PART * (plan.ends_at - now)
        throw_frames(throwers, -(-plan.frames // THROWERS), ends_at, tell)
        told.end()


def run_generated(plan: Plan, tallies: Queue[Tally]) -> None:
    """Sends requests of every command, with values of every kind."""
    generators = [Generator("broker", plan.seed), Generator("nameserver", plan.seed + 1)]
    throwers = [
        FrameThrower(plan.target.broker, generators[0]),
        FrameThrower(plan.target.nameserver, generators[1]),
    ]
    told = Told(tallies)

    def tell() -> None:
        tally = Tally("generated")
        tally.counts["generated requests"] = sum(thrower.frames for thrower in throwers)
        told.tell(tally)

    now = time.monotonic()
    throw_frames(throwers, plan.generated, now + _FRAMES_PART * (plan.ends_at - now), tell)
    told.end()


@dataclass(frozen=True)
class _attacker:
    kind: str

    def __call__(self, plan: Plan, tallies: Queue[Tally]) -> None:
        """Makes the attacks of this kind in turn."""
        os.nice(NICENESS)
        attacks = [attack for attack in ATTACKS if attack.kind == self.kind]
        tally, told = Tally(self.kind), Told(tallies)
        turn = 0
        while time.monotonic() < plan.ends_at:
            attack = attacks[turn % len(attacks)]
            turn += 1
            tally.counts[attack.name] += 1
            try:
                attack.make(replace(plan.target, scale=attack.long))
            except Deceived as deceived:
                tally.deceived.append(f"{attack.name}: {deceived}")
            except (ServerClosed, OSError):
                tally.counts["cut or refused"] += 1  # It used too much: that is what budgets are for.
            except RuntimeError as broken:
                tally.broken.append(f"{attack.name}: {broken}")
            told.tell(tally)
            time.sleep(_PAUSE_S)
        told.end()


def run_crowds(plan: Plan, tallies: Queue[Tally]) -> None:
    os.nice(NICENESS)
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowds = [
        Crowd(plan.target.broker, plan.idle, first_address=10),
        Crowd(plan.target.broker, plan.trickling, first_address=50, trickles=True),
    ]
    names, peaks, told = ("idle", "trickling"), Counter[str](), Told(tallies)

    def tell() -> None:
        tally = Tally("crowds")
        for name, crowd in zip(names, crowds, strict=True):
            peaks[name] = max(peaks[name], crowd.open)
            tally.counts[f"{name} at once"] = peaks[name]
            tally.counts[f"{name} opened"] = crowd.opened
        told.tell(tally)

    keep_crowds(crowds, plan.ends_at, tell)
    told.end()
