"""Groups without a register."""

from __future__ import annotations

from metaq.ha.settings import HaSettings
from tests.simulation.scenarios.catalogue import expect, scenario
from tests.simulation.world import World


@scenario(0, fixed=True, nodes=2)
def fixed_pair_restarts(world: World) -> None:
    """Nodes of a plain pair die and come back; the replica never takes over."""
    for _ in range(4):
        host = world.rng.choice(list(world.hosts.values()))
        if world.rng.random() < 0.5:
            host.kill()
        else:
            host.lose_power()
        world.run(world.rng.random() * 5)
        expect(not any(other.node and other.node.is_master for other in world.replicas()), "no switch")
        host.start()
        world.run(world.rng.random() * 5)


@scenario(0, fixed=True, nodes=2)
def fixed_master_comes_back_empty(world: World) -> None:
    """A fixed master that lost its disk gets everything back from its replica, in spite of kills."""
    master, replica = world.hosts[1], world.hosts[2]
    master.kill()
    master.disk.wipe()
    if world.rng.random() < 0.5:
        replica.kill()
    world.run(world.rng.random())
    master.start()
    world.run(world.rng.random() * 5)
    expect(replica.running or master.node is None or not master.node.is_master, "it waits for its replica")
    for _ in range(2):
        replica.start()
        world.run(world.rng.random() * 0.3)
        master.kill()
        world.run(world.rng.random() * 4)
        master.start()
    world.run(1)


@scenario(0, fixed=True, nodes=2, flush_is_sync=False)
def fixed_master_loses_its_tail(world: World) -> None:
    """With `flush=async` a fixed master loses power: it fetches the longer tail before its first write."""
    world.run(1)
    world.hosts[1].lose_power()
    world.run(world.rng.random() * 2)
    world.hosts[1].start()
    world.run(5)


@scenario(0, fixed=True, nodes=3)
def from_fixed_roles_to_a_register(world: World) -> None:
    """A group with fixed roles gets a register: a replica that is behind creates no group."""
    late = world.hosts[world.rng.choice((2, 3))]
    late.kill()
    world.run(world.rng.random() * 4)
    for host in world.shuffle():
        host.kill()
        world.run(world.rng.random())
    world.fixed = False
    late.start()
    world.run(world.rng.random() * 5)
    expect(world.record() is None, "only the former master creates the group")
    for host in world.shuffle():
        host.start()
        world.run(world.rng.random() * 0.5)
    world.run_until(lambda: len(world.in_sync()) == 3, 20, "everybody is in sync")


@scenario(0, fixed=True, nodes=3, settings=HaSettings(min_in_sync=1))
def fixed_replicas_away(world: World) -> None:
    """With a minimum of one, a fixed master goes on alone."""
    world.hosts[2].kill()
    world.hosts[3].kill()
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 5, 6, "the master goes on alone")
