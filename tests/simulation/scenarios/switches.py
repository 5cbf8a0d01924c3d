"""Planned switches and restarts."""

from __future__ import annotations

from metaq.ha.conducting.conductor import Conductor, SwitchRefused
from tests.simulation.checks import Violation
from tests.simulation.host import Host
from tests.simulation.scenarios.catalogue import expect, master_of, scenario
from tests.simulation.world import World


@scenario(28)
def rolling_restart(world: World) -> None:
    """Every node restarts, replicas first, the master after a planned switch."""
    master = master_of(world)
    for host in world.replicas():
        host.kill()
        world.run(0.5 + world.rng.random())
        host.start()
        world.run(2)
        world.run_until(lambda: len(world.in_sync()) == 3, 10, "the replica is back in sync")
    target = world.rng.choice(world.replicas())
    switch(world, master, target)
    master.kill()
    world.run(1)


def switch(world: World, master: Host, target: Host) -> None:
    """Asks for a planned switch and waits for its end: at most a second."""
    assert isinstance(master.conductor, Conductor)
    started = world.loop.time()
    task = world.loop.create_task(master.conductor.switch(target.name))
    world.run_until(task.done, 2, "the switch ends")
    if task.exception() is not None:
        raise Violation(f"the switch failed: {task.exception()}")
    world.run_until(lambda: world.master() is target, 1, f"node {target.name} is master")
    expect(world.loop.time() - started <= 1.2, "a switch takes at most a second")


@scenario(0)
def planned_switches(world: World) -> None:
    """The mastership goes round, under load, without a kill."""
    for _ in range(3):
        switch(world, master_of(world), world.rng.choice(world.replicas()))
        world.run_until(lambda: len(world.in_sync()) == 3, 10, "everybody is in sync")


@scenario(0)
def switch_to_a_dead_node(world: World) -> None:
    """A switch to a node that cannot take over is refused, and writing goes on."""
    master = master_of(world)
    target = world.rng.choice(world.replicas())
    target.kill()
    world.run(0.1 + world.rng.random() * 2)
    assert isinstance(master.conductor, Conductor)
    task = world.loop.create_task(master.conductor.switch(target.name))
    world.run_until(task.done, 8, "the switch is refused")
    expect(isinstance(task.exception(), SwitchRefused), "the switch is refused")
    oks = world.oks
    world.run_until(lambda: world.oks > oks, 5, "writing goes on")


@scenario(0)
def switch_and_kill(world: World) -> None:
    """The master or the target dies in the middle of a switch."""
    master = master_of(world)
    target = world.rng.choice(world.replicas())
    assert isinstance(master.conductor, Conductor)
    task = world.loop.create_task(master.conductor.switch(target.name))
    world.run(world.rng.random() * 0.05)
    victim = world.rng.choice((master, target))
    victim.kill()
    world.run(world.rng.random() * 5)
    task.cancel()
