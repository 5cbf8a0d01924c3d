"""Any faults in any order."""

from __future__ import annotations

from metaq.ha.conducting.conductor import Conductor
from metaq.ha.settings import HaSettings
from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.scenarios.catalogue import ASYNC, isolate, scenario
from tests.simulation.world import World


@scenario(0)
def random_faults(world: World, destroy: bool = True) -> None:
    """Any faults in any order. At most one disk is damaged or emptied, so every record keeps a copy."""
    rng = world.rng
    victim = rng.choice(list(world.hosts.values()))
    for _ in range(rng.randrange(4, 16)):
        host = rng.choice(list(world.hosts.values()))
        other = rng.choice([name for name in world.hosts if name != host.name])
        fault = rng.randrange(17)
        world.note(f"fault {fault} at node {host.name}")
        match fault:
            case 0 | 1:
                host.kill()
            case 2:
                host.freeze()
            case 3:
                host.thaw()
            case 4:
                world.network.block(host.name, other, both=rng.random() < 0.5)
            case 5:
                isolate(world, host, register=rng.random() < 0.6, clients=rng.random() < 0.3)
            case 6:
                world.network.block(host.name, REGISTER, both=rng.random() < 0.7)
            case 7:
                world.network.heal()
            case 8:
                world.register.up = not world.register.up
            case 9:
                world.register.late, world.register.lost_answers = rng.random() * 0.5, rng.random() * 0.5
                world.register.duplicates = rng.random() * 0.3
            case 10:
                host.lose_power()
            case 11:
                kind = rng.randrange(5) if destroy else None
                if kind == 0:
                    victim.disk.rot(rng)
                    continue
                victim.kill()
                if kind == 1:
                    victim.disk.wipe()
                elif kind == 2:
                    victim.disk.flip_bit(rng)
                elif kind == 3:
                    victim.disk.forget_state(rng)
                elif kind == 4:
                    victim.disk.lose_state()
            case 12:
                host.disk.hangs = not host.disk.hangs
            case 13:
                host.disk.fails = True
            case 14:
                world.network.loss = rng.choice((0.0, 0.05, 0.2))
            case 15:
                master = world.master()
                if master is not None and isinstance(master.conductor, Conductor):
                    task = world.loop.create_task(master.conductor.switch(host.name))
                    task.add_done_callback(lambda done: done.cancelled() or done.exception())
            case _:
                host.leap(rng.choice((5, 60, 3600)))
        if rng.random() < 0.6:
            rng.choice(list(world.hosts.values())).start()
        world.run(rng.random() * rng.choice((0.1, 1, 5)))


@scenario(0, nodes=2)
def random_faults_in_a_pair(world: World) -> None:
    """The same in a group of two."""
    random_faults(world)


@scenario(0, nodes=5, settings=HaSettings(min_in_sync=3))
def random_faults_among_five(world: World) -> None:
    """The same in a group of five with three copies."""
    random_faults(world)


@scenario(0, settings=HaSettings(min_in_sync=1))
def random_faults_with_a_minimum_of_one(world: World) -> None:
    """The set may shrink to one node, whose disk survives."""
    random_faults(world, destroy=False)


@scenario(0, settings=ASYNC)
def random_faults_with_async_replicas(world: World) -> None:
    """Records may be lost, but never do two masters acknowledge at the same time."""
    world.losses_allowed = True
    random_faults(world, destroy=False)
