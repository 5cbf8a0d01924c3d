"""All groups of a cluster in the register, and the record that is forced there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from metaq.errors import CommandError
from metaq.ha.group_record import GroupKeys, GroupRecord
from metaq.ha.operators.register_groups import (
    RegisteredGroup,
    plan_force,
    read_group,
    read_groups,
    write_forced,
)
from metaq.ha.register import RegisterUnavailable
from metaq.ha.registers.memory_register import Call, Fault, MemoryRegister, MemoryStore, Operation
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat

CLUSTER = "DefaultCluster"
KEYS = GroupKeys(CLUSTER, "broker-a")


def filled() -> MemoryStore:
    store = MemoryStore()
    store.swap(KEYS.group, 0, RECORD.encode())
    for member, end in ((ONE, 500), (TWO, 400)):
        store.swap(KEYS.beat(member.id), 0, beat(member, flushed_end=end).beat.encode())
    return store


def test_groups_are_read_by_cluster() -> None:
    store = filled()
    store.swap(GroupKeys("Other", "broker-z").group, 0, RECORD.encode())
    store.swap(GroupKeys(CLUSTER, "broker-b").beat(1), 0, beat(ONE).beat.encode())
    groups = asyncio.run(read_groups(MemoryRegister(store), CLUSTER))
    assert sorted(groups) == ["broker-a", "broker-b"]
    assert groups["broker-a"].record == RECORD
    assert sorted(groups["broker-a"].beats) == [1, 2]
    assert groups["broker-b"].record is None
    assert groups["broker-a"].faults == []


def test_a_late_register_is_read_again_and_one_that_refuses_is_not() -> None:
    def read_with(faults: list[Fault]) -> None:
        register = MemoryRegister(filled(), fault=lambda call: faults.pop(0) if faults else Fault.NONE)
        assert list(asyncio.run(read_groups(register, CLUSTER))) == ["broker-a"]

    read_with([Fault.LOST_ANSWER, Fault.LOST_REQUEST])
    with pytest.raises(RegisterUnavailable, match="the register is unavailable"):
        read_with([Fault.UNAVAILABLE])


def test_values_that_cannot_be_read_are_named() -> None:
    store = filled()
    store.swap(KEYS.beat(3), 0, b"{")
    store.swap(KEYS.beat(4), 0, beat(ONE).beat.encode())
    group = asyncio.run(read_group(MemoryRegister(store), CLUSTER, "broker-a"))
    assert len(group.faults) == 2 and KEYS.beat(3) in group.faults[0]
    assert sorted(group.beats) == [1, 2]
    with pytest.raises(CommandError, match="cannot be read"):
        plan_force(group, 1)


def test_a_group_that_is_not_there() -> None:
    with pytest.raises(CommandError, match="no broker group broker-x") as raised:
        asyncio.run(read_group(MemoryRegister(filled()), CLUSTER, "broker-x"))
    assert "broker-a" in raised.value.hint


def test_a_forced_record_is_written_once() -> None:
    async def scenario() -> None:
        store = filled()
        register = MemoryRegister(store)
        group = await read_group(register, CLUSTER, "broker-a")
        forced = plan_force(group, 2)
        assert (forced.record.master, forced.record.epoch, forced.bytes_lost_max) == (2, 1002, 100)
        await write_forced(register, CLUSTER, group, forced)
        assert GroupRecord.decode(store.values[KEYS.group].value) == forced.record
        with pytest.raises(CommandError, match="master of broker-a already"):
            plan_force(await read_group(register, CLUSTER, "broker-a"), 2)

    asyncio.run(scenario())


def test_a_changed_record_is_not_overwritten() -> None:
    async def scenario() -> None:
        store = filled()
        register = MemoryRegister(store)
        group = await read_group(register, CLUSTER, "broker-a")
        newer = RECORD.replace(epoch=6, master=THREE.id)
        store.swap(KEYS.group, group.revision, newer.encode())
        with pytest.raises(CommandError, match="changed meanwhile"):
            await write_forced(register, CLUSTER, group, plan_force(group, 2))
        assert GroupRecord.decode(store.values[KEYS.group].value) == newer

    asyncio.run(scenario())


def faulty(faults: Iterator[Fault], store: MemoryStore) -> MemoryRegister:
    def fate(call: Call) -> Fault:
        return next(faults) if call.operation is Operation.COMPARE_AND_SWAP else Fault.NONE

    return MemoryRegister(store, fault=fate)


@pytest.mark.parametrize("lost", [Fault.LOST_ANSWER, Fault.LOST_REQUEST])
def test_a_lost_answer_is_settled_by_another_try(lost: Fault) -> None:
    async def scenario() -> None:
        store = filled()
        register = faulty(iter((lost, Fault.NONE)), store)
        group = await read_group(register, CLUSTER, "broker-a")
        forced = plan_force(group, 2)
        await write_forced(register, CLUSTER, group, forced)
        assert GroupRecord.decode(store.values[KEYS.group].value) == forced.record

    asyncio.run(scenario())


def test_an_outcome_that_stays_unknown_is_not_called_done() -> None:
    async def scenario() -> None:
        register = faulty(iter([Fault.LOST_REQUEST] * 20), filled())
        group: RegisteredGroup = await read_group(register, CLUSTER, "broker-a")
        with pytest.raises(RegisterUnavailable, match="may still be written"):
            await write_forced(register, CLUSTER, group, plan_force(group, 2))

    asyncio.run(scenario())
