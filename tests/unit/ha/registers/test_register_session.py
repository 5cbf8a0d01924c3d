"""A change of the record stays pending until a read proves that it is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from metaq.ha.actions import Swap
from metaq.ha.conducting.boot_clock import BootClock
from metaq.ha.decisions import decide
from metaq.ha.group_record import Beat, GroupKeys, Member, NodeState, Reader
from metaq.ha.registers.memory_register import Call, Fault, MemoryRegister, MemoryStore, Operation
from metaq.ha.registers.register_session import RegisterSession
from metaq.ha.settings import HaSettings
from metaq.ha.view import Role, SwapPurpose
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat, own, view

KEYS = GroupKeys("cluster", "broker")
QUICK = HaSettings(poll_interval_s=0.01, urgent_poll_interval_s=0.001)
PAIR = RECORD.replace(in_sync=(ONE, TWO))


class World:
    """A register with a group, and one node's session with it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.store.swap(KEYS.group, 0, PAIR.encode())
        self.faults: dict[Operation, Fault] = {}
        self.looks = 0
        register = MemoryRegister(self.store, "node-1", fault=self._fault)
        self.session = RegisterSession(register, KEYS, QUICK, BootClock(), self._looked)

    def _fault(self, call: Call) -> Fault:
        return self.faults.get(call.operation, Fault.NONE)

    def _looked(self) -> None:
        self.looks += 1

    def swap(self) -> asyncio.Task[None]:
        """Begins to add node 3 to the set."""
        revision = self.session.view(BootClock().now()).revision
        self.session.begin_swap(Swap(SwapPurpose.EXPAND, revision, RECORD))
        return asyncio.ensure_future(self.session.finish_swap())

    @property
    def readable(self) -> bool:
        return self.session.view(BootClock().now()).readable


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def run(scenario: Scenario) -> None:
    async def play() -> None:
        world = World()
        assert await world.session.first_read() == "memory"
        await scenario(world)

    asyncio.run(asyncio.wait_for(play(), 30))


def test_a_swap_that_succeeds_is_seen_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.swap()
        assert world.session.pending is None
        assert world.session.view(BootClock().now()).record == RECORD

    run(scenario)


def test_a_lost_answer_is_settled_by_reading() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.LOST_ANSWER
        await world.swap()
        assert world.session.pending is None
        assert world.session.view(BootClock().now()).record == RECORD

    run(scenario)


def test_a_late_swap_stays_pending_though_a_read_shows_the_old_record() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.LATE
        await world.swap()
        pending = world.session.pending
        assert pending is not None
        assert (pending.in_flight, pending.record) == (False, RECORD)
        assert world.session.view(BootClock().now()).record == PAIR
        # Asking again settles it, and the late one comes to nothing.
        world.faults.clear()
        await world.swap()
        assert world.session.pending is None
        late = world.store.apply_late()
        assert [outcome.value for outcome in late] == ["conflict"]

    run(scenario)


def test_a_swap_that_was_certainly_not_applied_is_over() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.UNAVAILABLE
        await world.swap()
        assert world.session.pending is None
        assert world.session.view(BootClock().now()).record == PAIR

    run(scenario)


def test_a_refused_retry_does_not_settle_the_first_attempt() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.LATE
        await world.swap()
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.UNAVAILABLE
        await world.swap()
        assert world.session.pending is not None
        world.store.apply_late()
        await world.session.read()
        assert world.session.pending is None

    run(scenario)


def test_while_reads_fail_the_outcome_stays_open() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.LOST_ANSWER
        world.faults[Operation.LIST] = Fault.UNAVAILABLE
        swap = world.swap()
        while world.readable:
            await asyncio.sleep(0)
        assert world.session.pending is not None
        assert world.session.pending.in_flight
        world.faults.clear()
        await swap
        assert world.session.pending is None

    run(scenario)


@pytest.mark.parametrize("value", [b"{", PAIR.replace(epoch=4).encode()])
def test_a_record_that_cannot_be_believed_changes_nothing(value: bytes) -> None:
    async def scenario(world: World) -> None:
        world.session.promised_epoch, world.session.joined = 5, True
        world.store.swap(KEYS.group, world.store.values[KEYS.group].revision, value)
        assert not await world.session.read()
        assert not world.readable
        assert world.session.view(BootClock().now()).record == PAIR

    run(scenario)


def test_a_record_that_is_gone_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        world.session.promised_epoch, world.session.joined = 5, True
        del world.store.values[KEYS.group]
        assert not await world.session.read()
        assert world.session.view(BootClock().now()).record == PAIR

    run(scenario)


def test_another_register_under_the_same_address_is_not_read() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.LIST] = Fault.UNAVAILABLE
        assert not await world.session.read()
        world.faults.clear()
        world.store.cluster_id = "another"
        assert not await world.session.read()
        world.store.cluster_id = "memory"
        assert await world.session.read()

    run(scenario)


def test_beats_are_timed_by_the_change_that_this_node_sees() -> None:
    async def scenario(world: World) -> None:
        other = beat(TWO).beat
        assert await world.session.write_beat(other)
        await world.session.read()
        first = world.session.beats[2]
        await world.session.read()
        assert world.session.beats[2] == first
        assert await world.session.write_beat(beat(TWO, sequence=2).beat)
        await world.session.read()
        assert world.session.beats[2].changed_at > first.changed_at

    run(scenario)


def test_a_damaged_beat_is_left_out() -> None:
    async def scenario(world: World) -> None:
        world.store.swap(KEYS.beat(2), 0, b"nonsense")
        world.store.swap(KEYS.beat(3), 0, beat(TWO).beat.encode())
        assert await world.session.read()
        assert world.session.beats == {}

    run(scenario)


def test_a_beat_without_an_answer_does_not_count() -> None:
    async def scenario(world: World) -> None:
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.LOST_ANSWER
        assert not await world.session.write_beat(beat(ONE).beat)
        world.faults[Operation.COMPARE_AND_SWAP] = Fault.UNAVAILABLE
        assert not await world.session.write_beat(beat(ONE).beat)

    run(scenario)


def test_a_beat_is_fresh_only_if_it_changes_in_an_unbroken_row_of_reads() -> None:
    async def scenario(world: World) -> None:
        async def beaten(sequence: int) -> bool:
            key = KEYS.beat(3)
            revision = world.store.values[key].revision if key in world.store.values else 0
            world.store.swap(key, revision, beat(THREE, sequence=sequence).beat.encode())
            await world.session.read()
            return world.session.beats[3].is_fresh

        assert not await beaten(1), "a first sight"
        assert await beaten(2)
        world.faults[Operation.LIST] = Fault.UNAVAILABLE
        await world.session.read()
        world.faults.clear()
        assert not await beaten(3), "the register may be another copy now"
        assert await beaten(4)

    run(scenario)


def test_an_older_copy_of_the_register_ends_the_row_of_reads() -> None:
    async def scenario(world: World) -> None:
        session, store = world.session, world.store
        assert await session.write_beat(beat(TWO, sequence=5).beat)
        store.swap(KEYS.beat(3), 0, beat(THREE).beat.encode())
        await session.read()
        copy = dict(store.values)
        store.swap(KEYS.beat(3), store.values[KEYS.beat(3)].revision, beat(THREE, sequence=2).beat.encode())
        await session.read()
        assert session.beats[3].is_fresh
        store.values = dict(copy)
        await session.read()
        assert not session.beats[3].is_fresh, "the revision of a beat went back"
        # A copy that has grown beyond the revisions that were seen lacks the beats of this node.
        assert await session.write_beat(beat(TWO, sequence=6).beat)
        await session.read()
        since = session.view(BootClock().now()).readable_since
        store.swap(KEYS.beat(2), store.values[KEYS.beat(2)].revision, beat(TWO, sequence=4).beat.encode())
        await session.read()
        assert session.view(BootClock().now()).readable_since > since

    run(scenario)


def test_a_register_that_went_back_is_a_fault_until_a_newer_record_comes() -> None:
    async def scenario(world: World) -> None:
        session, store = world.session, world.store
        newest = PAIR.replace()
        session.promised_record = newest.promise
        assert not await session.read()
        view = session.view(BootClock().now())
        assert (view.readable, view.record) == (False, PAIR)
        assert "version 1 (epoch 5)" in view.fault and "has seen version 2" in view.fault
        store.swap(KEYS.group, store.values[KEYS.group].revision, newest.encode())
        assert await session.read()
        assert session.view(BootClock().now()).fault == ""

    run(scenario)


def test_a_node_starts_although_it_refuses_the_record() -> None:
    async def play() -> None:
        world = World()
        world.session.promised_record = PAIR.replace().promise
        assert await world.session.first_read() == "memory"
        assert world.session.view(BootClock().now()).record is None

    asyncio.run(asyncio.wait_for(play(), 30))


def test_another_node_with_the_same_id_is_noticed() -> None:
    async def scenario() -> None:
        world = World()
        own, other = beat(ONE).beat, beat(ONE, replication_address="far:1", client_address="far:2").beat
        world.store.swap(KEYS.beat(1), 0, other.encode())
        assert await world.session.write_beat(own)
        assert world.session.namesake == "", "the node has moved to another address"
        stored = await MemoryRegister(world.store, "other").get(KEYS.beat(1))
        assert stored is not None
        world.store.swap(KEYS.beat(1), stored.revision, other.encode())
        await world.session.write_beat(own)
        assert world.session.namesake == "far:2"
        await world.session.write_beat(own)
        assert world.session.namesake == "far:2", "the other one may only be late"

    asyncio.run(scenario())


def test_a_group_stays_readable_for_older_nodes_until_the_last_one_is_upgraded() -> None:
    async def scenario() -> None:
        world = World()
        session, store = world.session, world.store
        session.own = ONE
        store.values.clear()
        store.swap(KEYS.group, 0, RECORD.encode())
        store.swap(KEYS.reader(3), 0, Reader(THREE.incarnation).encode())
        await session.first_read()
        mine = beat(ONE, state=NodeState.FULL, promised_version=1, state_version=(5, 1)).beat

        async def written() -> Beat:
            await session.write_beat(mine)
            await session.read()
            return Beat.decode(store.values[KEYS.beat(1)].value)

        assert await written() == mine.for_older()
        assert Reader.decode(store.values[KEYS.reader(1)].value).incarnation == ONE.incarnation
        assert session.view(BootClock().now()).has_older_nodes, "node 2 is in the set"
        store.swap(KEYS.reader(2), 0, Reader(TWO.incarnation).encode())
        await session.read()
        assert not session.view(BootClock().now()).has_older_nodes
        assert await written() == mine
        # A node that is not in the set counts while it beats.
        store.swap(KEYS.beat(4), 0, beat(Member(4, "d")).beat.encode())
        await session.read()
        assert session.view(BootClock().now()).has_older_nodes
        # A group with versions keeps them: they protect it, and an older node must be upgraded.
        store.swap(KEYS.group, store.values[KEYS.group].revision, RECORD.replace().encode())
        await session.read()
        assert not session.view(BootClock().now()).has_older_nodes

    asyncio.run(scenario())


def test_an_older_node_joins_only_while_it_can_read_the_record() -> None:
    joining = view(own(Role.MASTER, ONE, required=RECORD.members), record=RECORD.replace(in_sync=(ONE, TWO)))
    assert isinstance(decide(joining)[0], Swap)
    older = replace(joining, register=replace(joining.register, readers=frozenset((ONE, TWO))))
    assert not any(isinstance(action, Swap) for action in decide(older))
    unversioned = replace(older, register=replace(older.register, record=PAIR.for_older()))
    (action,) = decide(unversioned)
    assert isinstance(action, Swap)
    assert (action.record.members, action.record.version) == (RECORD.members, 0)


def test_a_change_is_written_for_older_nodes() -> None:
    beats = {2: beat(TWO), 3: beat(THREE, state=NodeState.LEAVING)}
    seen = view(own(Role.MASTER, ONE), beats=beats)
    for has_older_nodes, version in [(True, 0), (False, 1)]:
        register = replace(seen.register, has_older_nodes=has_older_nodes)
        (action,) = decide(replace(seen, register=register))
        assert isinstance(action, Swap)
        assert (action.record.members, action.record.version) == ({ONE, TWO}, version)
