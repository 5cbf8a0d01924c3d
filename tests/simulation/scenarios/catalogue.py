"""All scenarios by name, and what most of them do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metaq.ha.settings import HaSettings, ReplicaMode
from tests.simulation.checks import Violation
from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.host import Host
from tests.simulation.world import World


@dataclass(frozen=True)
class Scenario:
    """A named sequence of faults."""

    name: str
    number: int
    """The number in the design; 0 if it has none."""
    play: Callable[[World], None]
    options: dict[str, Any] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {}


ASYNC = HaSettings(replicas=ReplicaMode.ASYNC, min_in_sync=1)


def scenario(number: int, **options: Any) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Registers a scenario under the name of its function. The options are those of `World`."""

    def register(play: Callable[[World], None]) -> Callable[[World], None]:
        SCENARIOS[play.__name__] = Scenario(play.__name__, number, play, options)
        return play

    return register


def run_scenario(name: str, seed: int, mutants: tuple[str, ...] = ()) -> World:
    """Plays a scenario. Raises Violation, with the world as its `world`."""
    world = World(seed, mutants=mutants, **SCENARIOS[name].options)
    try:
        world.begin()
        SCENARIOS[name].play(world)
        world.finish()
    except Violation as violation:
        violation.world = world  # type: ignore[attr-defined]
        raise
    return world


def master_of(world: World) -> Host:
    """Returns the master, once there is one."""
    world.run_until(lambda: world.master() is not None, 15, "the group has a master")
    master = world.master()
    assert master is not None
    return master


def until_new_master(world: World, old: Host, limit_s: float = 10) -> Host:
    """Waits until another node than `old` is master."""
    world.run_until(
        lambda: world.master() not in (None, old), limit_s, f"another master than node {old.name}"
    )
    return master_of(world)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Violation(f"expected: {what}")


def pause(world: World, paused: bool = True) -> None:
    """Stops the clients, or lets them go on."""
    for producer in world.producers:
        producer.paused = paused
    world.run(0.5)


def isolate(world: World, host: Host, *, register: bool = True, clients: bool = False) -> None:
    """Cuts a node off from the other nodes."""
    for other in world.hosts:
        if other != host.name:
            world.network.block(host.name, other)
    if register:
        world.network.block(host.name, REGISTER)
    if clients:
        for number in range(len(world.producers)):
            world.network.block(host.name, f"client-{number}")
