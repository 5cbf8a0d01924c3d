"""Disks are emptied, damaged, slow to cut, or fail."""

from __future__ import annotations

import copy

from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.group_record import Beat
from metaq.ha.settings import HaSettings
from tests.simulation.disk import Disk
from tests.simulation.host import KEYS, Host
from tests.simulation.scenarios.catalogue import (
    ASYNC,
    expect,
    isolate,
    master_of,
    pause,
    scenario,
    until_new_master,
)
from tests.simulation.world import World


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


@scenario(13)
def older_journal(world: World) -> None:
    """All stop. One node comes back first, with its log but without its topics, groups and offsets."""
    world.run(3)
    hosts = list(world.hosts.values())
    world.rng.shuffle(hosts)
    for host in hosts:
        host.kill()
    victim, *others = hosts
    if world.rng.random() < 0.5:
        victim.disk.forget_state(world.rng)
    else:
        # Only the beat in the register shows what is missing.
        victim.disk.lose_state()
    victim.start()
    world.run(world.rng.random() * 8)
    for host in others:
        host.start()


@scenario(13)
def older_copy_of_a_store(world: World) -> None:
    """A replica comes back with a copy of its whole disk that is older than the last master."""
    victim = world.rng.choice(world.replicas())
    victim.kill()
    copied = copy.deepcopy(victim.disk)
    if world.rng.random() < 0.3:
        # The copy finishes a cut when it starts, and cuts nothing.
        _note_a_cut(copied)
    victim.start()
    world.run_until(lambda: len(world.in_sync()) == 3, 20, "the replica is in sync")
    if (old := world.master()) is not None:
        old.kill()
        until_new_master(world, old)
        old.start()
        world.run_until(lambda: len(world.in_sync()) == 3, 20, "everybody is in sync")
    if world.master() is victim:
        return
    world.run(1 + world.rng.random())
    master = master_of(world)
    (other,) = [host for host in world.replicas() if host is not victim]
    other.kill()
    world.run_until(lambda: other.name not in world.in_sync(), 10, "the dead replica leaves the set")
    world.run(1)
    master.kill()
    victim.kill()
    copied.boot = victim.disk.boot
    victim.disk = copied
    victim.start()
    world.run(world.rng.random())
    other.start()
    world.run(8)
    expect(world.master() is None, "nobody who lacks messages is elected")


def _note_a_cut(disk: Disk) -> None:
    assert disk.node_file is not None
    disk.node_file = NodeRecord.decode(disk.node_file).change(truncate_to=disk.end).encode()


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


@scenario(15)
def killed_after_a_cut(world: World) -> None:
    """A node dies in a cut, then after it has finished the cut and before its next beat. It lacks nothing."""
    old = master_of(world)
    pause(world)
    isolate(world, old)
    for _ in range(24):
        if old.node is not None:
            old.node.send(world.next_record(), lambda code, queue_offset, epoch: None)
    until_new_master(world, old)
    beats = KEYS.beat(old.name)

    def kill(host: Host) -> None:
        # A beat of the new epoch claims the end of the log before the cut.
        record, stored = world.record(), world.register.values[beats]
        if host is old and record is not None and Beat.decode(stored.value).promised_epoch == record.epoch:
            world.truncation_step = lambda host: None
            world.loop.after(0, old.kill)

    world.truncation_step = kill
    world.network.heal()
    world.run(5)
    if old.running:
        # The cut was faster than the beat.
        pause(world, False)
        return
    world.register.swap_delay_s = lambda client, key, value: 60.0 if key == beats else 0.0
    before = _incarnation(old.disk)
    old.start()
    world.run(2)
    old.kill()
    world.register.swap_delay_s = lambda client, key, value: 0.0
    old.start()
    world.run(2)
    expect(_incarnation(old.disk) == before, "it keeps its incarnation")
    pause(world, False)


def _incarnation(disk: Disk) -> str:
    assert disk.node_file is not None
    return NodeRecord.decode(disk.node_file).incarnation


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


@scenario(26)
def no_room_for_a_promise(world: World) -> None:
    """A node whose disk is full cannot promise a new record: it waits for room, and goes on then."""
    full, late = world.shuffle()[:2]
    full.disk.has_room = False
    late.kill()
    world.run(world.rng.random() * 6)
    if world.rng.random() < 0.5 and (master := world.master()) is not None:
        master.kill()
        world.run(world.rng.random() * 6)
    full.disk.has_room = True


def _restart_all_with_full_master(world: World) -> None:
    """All restart, and the disk of the former master is full."""
    world.run(1)
    full = master_of(world)
    for host in world.hosts.values():
        host.kill()
    full.disk.is_full = True
    # First, so that its port never refuses and its beats never stop.
    full.start()
    for host in world.shuffle():
        host.start()
        world.run(world.rng.random())
    new = until_new_master(world, full)
    expect(new is not full, "a node with room becomes master")
    others = [host for host in world.hosts.values() if host is not full]
    if len(others) >= world.settings.min_in_sync:
        oks = world.oks
        world.run_until(lambda: world.oks > oks, 10, "the nodes with room acknowledge")
    world.run(world.rng.random() * 3)


@scenario(26, nodes=2)
def full_master_of_a_pair_after_a_restart(world: World) -> None:
    """The master's disk is full after a restart: the other one takes over, and the pair can be read."""
    _restart_all_with_full_master(world)


@scenario(26)
def full_master_after_a_restart(world: World) -> None:
    """The master's disk is full after a restart: the other two go on."""
    _restart_all_with_full_master(world)


@scenario(26, nodes=5, settings=HaSettings(min_in_sync=3))
def full_master_of_five_after_a_restart(world: World) -> None:
    """The master's disk is full after a restart: the other four go on."""
    _restart_all_with_full_master(world)


@scenario(26, settings=ASYNC)
def full_master_without_acknowledgements_after_a_restart(world: World) -> None:
    """The same with `replicas=async`."""
    world.losses_allowed = True
    _restart_all_with_full_master(world)


@scenario(26)
def all_disks_full(world: World) -> None:
    """All disks are full after a restart: there is one master all the same, and it stays."""
    for host in world.hosts.values():
        host.kill()
        host.disk.is_full = True
    for host in world.shuffle():
        world.run(world.rng.random())
        host.start()
    world.run(10)
    master, elections = master_of(world), world.oracle.elections
    world.run(10)
    expect(world.oracle.elections == elections, "the mastership stays where it is")
    world.shuffle()[0].disk.is_full = False
    world.run(world.rng.random() * 5)
    if world.rng.random() < 0.5:
        master.kill()
        world.run(world.rng.random() * 5)


@scenario(26)
def disk_hangs_at_a_change(world: World) -> None:
    """The disk of the master hangs just when a node joins, so that it cannot promise the new record."""
    late = world.rng.choice(world.replicas())
    late.kill()
    world.run_until(lambda: late.name not in world.in_sync(), 5, "the dead replica leaves the set")
    world.run(world.rng.random() * 2)
    hanging = master_of(world)
    late.start()
    world.register.on_write = lambda: _hang(world, hanging, late)
    until_new_master(world, hanging)
    hanging.disk.hangs = False


def _hang(world: World, hanging: Host, late: Host) -> None:
    if late.name in world.in_sync():
        hanging.disk.hangs = True
        world.register.on_write = lambda: None
