"""Checks that a queue keeps every acknowledged message; uses no code of the product.

The senders fill a `History` with every attempt before it leaves and every acknowledgement as it arrives.
`violations` compares it with the messages that the broker serves:

- an acknowledged message is at the queue offset of its acknowledgement, with the body that was sent;
- queue offsets have no gaps and no repetitions;
- nothing is served that was never sent, or to another queue, or with other bytes;
- a message is served at most as often as it was sent;
- the first copies of one sender's messages are in the order in which they were sent (`in_order` may say that
  this holds for some messages only);
- a message that was served once stays at its offset.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Key(NamedTuple):
    """The identity of a message: its sender and its number."""

    sender: int
    sequence: int


class Served(NamedTuple):
    """One message as the broker served it."""

    queue_offset: int
    body: bytes


def body_of(key: Key, size_bytes: int = 100) -> bytes:
    """Returns the body that belongs to this key and to no other."""
    name = f"{key.sender}/{key.sequence}/".encode()
    filler = hashlib.blake2b(name).hexdigest().encode()
    repeats = max(0, size_bytes - len(name)) // len(filler) + 1
    return name + (filler * repeats)[: max(len(filler), size_bytes - len(name))]


def key_of(body: bytes) -> Key | None:
    """Returns the key of a body made by `body_of`; None for any other bytes, even if only one is changed."""
    parts = body.split(b"/", 2)
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    key = Key(int(parts[0]), int(parts[1]))
    return key if body_of(key, len(body)) == body else None


@dataclass
class _Tried:
    queue_id: int
    attempts: int = 0
    acknowledged_at: list[int] = field(default_factory=list)


class History:
    """The messages that were sent and acknowledged; safe to fill from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tried: dict[Key, _Tried] = {}

    def attempt(self, key: Key, queue_id: int) -> None:
        """Call it before the bytes leave: a message that is not in the history must never be served."""
        with self._lock:
            tried = self._tried.setdefault(key, _Tried(queue_id))
            if tried.queue_id != queue_id:
                raise ValueError(f"{key} was tried on queue {tried.queue_id} before, now on {queue_id}")
            tried.attempts += 1

    def acknowledge(self, key: Key, queue_offset: int) -> None:
        with self._lock:
            self._tried[key].acknowledged_at.append(queue_offset)

    def acknowledged_count(self) -> int:
        with self._lock:
            return sum(len(tried.acknowledged_at) for tried in self._tried.values())

    def is_acknowledged(self, key: Key) -> bool:
        with self._lock:
            return key in self._tried and bool(self._tried[key].acknowledged_at)

    def snapshot(self) -> dict[Key, _Tried]:
        with self._lock:
            return {
                key: _Tried(tried.queue_id, tried.attempts, list(tried.acknowledged_at))
                for key, tried in self._tried.items()
            }


Queues = Mapping[int, Sequence[Served]]
"""Everything that the broker serves, in its order, by queue id."""


def violations(
    history: History,
    queues: Queues,
    earlier: Queues | None = None,
    in_order: Callable[[Key], bool] = lambda _: True,
) -> list[str]:
    """Returns everything that is wrong, one sentence each; an empty list is a pass."""
    tried = history.snapshot()
    found = _lost(tried, queues)
    for queue_id in sorted(queues):
        found += _not_dense(queue_id, queues[queue_id])
        found += _unexpected(queue_id, queues[queue_id], tried)
        found += _out_of_order(queue_id, queues[queue_id], in_order)
    found += _repeated(queues, tried)
    if earlier is not None:
        found += _changed(earlier, queues)
    return found


def _lost(tried: Mapping[Key, _Tried], queues: Queues) -> list[str]:
    at: dict[int, dict[int, bytes]] = {
        queue_id: {served.queue_offset: served.body for served in messages}
        for queue_id, messages in queues.items()
    }
    found = []
    promised: dict[tuple[int, int], Key] = {}
    for key, one in tried.items():
        for queue_offset in one.acknowledged_at:
            place = (one.queue_id, queue_offset)
            other = promised.setdefault(place, key)
            if other != key:
                found.append(f"queue {place[0]} offset {place[1]} was acknowledged to both {other} and {key}")
            body = at.get(one.queue_id, {}).get(queue_offset)
            if body is None:
                found.append(f"lost: {key}, acknowledged at queue {one.queue_id} offset {queue_offset}")
            elif key_of(body) != key:
                found.append(f"replaced: {key}, acknowledged at queue {one.queue_id} offset {queue_offset}")
    return found


def _not_dense(queue_id: int, messages: Sequence[Served]) -> list[str]:
    return [
        f"queue {queue_id} goes from offset {before.queue_offset} to {after.queue_offset}"
        for before, after in pairwise(messages)
        if after.queue_offset != before.queue_offset + 1
    ]


def _unexpected(queue_id: int, messages: Sequence[Served], tried: Mapping[Key, _Tried]) -> list[str]:
    found = []
    for served in messages:
        key = key_of(served.body)
        if key is None:
            found.append(
                f"queue {queue_id} offset {served.queue_offset} holds bytes nobody sent: {served.body[:40]!r}"
            )
        elif key not in tried:
            found.append(f"queue {queue_id} offset {served.queue_offset} holds {key}, which was never sent")
        elif tried[key].queue_id != queue_id:
            found.append(f"queue {queue_id} holds {key}, which was sent to queue {tried[key].queue_id}")
    return found


def _repeated(queues: Queues, tried: Mapping[Key, _Tried]) -> list[str]:
    times: dict[Key, int] = {}
    for messages in queues.values():
        for served in messages:
            key = key_of(served.body)
            if key is not None:
                times[key] = times.get(key, 0) + 1
    return [
        f"{key} was tried {tried[key].attempts} times and is there {count} times"
        for key, count in times.items()
        if key in tried and count > tried[key].attempts
    ]


def _out_of_order(queue_id: int, messages: Sequence[Served], in_order: Callable[[Key], bool]) -> list[str]:
    found = []
    last: dict[int, int] = {}
    seen: set[Key] = set()
    for served in messages:
        key = key_of(served.body)
        if key is None or key in seen or not in_order(key):
            continue
        seen.add(key)
        before = last.get(key.sender, -1)
        if key.sequence < before:
            found.append(
                f"queue {queue_id} offset {served.queue_offset}: {key} comes after sequence {before}"
            )
        last[key.sender] = max(before, key.sequence)
    return found


def _changed(earlier: Queues, later: Queues) -> list[str]:
    found = []
    for queue_id, before in earlier.items():
        now = {served.queue_offset: served.body for served in later.get(queue_id, ())}
        found += [
            f"queue {queue_id} offset {served.queue_offset} was served before and is now "
            + ("gone" if served.queue_offset not in now else "another message")
            for served in before
            if now.get(served.queue_offset) != served.body
        ]
    return found
