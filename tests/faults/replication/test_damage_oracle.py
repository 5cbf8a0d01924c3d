"""The oracle of the damage trials finds what a lying disk could do, and nothing in sound reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.replication.damage import oracle
from tests.faults.replication.damage.oracle import References
from tests.faults.replication.damage.raw import Raw, raw_records
from tests.faults.replication.damage.reading import Consumed, Read
from tests.faults.replication.damage.traffic import Acknowledged, Delayed, Memory
from tests.support.records import record

QUEUE = ("orders", 1)
SENT_MS = 1_700_000_000_000
COUNT = 6


def _properties(number: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"id-{number}", "TAGS": "tag", "KEYS": f"key-{number}", "shop": f"shop {number}"}


def _raw(number: int, *, queue_offset: int | None = None, **changed: str) -> Raw:
    properties = {**_properties(number), **changed}
    pairs = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    place = number if queue_offset is None else queue_offset
    data = record(b"body %d" % number, pairs.encode(), queue_id=QUEUE[1], queue_offset=place)
    return next(raw_records(data))


def _sound() -> tuple[Read, list[Acknowledged], References]:
    read = Read(1, {QUEUE: [_raw(number) for number in range(COUNT)]})
    messages = [
        Acknowledged(
            *QUEUE,
            number,
            f"id-{number}",
            b"body %d" % number,
            tuple(_properties(number).items()),
            SENT_MS,
            SENT_MS + 5,
        )
        for number in range(COUNT)
    ]
    return read, messages, {}


def _found(change: Callable[[list[Raw]], None]) -> list[str]:
    """Returns the findings in a read that was changed after another node gave out the sound messages."""
    read, messages, references = _sound()
    assert oracle.check_read(read, messages, references) == []
    change(read.records[QUEUE])
    return oracle.check_read(replace(read, node_id=2), messages, references)


def _kinds(found: list[str]) -> set[str]:
    return {finding.partition(":")[0] for finding in found}


def test_a_sound_read_has_no_findings() -> None:
    assert _found(lambda records: None) == []


def test_a_dropped_message_is_skipped_and_lost_if_no_other_node_has_it() -> None:
    assert _kinds(_found(lambda records: records.pop(2))) == {"skipped"}
    assert _kinds(_found(lambda records: records.pop())) == {"skipped"}, "the last one as well"
    whole, messages, _ = _sound()
    short = Read(2, {QUEUE: whole.records[QUEUE][:-1]})
    assert oracle.lost_everywhere([short, whole], messages) == []
    assert oracle.lost_everywhere([short], messages) == messages[-1:]


def test_an_altered_property_is_found_even_without_an_earlier_read() -> None:
    read, messages, references = _sound()
    read.records[QUEUE][3] = _raw(3, shop="shop 4")
    assert _kinds(oracle.check_read(read, messages, references)) == {"altered"}


@pytest.mark.parametrize("change", [{"TAGS": "gat"}, {"KEYS": "key-9"}, {"UNIQ_KEY": "id-9"}, {"added": "x"}])
def test_every_changed_property_is_found(change: dict[str, str]) -> None:
    def alter(records: list[Raw]) -> None:
        records[3] = _raw(3, **change)

    assert _kinds(_found(alter)) == {"altered"}


def test_every_flipped_bit_of_a_record_is_found() -> None:
    """A second node gives out the same bytes as the first one, whatever the field means."""
    sound = _raw(3)
    for at in range(len(sound.data) * 8):
        data = bytearray(sound.data)
        data[at // 8] ^= 1 << at % 8
        flipped = list(raw_records(bytes(data)))

        def put(records: list[Raw], flipped: list[Raw] = flipped) -> None:
            records[3:4] = flipped

        assert _found(put), f"bit {at}"


def test_a_time_far_from_the_sending_is_found() -> None:
    read, messages, references = _sound()
    data = bytearray(read.records[QUEUE][3].data)
    struct.pack_into(">q", data, 40, SENT_MS + (1 << 40))
    read.records[QUEUE][3] = next(raw_records(bytes(data)))
    assert any("times" in finding for finding in oracle.check_read(read, messages, references))


def test_two_swapped_messages_are_found() -> None:
    def swap_bytes(records: list[Raw]) -> None:
        records[2], records[3] = _raw(3, queue_offset=2), _raw(2, queue_offset=3)

    def swap_places(records: list[Raw]) -> None:
        records[2], records[3] = records[3], records[2]

    assert _kinds(_found(swap_bytes)) == {"altered"}
    assert "out of order" in _kinds(_found(swap_places))


def test_acknowledgements_that_go_back_are_out_of_order() -> None:
    _, messages, _ = _sound()
    assert oracle.check_acknowledged(messages) == []
    assert _kinds(oracle.check_acknowledged([messages[1], messages[0]])) == {"out of order"}
    assert _kinds(oracle.check_acknowledged([messages[0], messages[0]])) == {"out of order"}


def _consumed(number: int) -> Consumed:
    own = {"shop": f"shop {number}"}
    return Consumed(*QUEUE, number, f"id-{number}", b"body %d" % number, "tag", (f"key-{number}",), own)


def test_a_consumer_that_gets_less_or_something_else_is_found() -> None:
    _, messages, _ = _sound()
    got = [_consumed(number) for number in range(COUNT)]
    assert oracle.check_consumed(got, messages) == []
    assert _kinds(oracle.check_consumed([*got[:2], *got[3:]], messages)) == {"skipped"}
    other = replace(got[2], body=b"other")
    assert _kinds(oracle.check_consumed([*got[:2], other, *got[3:]], messages)) == {"altered"}
    assert "out of order" in _kinds(oracle.check_consumed([got[1], got[0], *got[2:]], messages))


def test_delayed_messages_that_are_early_missing_or_repeated_are_found() -> None:
    raw = _raw(0)
    due = Delayed(raw.body, raw.stored_ms)
    assert oracle.check_delayed([raw], [due], raw.stored_ms + 1) == []
    assert _kinds(oracle.check_delayed([raw], [replace(due, due_ms=due.due_ms + 1)], 0)) == {"early"}
    assert _kinds(oracle.check_delayed([], [due], raw.stored_ms + 1)) == {"skipped"}
    assert oracle.check_delayed([], [due], due.due_ms) == [], "it is not due"
    assert _kinds(oracle.check_delayed([raw, raw], [due], 0)) == {"repeated"}


def test_transactions_that_vanish_or_come_back_are_found() -> None:
    raws = [_raw(0), _raw(1)]
    memory = Memory(committed=[raws[0].body], undone=[b"undone"])
    assert oracle.check_transactions(raws, memory, 1, 1) == []
    assert _kinds(oracle.check_transactions(raws[1:], memory, 1, 1)) == {"skipped"}
    memory.undone.append(raws[1].body)
    assert _kinds(oracle.check_transactions(raws, memory, 1, 2)) == {"undone"}


def test_forgotten_topics_offsets_and_two_masters_are_found() -> None:
    read = Read(1, topics={"orders": 2}, committed=7)
    assert oracle.check_state(read, {"orders": 2}, 7) == []
    assert _kinds(oracle.check_state(read, {"orders": 2, "made": 1}, 7)) == {"forgotten"}
    assert _kinds(oracle.check_state(read, {"orders": 4}, 7)) == {"forgotten"}
    assert _kinds(oracle.check_state(read, {}, 8)) == {"forgotten"}
    assert oracle.check_masters({1: {1}, 2: {3}}) == []
    assert _kinds(oracle.check_masters({1: {1, 2}})) == {"two masters"}


def test_a_node_that_does_not_serve_a_queue_is_found() -> None:
    read, messages, references = _sound()
    read.failures.append("node 1 does not serve orders/1")
    assert "unserved" in _kinds(oracle.check_read(read, messages, references))
