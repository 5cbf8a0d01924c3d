"""Senders and readers that follow a group through its faults, and note everything they see."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.support.checker import History, Key, Served, body_of
from tests.support.plain_client import (
    PULL_NOT_FOUND,
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    ServerClosed,
    frame,
    pull,
    send_fields,
    stored_records,
)

TIMEOUT_S = 3.0
_WINDOW = 8
_STRAY = 0.1
"""How often a sender uses a node at random: replicas relay, and an old master must refuse."""


class GroupSenders:
    """Threads that send to the master, and now and then to any other node. A message without an
    acknowledgement is sent again, or dropped.

    Senders with even numbers wait for each answer, so their acknowledged messages must stay in order. The
    others have several requests under way.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        find_master: Callable[[], str],
        topic: str,
        queues: int,
        *,
        count: int,
        seed: int,
        pause_s: float = 0.01,
        stray: float = _STRAY,
    ) -> None:
        self.history = History()
        self.refusals: Counter[str] = Counter()
        self.acknowledged_at: list[float] = []
        """When each acknowledgement arrived, by `time.monotonic`."""
        self._addresses = list(addresses)
        self._find_master = find_master
        self._topic, self._queues = topic, queues
        self._pause_s, self._stray = pause_s, stray
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(sender, random.Random(f"{seed}/{sender}")), daemon=True)
            for sender in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=60)
            if thread.is_alive():
                raise AssertionError("a sender hangs")

    def in_order(self, key: Key) -> bool:
        """Whether the order of this message counts. A request without an answer may be carried out late."""
        return key.sender % 2 == 0 and self.history.is_acknowledged(key)

    def _run(self, sender: int, choice: random.Random) -> None:
        sequence = 0
        size = _WINDOW if sender % 2 else 1
        window: list[tuple[Key, int]] = []
        while not self._stopped.is_set():
            target = self._find_master()
            if choice.random() < self._stray:
                target = choice.choice(self._addresses)
            with suppress(OSError, ServerClosed), PlainClient(target, TIMEOUT_S) as client:
                for _ in range(choice.randrange(1, 50)):
                    while len(window) < size:
                        window.append((Key(sender, sequence), choice.randrange(self._queues)))
                        sequence += 1
                    left = self._send(client, window)
                    self._stopped.wait(choice.uniform(0, 2 * self._pause_s))
                    # Messages without an acknowledgement are sent again, or stay in doubt.
                    window = [message for message in left if choice.random() < 0.7]
                    if left or self._stopped.is_set():
                        break
            self._stopped.wait(0.01)

    def _send(self, client: PlainClient, window: list[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Sends them in one write; returns those that were not acknowledged, in their order."""
        waiting: dict[int, tuple[Key, int]] = {}
        left: dict[int, tuple[Key, int]] = {}
        data = bytearray()
        for key, queue_id in window:
            opaque = client.next_opaque()
            waiting[opaque] = left[opaque] = (key, queue_id)
            data += frame(
                SEND_MESSAGE_V2, send_fields(self._topic, queue_id), body_of(key, 200), opaque=opaque
            )
            self.history.attempt(key, queue_id)
        with suppress(OSError, ServerClosed):
            client.write(bytes(data))
            while waiting:
                reply = client.read_reply()
                key, _ = waiting.pop(reply.opaque)
                if reply.code == SUCCESS:
                    del left[reply.opaque]
                    self.history.acknowledge(key, int(reply.fields["queueOffset"]))
                    self.acknowledged_at.append(time.monotonic())
                else:
                    self.refusals[f"{reply.code} {reply.remark[:60]}"] += 1
        return list(left.values())


class GroupReaders:
    """A thread per queue and node that reads on from where it was. The first message that anybody saw at an
    offset counts: another one later shows that it was replaced."""

    def __init__(self, addresses: Sequence[str], topic: str, queues: int) -> None:
        self._topic = topic
        self.seen: dict[int, dict[int, bytes]] = {queue_id: {} for queue_id in range(queues)}
        self.replaced: list[str] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(address, queue_id), daemon=True)
            for address in addresses
            for queue_id in range(queues)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=60)
            if thread.is_alive():
                raise AssertionError("a reader hangs")

    def earlier(self) -> dict[int, list[Served]]:
        """Returns everything that any of them saw, in the order of the queue offsets."""
        with self._lock:
            return {
                queue_id: [Served(queue_offset, body) for queue_offset, body in sorted(bodies.items())]
                for queue_id, bodies in self.seen.items()
            }

    def _run(self, address: str, queue_id: int) -> None:
        at = 0
        while not self._stopped.is_set():
            with suppress(OSError, ServerClosed), PlainClient(address, TIMEOUT_S) as client:
                while not self._stopped.is_set():
                    at = self._look(client, address, queue_id, at)
            self._stopped.wait(0.05)

    def _look(self, client: PlainClient, address: str, queue_id: int, at: int) -> int:
        reply = pull(client, self._topic, queue_id, at, hold_ms=1_000)
        if reply.code not in (SUCCESS, PULL_NOT_FOUND):
            # A replica that copies everything anew has less than it had, and one that starts has no topic.
            raise ServerClosed(reply.remark)
        with self._lock:
            bodies = self.seen[queue_id]
            for stored in stored_records(reply.body):
                if bodies.setdefault(stored.queue_offset, stored.body) != stored.body:
                    self.replaced.append(f"{address} queue {queue_id} offset {stored.queue_offset}")
        return at if reply.code == PULL_NOT_FOUND else int(reply.fields["nextBeginOffset"])
