"""The network drops packets, and peers lie."""

from __future__ import annotations

from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.scenarios.catalogue import ASYNC, expect, isolate, master_of, scenario, until_new_master
from tests.simulation.scenarios.crashes import kill_any_role
from tests.simulation.world import World


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


@scenario(4)
def nodes_reach_only_the_register(world: World) -> None:
    """No node reaches another one: whoever is master cannot acknowledge, and the mastership hardly moves."""
    elections = world.oracle.elections
    for host in world.hosts.values():
        isolate(world, host, register=False)
    world.run(60)
    expect(world.oracle.elections <= elections + 8, f"no flapping, not {world.oracle.elections} masters")


@scenario(5)
def master_reaches_only_the_register(world: World) -> None:
    """The master's beat goes on, but no replica hears it: it resigns."""
    old = master_of(world)
    isolate(world, old, register=False)
    until_new_master(world, old, 12)
    world.run(5)


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
            node._from_replica(connection, ("ack", node.epoch, 10**12, (0, 0)))
            expect(node.confirmed == confirmed, "confirmed unmoved")
            expect(world.oracle.closed_links == closed + 1, "the link is closed")
        world.run(2)


@scenario(0)
def packet_loss(world: World) -> None:
    """A fifth of all packets is lost, and nodes die."""
    world.network.loss = 0.2
    kill_any_role(world)


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
