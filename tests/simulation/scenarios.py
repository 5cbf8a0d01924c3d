"""The scenarios of the design, by their numbers, and random ones.

Every scenario begins with a whole group under load. When it returns, everything heals, and all promises are
checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metaq.ha.conductor import Conductor, SwitchRefused
from metaq.ha.group_record import GroupRecord
from metaq.ha.register import Outcome
from metaq.ha.settings import HaSettings, ReplicaMode
from tests.simulation.checks import Violation
from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.host import KEYS, Host
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


@scenario(3)
def isolate_the_master(world: World) -> None:
    """The master reaches nobody but clients."""
    old = master_of(world)
    isolate(world, old)
    until_new_master(world, old)
    world.run(world.rng.random() * 5)


@scenario(3)
def isolate_any_node(world: World) -> None:
    """Nodes are cut off, one after another."""
    for _ in range(3):
        isolate(world, world.rng.choice(list(world.hosts.values())), register=world.rng.random() < 0.7)
        world.run(world.rng.random() * 8)
        world.network.heal()
        world.run(world.rng.random() * 4)


@scenario(4)
def one_way_drop(world: World) -> None:
    """Packets between the master and a replica vanish in one direction."""
    elections = world.oracle.elections
    master = master_of(world)
    replica = world.rng.choice(world.replicas())
    pair = (master.name, replica.name) if world.rng.random() < 0.5 else (replica.name, master.name)
    world.network.block(*pair, both=False)
    world.run(20)
    expect(world.oracle.elections <= elections + 1, "no flapping")


@scenario(4, nodes=2)
def one_way_drop_in_a_pair(world: World) -> None:
    """In a group of two, nobody can take over usefully, so nobody does."""
    elections = world.oracle.elections
    world.network.block(1, 2, both=world.rng.random() < 0.5)
    world.run(20)
    expect(world.oracle.elections == elections, "no flapping")


@scenario(5)
def master_reaches_only_the_register(world: World) -> None:
    """The master's beat goes on, but no replica hears it: it resigns."""
    old = master_of(world)
    isolate(world, old, register=False)
    until_new_master(world, old, 12)
    world.run(5)


@scenario(6)
def register_stopped(world: World) -> None:
    """Without the register, acknowledging goes on and nobody is elected."""
    elections, oks = world.oracle.elections, world.oks
    world.register.up = False
    world.run(10)
    expect(world.oks > oks + 50, "acknowledgements without the register")
    world.register.up = True
    world.run(5)
    expect(world.oracle.elections == elections, "no election when the register is back")


@scenario(6)
def register_cut_off_from_the_master(world: World) -> None:
    """Only the master cannot reach the register: another one takes over."""
    old = master_of(world)
    world.network.block(old.name, REGISTER)
    until_new_master(world, old)
    world.run(3)


@scenario(7)
def register_stopped_and_replica_killed(world: World) -> None:
    """The set cannot shrink, so nothing is acknowledged until the register is back."""
    world.register.up = False
    world.run(0.5)
    victim = world.rng.choice(world.replicas())
    victim.kill()
    world.run(1)
    acks = len(world.oracle.acks)
    world.run(6)
    expect(len(world.oracle.acks) == acks, "no acknowledgement without a member of the set")
    if world.rng.random() < 0.5:
        master_of(world).kill()


@scenario(8)
def expand_answer_lost(world: World) -> None:
    """A replica enters the set, its master never learns of it, and then only that replica is left."""
    master = master_of(world)
    joiner, other = world.replicas()
    joiner.kill()
    world.run_until(lambda: joiner.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(world.rng.random())

    def cut(client: str, key: str, value: bytes, outcome: Outcome) -> None:
        if (
            key == KEYS.group
            and outcome is Outcome.DONE
            and client == str(master.name)
            and GroupRecord.decode(value).member(joiner.name) is not None
        ):
            world.note(f"node {master.name} loses the register and node {joiner.name}")
            world.network.block(master.name, REGISTER)
            world.network.block(master.name, joiner.name)

    world.register.on_swap = cut
    joiner.start()
    world.run_until(lambda: joiner.name in world.in_sync(), 10, "the replica enters the set")
    world.run(0.5 + world.rng.random() * 1.5)
    master.kill()
    other.kill()
    until_new_master(world, master, 15)
    world.run(1)


@scenario(8)
def late_and_lost_swaps(world: World) -> None:
    """Swaps are applied seconds after their sender gave up, or their answers are lost."""
    world.register.late, world.register.lost_answers = 0.4, 0.2
    for _ in range(4):
        victim = world.rng.choice(list(world.hosts.values()))
        victim.kill()
        world.run(world.rng.random() * 4)
        victim.start()
        world.run(world.rng.random() * 4)


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


@scenario(13)
def wiped_replica(world: World) -> None:
    """A replica comes back empty under the same id and is the only one alive: it is not elected."""
    victim = world.rng.choice(world.replicas())
    victim.kill()
    victim.disk.wipe()
    others = [host for host in world.hosts.values() if host is not victim]
    if world.rng.random() < 0.5:
        # Before the set shrinks: its id is still in the set.
        for host in others:
            host.kill()
        victim.start()
        world.run(10)
        expect(world.master() is not victim, "an empty node is not elected")
    else:
        victim.start()
        world.run(world.rng.random() * 0.3)
        for host in others:
            host.kill()
        world.run(6)


@scenario(13, nodes=2)
def wiped_replica_of_a_pair(world: World) -> None:
    """In a group of two, the empty replica copies everything and replaces its old self in the set."""
    victim = world.replicas()[0]
    victim.kill()
    victim.disk.wipe()
    world.run(world.rng.random() * 3)
    victim.start()
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 3, 15, "the pair acknowledges again")
    if world.rng.random() < 0.5:
        until = master_of(world)
        until.kill()
        world.run(5)


@scenario(14)
def bit_flip(world: World) -> None:
    """A record on one disk is damaged, and the node restarts: it is repaired and not elected before."""
    world.run(1)
    victim = world.rng.choice(list(world.hosts.values()))
    victim.kill()
    victim.disk.flip_bit(world.rng)
    world.run(world.rng.random() * 4)
    victim.start()
    world.run(world.rng.random() * 4)


def _leave_a_stale_tail(world: World) -> Host:
    """Cuts the master off while clients still write to it, until another master has written other records."""
    old = master_of(world)
    isolate(world, old)
    world.run(0.2)
    if world.rng.random() < 0.5 and old.node is not None:
        # Records that nobody else has: they are on its disk, but never acknowledged.
        for _ in range(world.rng.randrange(30)):
            old.node.send(world.next_record(), lambda code, queue_offset, epoch: None)
    until_new_master(world, old)
    world.run(world.rng.random() * 6)
    return old


@scenario(15)
def kill_during_truncation(world: World) -> None:
    """A node is killed at any step of a truncation; its stale tail stays dead."""
    old = _leave_a_stale_tail(world)
    kills = 0

    def kill(host: Host) -> None:
        nonlocal kills
        if kills < 4 and world.rng.random() < 0.5:
            kills += 1
            power = world.rng.random() < 0.3
            world.loop.after(0, host.lose_power if power else host.kill)
            world.loop.after(0.5 + world.rng.random(), host.start)

    world.truncation_step = kill
    world.network.heal()
    world.run(10)
    old.kill()
    world.run(1)
    old.start()
    world.run(2)


@scenario(15)
def stale_tail_behind_a_hole(world: World) -> None:
    """A node is killed after the first step of a truncation; then its log grows to where its old tail was."""
    old = master_of(world)
    pause(world)
    isolate(world, old)
    for _ in range(24):
        if old.node is not None:
            old.node.send(world.next_record(), lambda code, queue_offset, epoch: None)
    new = until_new_master(world, old)
    pause(world, False)
    grown = new.disk.end + world.rng.randrange(1, 20)
    world.run_until(lambda: new.disk.end >= grown, 10, "the new master has written")
    pause(world)
    steps = 0

    def kill(host: Host) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            world.loop.after(0, host.lose_power if world.rng.random() < 0.3 else host.kill)
            world.loop.after(0.5, host.start)

    world.truncation_step = kill
    world.network.heal()
    world.run_until(lambda: old.name in world.in_sync(), 15, "the old master is in sync")
    old.kill()
    world.run(0.2)
    old.start()
    world.run(1)
    pause(world, False)


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


@scenario(18)
def register_restored(world: World) -> None:
    """The register goes back to an old backup: the lower epoch is refused, until an operator repairs it."""
    backup = world.register.backup()
    first = master_of(world)
    first.kill()
    second = until_new_master(world, first)
    world.run(1)
    first.start()
    world.run_until(lambda: len(world.in_sync()) == 3, 10, "the old master rejoins")
    if world.rng.random() < 0.5:
        # The old master is away while more is acknowledged.
        first.kill()
        world.run(3)
    elections, oks = world.oracle.elections, world.oks
    world.register.restore(backup)
    world.run(2)
    first.start()
    world.run(8)
    expect(world.oracle.elections == elections, "nobody believes the old record")
    expect(world.oks > oks, "acknowledging goes on")
    world.force(second.name)


@scenario(19)
def forged_acknowledgements(world: World) -> None:
    """An acknowledgement beyond what was sent closes the link and confirms nothing."""
    for _ in range(3):
        master = master_of(world)
        node = master.node
        assert node is not None
        closed = world.oracle.closed_links
        if node.replicas:
            connection = next(iter(node.replicas))
            confirmed = node.confirmed
            node._from_replica(connection, ("ack", node.epoch, 10**12))
            expect(node.confirmed == confirmed, "confirmed unmoved")
            expect(world.oracle.closed_links == closed + 1, "the link is closed")
        world.run(2)


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


@scenario(26)
def sync_hangs(world: World) -> None:
    """The master's disk hangs: it hands over."""
    old = master_of(world)
    old.disk.hangs = True
    until_new_master(world, old, 12)
    world.run(world.rng.random() * 5)


@scenario(26)
def sync_fails(world: World) -> None:
    """The master's disk fails: it acknowledges nothing more and hands over."""
    old = master_of(world)
    old.disk.fails = True
    until_new_master(world, old, 12)
    world.run(world.rng.random() * 5)


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


@scenario(29)
def clock_leaps(world: World) -> None:
    """The clock of a node leaps an hour ahead: nobody is elected for that."""
    elections = world.oracle.elections
    host = world.rng.choice(list(world.hosts.values()))
    host.leap(3600)
    world.run(8)
    expect(world.oracle.elections == elections, "no false election")


ASYNC = HaSettings(replicas=ReplicaMode.ASYNC, min_in_sync=1)


@scenario(0, settings=ASYNC)
def async_isolated_master(world: World) -> None:
    """With `replicas=async`, an isolated master stops before another one acknowledges."""
    world.losses_allowed = True
    old = master_of(world)
    how = world.rng.random()
    if how < 0.4:
        isolate(world, old)
    elif how < 0.7:
        world.network.block(old.name, REGISTER)
    else:
        old.freeze()
    until_new_master(world, old)
    world.run(world.rng.random() * 6)
    old.thaw()
    world.run(1)


@scenario(0, settings=ASYNC)
def async_register_stopped(world: World) -> None:
    """With `replicas=async`, nobody acknowledges without the register."""
    world.losses_allowed = True
    world.register.up = False
    world.run(2.5)
    acks = len(world.oracle.acks)
    world.run(5)
    expect(len(world.oracle.acks) == acks, "no acknowledgement without the register")


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


@scenario(0, fixed=True, nodes=3, settings=HaSettings(min_in_sync=1))
def fixed_replicas_away(world: World) -> None:
    """With a minimum of one, a fixed master goes on alone."""
    world.hosts[2].kill()
    world.hosts[3].kill()
    oks = world.oks
    world.run_until(lambda: world.oks > oks + 5, 6, "the master goes on alone")


@scenario(0, settings=HaSettings(min_in_sync=1))
def random_faults_with_a_minimum_of_one(world: World) -> None:
    """The set may shrink to one node, whose disk survives."""
    random_faults(world, destroy=False)


@scenario(0, settings=ASYNC)
def random_faults_with_async_replicas(world: World) -> None:
    """Records may be lost, but never do two masters acknowledge at the same time."""
    world.losses_allowed = True
    random_faults(world, destroy=False)


@scenario(0)
def replica_behind_the_minimum(world: World) -> None:
    """The master has deleted what a replica needs next: the replica starts over."""
    world.run(1)
    late = world.rng.choice(world.replicas())
    late.kill()
    world.run(3)
    for host in world.hosts.values():
        if host is not late and host.node is not None:
            host.disk.log_start = max(host.node.confirmed - 5, host.disk.log_start)
    late.start()
    world.run(3)


@scenario(18)
def another_register(world: World) -> None:
    """The address leads to another register: a running node ignores it, a restarted one refuses to start."""
    elections = world.oracle.elections
    world.register.up = False
    world.run(1)
    other = world.register.backup()
    world.register.restore(({}, 1))
    world.register.cluster_id = "register-2"
    world.register.up = True
    world.run(5)
    expect(world.oracle.elections == elections, "no election by another register")
    replica = world.rng.choice(world.replicas())
    replica.kill()
    replica.start()
    world.run(3)
    expect(any("WrongRegister" in crash for crash in world.oracle.crashes), "a restarted node refuses it")
    world.oracle.crashes.clear()
    replica.kill()
    world.register.restore(other)
    world.register.cluster_id = "register-1"


@scenario(0)
def packet_loss(world: World) -> None:
    """A fifth of all packets is lost, and nodes die."""
    world.network.loss = 0.2
    kill_any_role(world)


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
            case 10:
                host.lose_power()
            case 11:
                victim.kill()
                if destroy and rng.random() < 0.5:
                    victim.disk.wipe()
                elif destroy:
                    victim.disk.flip_bit(rng)
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
