"""Threads that read a topic's newest messages without pause and note everything they get."""

from __future__ import annotations

import threading
import time

from tests.support.checker import Served
from tests.support.plain_client import (
    PULL_NOT_FOUND,
    SUCCESS,
    PlainClient,
    ServerClosed,
    pull,
    queue_end,
    stored_records,
)

_HOLD_MS = 1_000


class Readers:
    """Two readers per queue: one asks again and again, the other has its pulls held until a message arrives.
    `target` follows the broker from port to port; "" while there is none."""

    def __init__(self, topic: str, queues: int) -> None:
        self.target = ""
        self.looks = 0
        """Answers of the readers that ask again and again."""
        self._topic = topic
        self._seen: dict[int, dict[int, bytes]] = {queue_id: {} for queue_id in range(queues)}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(queue_id, hold_ms), daemon=True)
            for queue_id in range(queues)
            for hold_ms in (0, _HOLD_MS)
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

    def seen(self) -> dict[int, list[Served]]:
        """Everything that any of them got, by queue and in the order of the queue offsets."""
        with self._lock:
            return {
                queue_id: [Served(queue_offset, body) for queue_offset, body in sorted(bodies.items())]
                for queue_id, bodies in self._seen.items()
            }

    def _run(self, queue_id: int, hold_ms: int) -> None:
        while not self._stopped.is_set():
            target = self.target
            if not target:
                time.sleep(0.005)
                continue
            try:
                with PlainClient(target) as client:
                    at = queue_end(client, self._topic, queue_id)
                    while not self._stopped.is_set() and self.target == target:
                        at = self._look(client, queue_id, at, hold_ms)
            except (ServerClosed, OSError):
                time.sleep(0.005)

    def _look(self, client: PlainClient, queue_id: int, at: int, hold_ms: int) -> int:
        reply = pull(client, self._topic, queue_id, at, hold_ms=hold_ms)
        if reply.code not in (SUCCESS, PULL_NOT_FOUND):
            raise AssertionError(f"pull of {self._topic}/{queue_id} at {at}: {reply.code} {reply.remark}")
        with self._lock:
            self.looks += hold_ms == 0
            for stored in stored_records(reply.body):
                # The first one counts: another one later shows that it was replaced.
                self._seen[queue_id].setdefault(stored.queue_offset, stored.body)
        return int(reply.fields["nextBeginOffset"])
