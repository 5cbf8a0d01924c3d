"""The faults that the register in memory injects. tests/integration/ha has the contract of all registers."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest

from metaq.ha.register import Outcome, RegisterUnavailable, Stored
from metaq.ha.registers.memory_register import Call, Fault, MemoryRegister, MemoryStore, Operation
from tests.support.waiting import run

KEY = "metaq/c/b/group"


def failing(store: MemoryStore, *faults: Fault) -> MemoryRegister:
    """A client whose calls have these fates, one after another, and then none."""
    left = list(faults)
    return MemoryRegister(store, fault=lambda call: left.pop(0) if left else Fault.NONE)


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine that must not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


def test_it_needs_no_event_loop() -> None:
    store = MemoryStore()
    register = MemoryRegister(store)
    assert at_once(register.compare_and_swap(KEY, 0, b"a")) is Outcome.DONE
    assert at_once(register.get(KEY)) == Stored(b"a", 2)


@pytest.mark.parametrize(
    ("fault", "applied"), [(Fault.LOST_REQUEST, False), (Fault.LOST_ANSWER, True), (Fault.LATE, False)]
)
def test_a_swap_without_an_answer_is_unknown(fault: Fault, applied: bool) -> None:
    register = failing(MemoryStore(), fault)
    assert at_once(register.compare_and_swap(KEY, 0, b"a")) is Outcome.UNKNOWN
    assert (at_once(register.get(KEY)) is not None) is applied


def test_a_swap_that_cannot_be_sent_is_not_unknown() -> None:
    store = MemoryStore()
    register = failing(store, Fault.UNAVAILABLE)
    with pytest.raises(RegisterUnavailable):
        at_once(register.compare_and_swap(KEY, 0, b"a"))
    assert store.values == {} and store.late == []


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_a_read_without_an_answer_is_an_error(fault: Fault) -> None:
    register = failing(MemoryStore(), fault, fault, fault)
    for read in (register.get(KEY), register.list("metaq/"), register.cluster_id()):
        with pytest.raises(RegisterUnavailable):
            at_once(read)


def test_a_late_swap_is_applied_after_a_read_did_not_see_it() -> None:
    store = MemoryStore()
    register = failing(store, Fault.LATE)
    assert at_once(register.compare_and_swap(KEY, 0, b"late")) is Outcome.UNKNOWN
    assert at_once(register.get(KEY)) is None
    assert store.apply_late() == [Outcome.DONE]
    assert at_once(register.get(KEY)) == Stored(b"late", 2)


def test_of_a_late_swap_and_its_repetition_only_one_is_applied() -> None:
    store = MemoryStore()
    register = failing(store, Fault.LATE)
    assert at_once(register.compare_and_swap(KEY, 0, b"late")) is Outcome.UNKNOWN
    assert at_once(register.compare_and_swap(KEY, 0, b"again")) is Outcome.DONE
    assert store.apply_late() == [Outcome.CONFLICT]
    assert at_once(register.get(KEY)) == Stored(b"again", 2)


def test_late_swaps_are_applied_in_their_order() -> None:
    store = MemoryStore()
    register = failing(store, Fault.LATE, Fault.LATE)
    for value in (b"1", b"2"):
        assert at_once(register.compare_and_swap(KEY, 0, value)) is Outcome.UNKNOWN
    assert store.apply_late(1) == [Outcome.DONE]
    assert store.apply_late() == [Outcome.CONFLICT]
    assert store.values[KEY].value == b"1"


class Step:
    """Something that only the test's own scheduler understands."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __await__(self) -> Any:
        yield self


def test_the_callers_scheduler_decides_how_long_a_call_travels() -> None:
    store = MemoryStore()
    calls: list[Call] = []

    def before(call: Call) -> Awaitable[None]:
        calls.append(call)
        return Step("before")

    slow = MemoryRegister(store, "slow", before=before, after=lambda call: Step("after"))
    fast = MemoryRegister(store, "fast")
    travelling = slow.compare_and_swap(KEY, 0, b"slow")
    assert travelling.send(None).name == "before"
    assert at_once(fast.compare_and_swap(KEY, 0, b"fast")) is Outcome.DONE
    assert travelling.send(None).name == "after"
    assert at_once(travelling) is Outcome.CONFLICT
    assert calls == [Call("slow", Operation.COMPARE_AND_SWAP, KEY)]


def test_a_restored_backup_goes_back_in_values_and_revisions() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        register = MemoryRegister(store)
        await register.compare_and_swap(KEY, 0, b"old")
        backup = store.backup()
        await register.compare_and_swap(KEY, 2, b"new")
        hints = register.watch("metaq/")
        await anext(hints)
        store.restore(backup)
        await anext(hints)
        assert await register.get(KEY) == Stored(b"old", 2)
        assert await register.cluster_id() == "memory"
        assert await register.compare_and_swap(KEY, 2, b"again") is Outcome.DONE
        assert backup.values[KEY].value == b"old"
        store.restore(backup, cluster_id="other")
        assert await register.cluster_id() == "other"

    run(scenario)
