"""Nodes of an older MetaQ and of this one in one group."""

from __future__ import annotations

from metaq.ha.settings import HaSettings
from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.host import Host
from tests.simulation.scenarios.catalogue import expect, master_of, scenario, until_new_master
from tests.simulation.world import World


def _upgrade(world: World, host: Host) -> None:
    host.kill()
    world.run(world.rng.choice((0.5, 2, 6)))
    host.is_old = False
    host.start()


def _two_go_on(world: World) -> None:
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 5, 20, "two of three nodes go on")


def _whole(world: World) -> None:
    world.run_until(lambda: len(world.in_sync()) == len(world.hosts), 30, "everybody is in sync")


@scenario(28, old=True)
def rolling_upgrade(world: World) -> None:
    """Nodes are upgraded one after the other, and the master may die in between."""
    for host in world.shuffle():
        if world.rng.random() < 0.5:
            dead = master_of(world)
            dead.kill()
            until_new_master(world, dead)
            dead.start()
            _whole(world)
        _upgrade(world, host)
        _whole(world)
    dead = master_of(world)
    dead.kill()
    until_new_master(world, dead)
    record = world.record()
    expect(record is not None and record.version > 0, "now records have versions")
    dead.start()


@scenario(0, old=True)
def random_kills_during_an_upgrade(world: World) -> None:
    """The master dies just when a node that was upgraded has joined or is about to."""
    for host in world.shuffle():
        _upgrade(world, host)
        world.run_until(lambda: world.master() is not None, 15, "the group has a master")
        world.run(world.rng.random() * world.rng.choice((0.05, 0.5, 3)))
        dead = master_of(world)
        dead.kill()
        _two_go_on(world)
        dead.is_old = False
        dead.start()


@scenario(0, nodes=5, old=True, settings=HaSettings(min_in_sync=3))
def random_upgrades(world: World) -> None:
    """Nodes are upgraded while others die and come back, or lose the register."""
    rng = world.rng
    waiting = world.shuffle()
    for _ in range(rng.randrange(6, 14)):
        host = rng.choice(list(world.hosts.values()))
        match rng.randrange(5):
            case 0:
                host.kill()
            case 1:
                host.lose_power()
            case 2:
                world.network.block(host.name, REGISTER)
            case 3:
                world.network.heal()
            case _ if waiting:
                _upgrade(world, waiting.pop())
            case _:
                host.start()
        world.run(rng.random() * rng.choice((0.2, 2, 5)))
        if rng.random() < 0.6:
            host.start()
    world.network.heal()
    for host in waiting:
        _upgrade(world, host)
