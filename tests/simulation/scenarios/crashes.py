"""Nodes die, stand still or lose power."""

from __future__ import annotations

from metaq.ha.settings import HaSettings
from tests.simulation.scenarios.catalogue import expect, isolate, master_of, pause, scenario, until_new_master
from tests.simulation.world import World


@scenario(1)
def kill_any_role(world: World) -> None:
    """Kills a node, lets the others go on, starts it again; several times."""
    for _ in range(3):
        victim = world.rng.choice(list(world.hosts.values()))
        victim.kill()
        world.run(world.rng.random() * 5)
        victim.start()
        world.run(world.rng.random() * 3)


@scenario(1)
def kill_the_master_and_measure(world: World) -> None:
    """After a kill of the master, others acknowledge within three seconds."""
    oks = world.oks
    old = master_of(world)
    old.kill()
    until_new_master(world, old, 2.0)
    world.run_until(lambda: world.oks > oks + 2, 3.0, "the new master acknowledges")


@scenario(2)
def stop_the_master(world: World) -> None:
    """The master stands still for ten seconds, and another one takes over."""
    old = master_of(world)
    old.freeze()
    until_new_master(world, old)
    world.run(6 + world.rng.random() * 3)
    old.thaw()
    world.run(2)


@scenario(2)
def replace_a_hung_master_within_a_try(world: World) -> None:
    """Another master acknowledges before a client's first try of three seconds is over."""
    old = master_of(world)
    world.run(world.rng.random())
    old.freeze()
    until_new_master(world, old, 3.0)
    world.run(6)
    old.thaw()
    world.run(2)


@scenario(2)
def stop_any_node_briefly(world: World) -> None:
    """Nodes stand still for less than the time of an election."""
    elections = world.oracle.elections
    for _ in range(4):
        host = world.rng.choice(list(world.hosts.values()))
        host.freeze()
        world.run(world.rng.random() * 1.2)
        host.thaw()
        world.run(1.5)
    expect(world.oracle.elections == elections, "no election for short pauses")


@scenario(9)
def two_replicas_lost(world: World) -> None:
    """Both replicas die at once: the set stays, because it must not fall below its minimum."""
    for replica in world.replicas():
        replica.kill()
    world.run(1.5)
    acks = len(world.oracle.acks)
    world.run(5)
    expect(len(world.in_sync()) == 3, "the set stays exact")
    expect(len(world.oracle.acks) == acks, "no acknowledgement by one node of two")
    back = world.rng.choice(world.replicas())
    back.start()
    world.run_until(lambda: len(world.oracle.acks) > acks, 10, "two nodes acknowledge again")


@scenario(9, nodes=5)
def two_of_five_lost(world: World) -> None:
    """Two nodes die at once, and the rest goes on."""
    victims = world.shuffle()[:2]
    for victim in victims:
        victim.kill()
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 5, 10, "three nodes go on")
    expect(not {victim.name for victim in victims} & world.in_sync(), "the dead leave the set")


@scenario(10)
def power_loss_of_one(world: World) -> None:
    """A machine loses power and comes back with what was synced."""
    for _ in range(3):
        victim = world.rng.choice(list(world.hosts.values()))
        victim.lose_power()
        world.run(world.rng.random() * 6)
        victim.start()
        world.run(world.rng.random() * 4)


@scenario(10)
def power_loss_of_all(world: World) -> None:
    """All machines lose power at once and come back in any order."""
    for _ in range(2):
        world.run(world.rng.random())
        for host in world.hosts.values():
            host.lose_power()
        for host in world.shuffle():
            world.run(world.rng.random() * 2)
            host.start()
        world.run(3 + world.rng.random() * 3)


@scenario(10)
def power_loss_with_slow_disks(world: World) -> None:
    """Syncs take long, all machines lose power, and the old master stays away."""
    old = master_of(world)
    for host in world.replicas():
        host.disk.slowness = world.rng.choice((20, 100))
    world.run(1 + world.rng.random())
    for host in world.hosts.values():
        host.lose_power()
    for host in world.shuffle():
        if host is not old:
            host.start()
    world.run(8)
    for host in world.hosts.values():
        host.disk.slowness = 1


@scenario(11, flush_is_sync=False)
def power_loss_of_the_master_with_async_flush(world: World) -> None:
    """The old master is back first, but it may lack acknowledged records: it is not elected."""
    old = master_of(world)
    old.lose_power()
    old.start()
    new = until_new_master(world, old)
    expect(new is not old, "the old master is not elected")
    world.run(2)


@scenario(11, flush_is_sync=False)
def power_loss_of_all_with_async_flush(world: World) -> None:
    """Every store may have lost something: nobody is elected until an operator says so."""
    old = master_of(world)
    for host in world.hosts.values():
        host.lose_power()
    old.start()
    world.run(8)
    expect(world.master() is None, "the old master is not elected")
    for host in world.shuffle():
        host.start()
    world.run(8)
    expect(world.master() is None, "nobody is elected")
    world.losses_allowed = True
    world.force(old.name)


@scenario(12, settings=HaSettings(min_in_sync=1))
def set_of_one_loses_power(world: World) -> None:
    """The last member of the set is away: the others wait for it and keep their logs."""
    master = master_of(world)
    others = world.replicas()
    for host in others:
        host.kill()
    world.run_until(lambda: world.in_sync() == {master.name}, 5, "the set shrinks to the master")
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 5, 5, "the master acknowledges alone")
    master.lose_power()
    ends = {host.name: host.disk.end for host in others}
    for host in others:
        host.start()
    world.run(10)
    expect(world.master() is None, "nobody else is elected")
    expect(all(host.disk.end == ends[host.name] for host in others), "the others are not truncated")


@scenario(16)
def five_elections_without_writes(world: World) -> None:
    """Epochs without a record leave no trace, and everybody rejoins."""
    pause(world)
    for _ in range(5):
        old = master_of(world)
        old.kill()
        until_new_master(world, old, 5)
        world.run(world.rng.random())
        old.start()
        world.run_until(lambda: len(world.in_sync()) == 3, 10, "the old master rejoins")
    pause(world, False)


@scenario(17)
def double_failover_during_catch_up(world: World) -> None:
    """While a replica catches up, two masters die one after the other."""
    late = world.rng.choice(world.replicas())
    late.kill()
    world.run(3)
    late.start()
    world.run(world.rng.random() * 0.3)
    first = master_of(world)
    first.kill()
    world.run(world.rng.random() * 2)
    first.start()
    second = master_of(world)
    world.run(world.rng.random() * 2)
    second.kill()
    world.run(world.rng.random() * 2)


@scenario(20, send_interval_s=0.03)
def consumer_before_a_failover(world: World) -> None:
    """Consumers read right before masters die: nothing that they read vanishes."""
    for _ in range(3):
        old = master_of(world)
        cut = world.rng.random() < 0.5
        if cut:
            isolate(world, old)
            world.run(world.rng.random() * 2)
        old.kill()
        world.run(world.rng.random() * 3)
        world.network.heal()
        old.start()
        world.run(2)


@scenario(29)
def clock_leaps(world: World) -> None:
    """The clock of a node leaps an hour ahead: nobody is elected for that."""
    elections = world.oracle.elections
    host = world.rng.choice(list(world.hosts.values()))
    host.leap(3600)
    world.run(8)
    expect(world.oracle.elections == elections, "no false election")
