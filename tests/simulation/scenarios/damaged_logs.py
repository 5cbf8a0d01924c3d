"""Records on a disk change while their node runs. Others have them, so nothing is lost."""

from __future__ import annotations

from metaq.ha.conducting.node_files import NodeRecord
from tests.simulation.host import Host
from tests.simulation.scenarios.catalogue import expect, isolate, master_of, scenario
from tests.simulation.world import World


def _rot(world: World, host: Host) -> None:
    world.run_until(lambda: host.disk.rot(world.rng) is not None, 10, "there is a record to damage")
    world.note(f"node {host.name} has damaged records: {host.disk.damaged()}")


def _pause_in_turn(world: World) -> None:
    for host in world.replicas():
        host.freeze()
        # Long enough for the link to break.
        world.run(3.5 + world.rng.random() * 3)
        host.thaw()
        world.run(2)


def _restart_in_turn(world: World) -> None:
    for host in world.shuffle():
        host.kill()
        world.run(world.rng.random() * 4)
        host.start()
        world.run_until(
            lambda host=host: host.name in world.in_sync(),  # type: ignore[misc]
            20,
            f"node {host.name} is in sync after its restart",
        )


def _expect_sound_logs(world: World) -> None:
    def are_sound() -> bool:
        return not any(host.disk.damaged() for host in world.hosts.values())

    world.run_until(are_sound, 20, "all logs are repaired")
    expect(world.oracle.repairs > 0, "damaged records were repaired, and not copied with everything else")


@scenario(14)
def damaged_master(world: World) -> None:
    """A record of the running master is damaged, and each replica is paused: a sound node takes over."""
    world.run(1)
    old = master_of(world)
    _rot(world, old)
    _pause_in_turn(world)
    _expect_sound_logs(world)
    _restart_in_turn(world)


@scenario(14)
def damaged_replica(world: World) -> None:
    """A replica with damage reconnects: it repairs its log, and is not elected before."""
    world.run(1)
    victim = world.rng.choice(world.replicas())
    _rot(world, victim)
    isolate(world, victim)
    world.run(4 + world.rng.random() * 3)
    world.network.heal()
    if world.rng.random() < 0.5:
        world.run(world.rng.random() * 0.5)
        old = master_of(world)
        old.kill()
        world.run(world.rng.random() * 5)
        old.start()
    world.run_until(lambda: not victim.disk.damaged(), 20, "the log of the replica is repaired")
    _restart_in_turn(world)


@scenario(14)
def damage_found_by_a_reader(world: World) -> None:
    """A consumer reads a damaged record, of a node that does not reconnect by itself."""
    world.run(1)
    victim = world.rng.choice(list(world.hosts.values()))
    _rot(world, victim)
    world.run(world.rng.random())
    assert victim.node is not None
    for place in victim.disk.damaged():
        victim.node.read(place)
    _expect_sound_logs(world)
    _restart_in_turn(world)


@scenario(14)
def different_damage_on_two_nodes(world: World) -> None:
    """Two nodes have damage in different places, and all nodes restart."""
    world.run(2)
    first, second = world.shuffle()[:2]
    _rot(world, first)
    world.run(0.5)
    _rot(world, second)
    if set(first.disk.damaged()) & set(second.disk.damaged()):
        return
    hosts = world.shuffle()
    for host in hosts:
        host.kill()
    for host in hosts:
        host.start()
        world.run(world.rng.random())
    _expect_sound_logs(world)


@scenario(14, nodes=2)
def damaged_master_of_a_pair(world: World) -> None:
    """The replica of a damaged master is paused: when it is back, it takes over."""
    world.run(1)
    _rot(world, master_of(world))
    _pause_in_turn(world)
    _expect_sound_logs(world)


@scenario(14, nodes=2)
def damaged_node_and_full_node(world: World) -> None:
    """The pair restarts, one node with damage and the other one with a full disk: the full one is master."""
    world.run(1)
    full, damaged = world.shuffle()
    _rot(world, damaged)
    for host in (full, damaged):
        host.kill()
    full.disk.is_full = True
    # It had found the damage before.
    assert damaged.disk.node_file is not None
    noted = NodeRecord.decode(damaged.disk.node_file).change(damaged_at=damaged.disk.damaged()[0])
    damaged.disk.node_file = noted.encode()
    for host in world.shuffle():
        host.start()
    world.run_until(lambda: world.master() is full, 20, "the node with the sound log is master")
    world.run(world.rng.random() * 5)


@scenario(14, fixed=True)
def damaged_fixed_replica(world: World) -> None:
    """A replica with a fixed master repairs its log."""
    world.run(1)
    victim = world.rng.choice(world.replicas())
    _rot(world, victim)
    victim.kill()
    world.run(world.rng.random() * 3)
    victim.start()
    _expect_sound_logs(world)


@scenario(14, nodes=2)
def damaged_replica_is_alone(world: World) -> None:
    """A replica knows of damage, cannot reach its master, and then the master dies: it waits for it."""
    world.run(1)
    old, victim = master_of(world), world.replicas()[0]
    _rot(world, victim)
    isolate(world, victim, register=False)
    assert victim.node is not None
    for place in victim.disk.damaged():
        victim.node.read(place)
    world.run(1 + world.rng.random() * 3)
    old.kill()
    world.run(8)
    expect(world.master() is None, "a node with a damaged log is not elected while another may be sound")
    world.network.heal()
    old.start()
    _expect_sound_logs(world)


@scenario(14)
def damage_where_a_replica_copies_on(world: World) -> None:
    """The master is damaged where a replica must copy on: another node becomes master."""
    world.run(1)
    old = master_of(world)
    late = world.rng.choice(world.replicas())
    late.kill()
    if world.rng.random() < 0.3:
        late.disk.wipe()
    world.run(3)
    end = late.disk.end
    world.run_until(
        lambda: old.disk.rot(world.rng, end) is not None, 10, "there is a record to damage behind its end"
    )
    late.start()
    _expect_sound_logs(world)
    _restart_in_turn(world)


@scenario(14)
def damaged_master_restarts(world: World) -> None:
    """A master learns of damage just before all nodes are killed, and it comes back first."""
    world.run(1)
    old = master_of(world)
    _rot(world, old)
    assert old.node is not None
    for place in old.disk.damaged():
        old.node.read(place)
    world.run(world.rng.random() * 0.05)
    hosts = list(world.hosts.values())
    for host in hosts:
        host.kill()
    old.start()
    world.run(world.rng.random() * 3)
    for host in hosts:
        host.start()
    _expect_sound_logs(world)
