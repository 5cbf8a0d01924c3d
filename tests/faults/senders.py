"""Threads that send without pause, note every promise they get, and go on when the broker dies under them."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from tests.support.checker import History, Key, Served, body_of
from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    ServerClosed,
    frame,
    read_queue,
    send_fields,
)

_WINDOW = 8
"""Requests that a sender has in flight: several wait for one fsync, and several are cut off by a kill."""


@dataclass(frozen=True)
class _Message:
    key: Key
    queue_id: int


class Senders:
    """Several senders on one topic. `target` follows the broker from port to port; "" while there is none."""

    def __init__(
        self, topic: str, queues: int, *, count: int, seed: int, body_bytes: int = 200, pause_s: float = 0.002
    ) -> None:
        self.history = History()
        self.target = ""
        self.refusals: list[str] = []
        self._topic = topic
        self._queues = queues
        self._body_bytes = body_bytes
        self._pause_s = pause_s
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

    def _run(self, sender: int, choice: random.Random) -> None:
        sequence = 0
        again: list[_Message] = []
        while not self._stopped.is_set():
            target = self.target
            if not target:
                time.sleep(0.005)
                continue
            try:
                with PlainClient(target) as client:
                    while not self._stopped.is_set() and self.target == target:
                        window, again = again, []
                        while len(window) < _WINDOW:
                            window.append(_Message(Key(sender, sequence), choice.randrange(self._queues)))
                            sequence += 1
                        unanswered = self._send(client, window)
                        self._stopped.wait(choice.uniform(0, 2 * self._pause_s))
                        if unanswered:
                            # Some are tried again and may then be there twice; the others stay in doubt.
                            again = [message for message in unanswered if choice.random() < 0.5]
                            break
            except OSError:
                time.sleep(0.005)

    def _send(self, client: PlainClient, window: list[_Message]) -> list[_Message]:
        """Sends them in one write; returns those that got no answer, in the order they were sent."""
        waiting: dict[int, _Message] = {}
        data = bytearray()
        for message in window:
            opaque = client.next_opaque()
            waiting[opaque] = message
            body = body_of(message.key, self._body_bytes)
            data += frame(SEND_MESSAGE_V2, send_fields(self._topic, message.queue_id), body, opaque=opaque)
            self.history.attempt(message.key, message.queue_id)
        try:
            client.write(bytes(data))
            while waiting:
                reply = client.read_reply()
                message = waiting.pop(reply.opaque)
                if reply.code == SUCCESS:
                    self.history.acknowledge(message.key, int(reply.fields["queueOffset"]))
                else:
                    self.refusals.append(f"{reply.code} {reply.remark}")
        except (ServerClosed, OSError):
            pass
        return list(waiting.values())


def served_queues(
    client: PlainClient, topic: str, queues: int, begins: dict[int, int] | None = None
) -> dict[int, list[Served]]:
    """Returns what the broker serves from each queue, from the given offsets or from the start."""
    return {
        queue_id: [
            Served(stored.queue_offset, stored.body)
            for stored in read_queue(client, topic, queue_id, None if begins is None else begins[queue_id])
        ]
        for queue_id in range(queues)
    }
