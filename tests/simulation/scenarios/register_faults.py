"""The register is away, late, or not what it was."""

from __future__ import annotations

from metaq.ha.group_record import GroupRecord
from metaq.ha.register import Outcome
from tests.simulation.faulty_register import NAME as REGISTER
from tests.simulation.host import KEYS
from tests.simulation.scenarios.catalogue import ASYNC, expect, master_of, scenario, until_new_master
from tests.simulation.world import World


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
def expand_applied_late(world: World) -> None:
    """The master gives up on adding a replica and reads the old record; only then its change is applied."""
    master = master_of(world)
    joiner, other = world.replicas()
    joiner.kill()
    world.run_until(lambda: joiner.name not in world.in_sync(), 5, "the dead replica leaves the set")

    def delay_s(client: str, key: str, value: bytes) -> float:
        expands = key == KEYS.group and GroupRecord.decode(value).member(joiner.name) is not None
        if not expands or client != str(master.name):
            return 0.0
        world.loop.after(1.3, world.network.block, master.name, REGISTER)
        world.loop.after(0.01, world.network.block, master.name, joiner.name)
        return 2.0

    world.register.swap_delay_s = delay_s
    joiner.start()
    world.run_until(lambda: joiner.name in world.in_sync(), 10, "the replica enters the set")
    world.run(0.5 + world.rng.random() * 0.5)
    master.kill()
    other.kill()
    until_new_master(world, master, 15)
    world.run(1)


@scenario(8)
def late_and_lost_swaps(world: World) -> None:
    """Swaps are applied seconds after their sender gave up, or twice, or their answers are lost."""
    world.register.late, world.register.lost_answers, world.register.duplicates = 0.4, 0.2, 0.2
    for _ in range(4):
        victim = world.rng.choice(list(world.hosts.values()))
        victim.kill()
        world.run(world.rng.random() * 4)
        victim.start()
        world.run(world.rng.random() * 4)


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


@scenario(0, settings=ASYNC)
def async_register_stopped(world: World) -> None:
    """With `replicas=async`, nobody acknowledges without the register."""
    world.losses_allowed = True
    world.register.up = False
    world.run(2.5)
    acks = len(world.oracle.acks)
    world.run(5)
    expect(len(world.oracle.acks) == acks, "no acknowledgement without the register")
