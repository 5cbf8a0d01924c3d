"""An old copy of the register comes back: nobody who lacks an acknowledged record is elected."""

from __future__ import annotations

from metaq.ha.settings import HaSettings
from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.host import Host
from tests.simulation.scenarios.catalogue import expect, isolate, master_of, scenario, until_new_master
from tests.simulation.world import World


def _stop_all(world: World) -> None:
    for host in world.shuffle():
        host.lose_power() if world.rng.random() < 0.3 else host.kill()


def _start_one_by_one(world: World, first: Host | None = None) -> None:
    """Starts all nodes in any order, and gives each a while alone."""
    for host in sorted(world.shuffle(), key=lambda host: host is not first):
        host.start()
        world.run(world.rng.choice((0.1, 1, 6)))


def _operator_decides(world: World) -> None:
    """Once all nodes run, an operator chooses a master if they say that the register went back."""
    for host in world.hosts.values():
        host.start()
    world.run(8)
    if any(world.refuses(host) for host in world.hosts.values()):
        world.force_the_best()
    world.run_until(lambda: len(world.in_sync()) == len(world.hosts), 30, "everybody is in sync")
    world.run(2)
    expect(not any(world.refuses(host) for host in world.hosts.values()), "nothing of the finding stays")


@scenario(18)
def same_epoch_after_a_shrink(world: World) -> None:
    """The copy still names a replica that has left the set since then. That replica starts first."""
    backup, late = world.register.backup(), world.rng.choice(world.replicas())
    epoch = _epoch(world)
    late.kill()
    world.run_until(lambda: late.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(1 + world.rng.random() * 3)
    expect(_epoch(world) == epoch, "no election")
    elections = world.oracle.elections
    _stop_all(world)
    world.register.restore(backup)
    _start_one_by_one(world, late)
    expect(world.oracle.elections == elections, "nobody is elected")
    everybody = world.hosts.values()
    world.run_until(lambda: all(map(world.refuses, everybody)), 5, "everybody refuses the register")
    expect(world.oracle.elections == elections, "still nobody is elected")
    _operator_decides(world)


@scenario(18)
def same_epoch_while_nodes_run(world: World) -> None:
    """The same while the others run: they go on, and the replica that comes back is not elected."""
    backup, late = world.register.backup(), world.rng.choice(world.replicas())
    late.kill()
    world.run_until(lambda: late.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(1)
    elections, oks = world.oracle.elections, world.oks
    world.register.restore(backup)
    world.run(world.rng.random() * 3)
    late.start()
    world.run(5)
    if world.rng.random() < 0.5:
        master_of(world).kill()
        world.run(5)
    else:
        expect(world.oks > oks, "acknowledging goes on")
    expect(world.oracle.elections == elections, "nobody is elected")
    _operator_decides(world)


@scenario(18, nodes=5, settings=HaSettings(min_in_sync=3))
def same_epoch_among_five(world: World) -> None:
    """Two of five have left the set. They start first."""
    backup = world.register.backup()
    late = world.shuffle()[:2]
    for host in late:
        host.kill()
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 5, 10, "three nodes go on")
    _stop_all(world)
    world.register.restore(backup)
    elections = world.oracle.elections
    for host in late:
        host.start()
    world.run(8)
    expect(world.oracle.elections == elections, "nobody is elected")
    _start_one_by_one(world)
    _operator_decides(world)


@scenario(18)
def older_epoch(world: World) -> None:
    """Elections happened since the copy was made."""
    backup = world.register.backup()
    for _ in range(world.rng.randrange(1, 3)):
        old = master_of(world)
        old.kill()
        until_new_master(world, old)
        world.run(world.rng.random() * 2)
        if world.rng.random() < 0.5:
            old.start()
            world.run(world.rng.random() * 4)
    if world.rng.random() < 0.5:
        _stop_all(world)
    world.register.restore(backup)
    _start_one_by_one(world)
    _operator_decides(world)


@scenario(18)
def emptied(world: World) -> None:
    """The register lost everything. The operator's record asks for as many nodes as before."""
    world.run(1)
    late = world.rng.choice(world.replicas())
    late.kill()
    world.run(world.rng.random() * 4)
    if world.rng.random() < 0.5:
        _stop_all(world)
    elections = world.oracle.elections
    world.register.restore(({}, 1))
    _start_one_by_one(world, late)
    expect(world.record() is None, "nobody creates the group anew")
    expect(world.oracle.elections == elections, "nobody is elected")
    _operator_decides(world)
    record = world.record()
    expect(record is not None and record.min_in_sync == 2, "the minimum is what it was")


@scenario(18)
def before_the_promise(world: World) -> None:
    """The set shrinks while another replica cannot read the register, and the copy is of just before.

    That replica has failed when it is asked again, but it beats.
    """
    master = master_of(world)
    late, other = world.replicas()
    world.network.block(other.name, REGISTER)
    world.run(0.2)
    backup = world.register.backup()
    late.kill()
    world.run_until(lambda: late.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(0.5 + world.rng.random())
    master.kill()
    other.kill()
    world.network.heal()
    world.register.restore(backup)
    late.start()
    other.start()
    world.run_until(lambda: _beats(world, other), 5, "the other replica beats")
    # Its disk hangs, so it does not stand for master itself.
    other.disk.hangs = True
    world.run(8)
    other.disk.hangs = False
    world.run(2)
    _operator_decides(world)


@scenario(18)
def joiner_and_dead_witness(world: World) -> None:
    """A member of a set of two dies. A third node takes its place; then an old copy names the dead one."""
    late, other = world.replicas()
    late.kill()
    world.run_until(lambda: late.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(0.5)
    backup, oks = world.register.backup(), world.oks
    other.kill()
    late.start()
    world.run_until(lambda: world.oks > oks + 5, 15, "the third node takes the place of the dead one")
    _stop_all(world)
    world.register.restore(backup)
    elections = world.oracle.elections
    other.start()
    world.run(8)
    expect(world.oracle.elections == elections, "the node that lacks messages is not elected")
    _start_one_by_one(world)
    _operator_decides(world)


@scenario(18)
def joiner_and_dead_master(world: World) -> None:
    """The master of a set of two dies. With the third node, the rest goes on without the register's help."""
    late, _ = world.replicas()
    late.kill()
    world.run_until(lambda: late.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(0.5)
    dead = master_of(world)
    dead.kill()
    world.run(world.rng.random() * 2)
    oks = world.oks
    late.start()
    world.run_until(lambda: world.oks > oks + 5, 15, "two of three nodes acknowledge")
    expect(dead.name not in world.in_sync(), "the dead master is out of the set")


@scenario(0, nodes=3)
def random_old_registers(world: World) -> None:
    """Nodes die and come back at random, and some copy of the register comes back at some time."""
    rng = world.rng
    copies = [world.register.backup()]
    for _ in range(rng.randrange(3, 10)):
        host = rng.choice(list(world.hosts.values()))
        match rng.randrange(6):
            case 0 | 1:
                host.kill()
            case 2:
                host.lose_power()
            case 3:
                world.network.block(host.name, REGISTER)
            case 4:
                isolate(world, host, register=rng.random() < 0.5)
            case _:
                world.network.heal()
        if rng.random() < 0.7:
            rng.choice(list(world.hosts.values())).start()
        copies.append(world.register.backup())
        world.run(rng.random() * rng.choice((0.1, 1, 3)))
        copies.append(world.register.backup())
    if rng.random() < 0.6:
        _stop_all(world)
    world.network.heal()
    world.register.restore(rng.choice([*copies, ({}, 1)]))
    _start_one_by_one(world)
    _operator_decides(world)


@scenario(0)
def random_damage_and_old_registers(world: World) -> None:
    """Nodes die and come back, one disk lies in its log, and an old register comes back."""
    rng = world.rng
    copies = [world.register.backup()]
    victim = rng.choice(list(world.hosts.values()))
    for _ in range(rng.randrange(2, 6)):
        world.run(rng.random() * 3)
        match rng.randrange(3):
            case 0:
                victim.disk.rot(rng)
            case 1:
                victim.kill()
                victim.disk.flip_bit(rng)
            case _:
                rng.choice(list(world.hosts.values())).kill()
        copies.append(world.register.backup())
        world.run(rng.random())
        for host in world.shuffle()[: rng.randrange(4)]:
            host.start()
    if rng.random() < 0.6:
        _stop_all(world)
    world.register.restore(rng.choice(copies))
    _start_one_by_one(world, victim if rng.random() < 0.5 else None)
    _operator_decides(world)


@scenario(0, nodes=5, settings=HaSettings(min_in_sync=3))
def random_old_registers_among_five(world: World) -> None:
    """The same among five nodes with three copies."""
    random_old_registers(world)


@scenario(0, nodes=4)
def random_old_registers_among_four(world: World) -> None:
    """The same among four nodes with two copies."""
    random_old_registers(world)


@scenario(0, nodes=2)
def random_old_registers_in_a_pair(world: World) -> None:
    """The same in a group of two."""
    random_old_registers(world)


def _epoch(world: World) -> int:
    record = world.record()
    return record.epoch if record is not None else 0


def _beats(world: World, host: Host) -> bool:
    """Whether the node has beaten since it was started."""
    view = host.conductor.view if host.conductor is not None else None
    return view is not None and view.own.beat_sent_at > float("-inf")
