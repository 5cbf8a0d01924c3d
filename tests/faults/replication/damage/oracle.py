"""Compares everything that a node gives out with everything that the group has acknowledged.

Each finding names what is wrong first: `skipped` (an acknowledged message is not given out), `altered`,
`out of order`, `early`, `repeated`, `undone` (a transaction that was rolled back is there), `forgotten` (a
topic or a committed offset), `unserved`. `lost_everywhere` tells a lost message from a skipped one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from tests.faults.replication.damage.raw import Raw, first_difference
from tests.faults.replication.damage.reading import Consumed, Queue, Read
from tests.faults.replication.damage.traffic import Acknowledged, Delayed, Memory

_CLOCK_MS = 2_000
"""The store's time of a message lies between its sending and its acknowledgement, give or take this."""

References = dict[tuple[str, int, int], bytes]
"""Every record as it was first seen, by topic, queue and offset."""


def check_read(read: Read, messages: Sequence[Acknowledged], references: References) -> list[str]:
    """Returns what is wrong with the messages that a node gives out by queue offset. Adds new records to the
    references: another node must have the same bytes."""
    who = f"node {read.node_id}"
    found = [f"unserved: {failure}" for failure in read.failures]
    records: dict[tuple[str, int, int], Raw] = {}
    for (topic, queue_id), queue in read.records.items():
        found += _gaps(who, (topic, queue_id), [raw.queue_offset for raw in queue])
        for raw in queue:
            records[topic, queue_id, raw.queue_offset] = raw
    for place, raw in records.items():
        if references.setdefault(place, raw.data) != raw.data:
            found.append(
                f"altered: {who} {_named(place)}: byte {first_difference(raw.data, references[place])}"
            )
        elif (raw.topic, raw.queue_id) != place[:2]:
            found.append(f"altered: {who} {_named(place)} says that it is of {raw.topic}/{raw.queue_id}")
    for message in messages:
        place = (message.topic, message.queue_id, message.queue_offset)
        if place not in records:
            found.append(f"skipped: {who} {_named(place)}")
        else:
            found += _altered(who, message, records[place])
    return found


def _altered(who: str, message: Acknowledged, raw: Raw) -> list[str]:
    place = (message.topic, message.queue_id, message.queue_offset)
    wrong = []
    if raw.properties.get("UNIQ_KEY") != message.id:
        wrong.append("another message")
    if raw.body != message.body:
        wrong.append("body")
    if any(raw.properties.get(name) != value for name, value in message.properties):
        wrong.append("properties")
    earliest, latest = message.sent_ms - _CLOCK_MS, message.acknowledged_ms + _CLOCK_MS
    if not earliest <= raw.stored_ms <= latest or not earliest <= raw.born_ms <= latest:
        wrong.append("times")
    return [f"altered: {who} {_named(place)}: {', '.join(wrong)}"] if wrong else []


def check_acknowledged(messages: Sequence[Acknowledged]) -> list[str]:
    """Checks the offsets of the acknowledgements: one sender's messages have growing offsets in each queue,
    and no place was promised twice. With `check_read`, the messages themselves are in that order."""
    last: dict[Queue, int] = {}
    found = []
    for message in messages:
        queue = (message.topic, message.queue_id)
        if message.queue_offset <= last.get(queue, -1):
            place = (*queue, message.queue_offset)
            found.append(f"out of order: {_named(place)} was acknowledged after offset {last[queue]}")
        last[queue] = max(message.queue_offset, last.get(queue, -1))
    return found


def check_consumed(consumed: Sequence[Consumed], messages: Sequence[Acknowledged]) -> list[str]:
    """Returns what is wrong with the messages that a consumer got."""
    queues: dict[Queue, list[Consumed]] = {}
    for one in consumed:
        queues.setdefault((one.topic, one.queue_id), []).append(one)
    found = []
    for queue, got in queues.items():
        found += _gaps("a consumer", queue, [one.queue_offset for one in got])
    at = {(one.topic, one.queue_id, one.queue_offset): one for one in consumed}
    for message in messages:
        place = (message.topic, message.queue_id, message.queue_offset)
        got_there = at.get(place)
        if got_there is None:
            found.append(f"skipped: a consumer does not get {_named(place)}")
            continue
        properties = {**got_there.properties, "TAGS": got_there.tag, "KEYS": " ".join(got_there.keys)}
        properties["UNIQ_KEY"] = got_there.id
        if got_there.body != message.body or any(
            properties.get(name) != value for name, value in message.properties
        ):
            found.append(f"altered: a consumer gets {_named(place)} with other bytes")
    return found


def check_delayed(records: Iterable[Raw], delayed: Sequence[Delayed], due_before_ms: int) -> list[str]:
    """Every message whose time is over was delivered, none of them early, and none twice."""
    times: dict[bytes, list[int]] = {}
    for raw in records:
        times.setdefault(raw.body, []).append(raw.stored_ms)
    found = []
    for one in delayed:
        came = times.get(one.body, [])
        name = one.body[:12].decode(errors="replace")
        if not came and one.due_ms < due_before_ms:
            found.append(f"skipped: the delayed message {name} never came")
        if came and min(came) < one.due_ms:
            found.append(
                f"early: the delayed message {name} came {one.due_ms - min(came)} ms before its time"
            )
        if len(came) > 1:
            found.append(f"repeated: the delayed message {name} came {len(came)} times")
    return found


def check_transactions(records: Iterable[Raw], memory: Memory, committed: int, undone: int) -> list[str]:
    """Committed transactions are there once, and those that were rolled back are not."""
    times = Counter(raw.body for raw in records)
    found = []
    for body in memory.committed[:committed]:
        if times[body] != 1:
            what = "skipped" if not times[body] else "repeated"
            found.append(f"{what}: a committed transaction is there {times[body]} times")
    return found + [
        "undone: a transaction that was rolled back is there"
        for body in memory.undone[:undone]
        if times[body]
    ]


def check_state(read: Read, topics: Mapping[str, int], committed: int) -> list[str]:
    """The node knows every topic, and no offset has gone back."""
    found = [
        f"forgotten: node {read.node_id} has {read.topics.get(topic, 0)} queues of {topic}, not {queues}"
        for topic, queues in topics.items()
        if read.topics.get(topic) != queues
    ]
    if read.committed < committed:
        found.append(f"forgotten: node {read.node_id} has offset {read.committed}, {committed} was committed")
    return found


def check_masters(masters: Mapping[int, set[int]]) -> list[str]:
    """No epoch had two masters."""
    return [
        f"two masters: epoch {epoch} had {sorted(nodes)}"
        for epoch, nodes in masters.items()
        if len(nodes) > 1
    ]


def lost_everywhere(reads: Sequence[Read], messages: Sequence[Acknowledged]) -> list[Acknowledged]:
    """Returns the acknowledged messages that no node gives out."""
    bodies = {raw.body for read in reads for queue in read.records.values() for raw in queue}
    return [message for message in messages if message.body not in bodies]


def _gaps(who: str, queue: Queue, offsets: Sequence[int]) -> list[str]:
    """Offsets of a queue grow by one."""
    found = []
    for before, after in pairwise(offsets):
        if after <= before:
            found.append(f"out of order: {who} gives {_named((*queue, after))} after {before}")
        elif after > before + 1:
            found.append(f"skipped: {who} goes from {_named((*queue, before))} to {after}")
    return found


def _named(place: tuple[str, int, int]) -> str:
    return f"{place[0]}/{place[1]} offset {place[2]}"
