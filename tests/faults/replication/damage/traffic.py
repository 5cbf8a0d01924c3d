"""Light traffic of every kind on a group, and the memory of everything that was acknowledged."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypedDict

import metaq
from metaq.errors import MetaqError
from tests.support.plain_client import SUCCESS, PlainClient, Reply, ServerClosed, create_topic
from tests.support.waiting import wait_until

TOPICS: Final = ("orders", "bills")
DELAYED: Final = "delayed"
QUEUES: Final = 2
COMMITS: Final = "damage_commits"
UPDATE_CONSUMER_OFFSET: Final = 15
_UPDATE_AND_CREATE_GROUP: Final = 200
_PAUSE_S = 0.02
_COMMIT_EVERY_S = 0.25
_TIMEOUT_S = 15.0
_DELAYS_S = (1.0, 6.0)
_FAR_DELAY_S = 3 * 3600.0
"""Messages that wait through all trials, so that the timer has files to damage."""


@dataclass(frozen=True)
class Acknowledged:
    """One message that the group acknowledged."""

    topic: str
    queue_id: int
    queue_offset: int
    id: str
    body: bytes
    properties: tuple[tuple[str, str], ...]
    """Properties that the record must have, with its tag and keys."""
    sent_ms: int
    acknowledged_ms: int


@dataclass(frozen=True)
class Delayed:
    """A message that must come once, and not before its time."""

    body: bytes
    due_ms: int


@dataclass
class Memory:
    """Everything that the group has promised."""

    messages: list[Acknowledged] = field(default_factory=list)
    delayed: list[Delayed] = field(default_factory=list)
    committed: list[bytes] = field(default_factory=list)
    """The bodies of transactions that were committed."""
    undone: list[bytes] = field(default_factory=list)
    """The bodies of transactions that were rolled back."""
    topics: dict[str, int] = field(default_factory=dict)
    """How many queues each topic has."""
    offsets: list[tuple[float, int]] = field(default_factory=list)
    """When each offset was committed, by `time.monotonic`."""


class _Options(TypedDict):
    tag: str
    keys: list[str]
    properties: dict[str, str]
    key: str


class _Undo(Exception):
    """Rolls a transaction back."""


class Traffic:
    """A thread that sends, and one that commits offsets. Both go on whatever the group does."""

    def __init__(
        self, nameservers: str, master_address: Callable[[], str], seed: int, *, is_plain: bool = False
    ) -> None:
        """Plain traffic has neither delayed messages nor transactions nor batches."""
        self._is_plain = is_plain
        self.memory = Memory()
        self.failures: Counter[str] = Counter()
        self._master_address = master_address
        self._client = metaq.Client(nameservers)
        self._producer = self._client.producer("damage")
        self._producer.check(lambda message: None)
        self._choice = random.Random(f"traffic {seed}")
        self._sequence = 0
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, daemon=True),
            threading.Thread(target=self._commit_all, daemon=True),
        ]

    def start(self, prefill: int) -> None:
        """Creates the topics and the group, sends that many messages, and goes on with light traffic."""
        for topic in (*TOPICS, DELAYED):
            self.create_topic(topic, QUEUES)
        body = json.dumps({"groupName": COMMITS, "consumeEnable": True}).encode()
        wait_until(
            lambda: self._ask(lambda master: master.call(_UPDATE_AND_CREATE_GROUP, {}, body)),
            60,
            "the group of the commits",
        )
        self._client.start()
        self._producer.start()
        self.burst(prefill)
        for _ in range(0 if self._is_plain else 3):
            self._producer.send(DELAYED, b"far", delay=timedelta(seconds=_FAR_DELAY_S))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=60)
        self._producer.close(1)
        self._client.close(1)

    def burst(self, count: int) -> None:
        """Sends that many large messages as fast as it goes."""
        futures: list[tuple[str, bytes, _Options, int, Callable[[], metaq.SendResult]]] = []
        with self._sending:
            for _ in range(count):
                topic, body, options = self._drawn(2_000)
                sent_ms = _now_ms()
                if self._is_plain:
                    with suppress(MetaqError):
                        result = self._producer.send(topic, body, timeout=_TIMEOUT_S, **options)
                        self._note(topic, body, options, sent_ms, result)
                    continue
                future = self._producer.send_soon(topic, body, **options)
                futures.append((topic, body, options, sent_ms, partial(future.result, timeout=60)))
            for topic, body, options, sent_ms, wait in futures:
                with suppress(MetaqError, TimeoutError):
                    self._note(topic, body, options, sent_ms, wait())

    def create_topic(self, topic: str, queues: int) -> None:
        """Creates a topic, however often that takes."""
        wait_until(
            lambda: self._ask(lambda master: create_topic(master, topic, queues)), 60, f"topic {topic}"
        )
        self.memory.topics[topic] = queues

    @property
    def acknowledged(self) -> int:
        return len(self.memory.messages)

    def flows(self, count: int = 5, timeout_s: float = 60.0) -> None:
        """Waits for that many more acknowledgements."""
        wanted = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= wanted, timeout_s, f"{count} messages acknowledged")

    # ---- the threads

    def _ask(self, request: Callable[[PlainClient], Reply]) -> bool:
        with suppress(OSError, ServerClosed), PlainClient(self._master_address(), 5.0) as client:
            return request(client).code == SUCCESS
        return False

    def _send_all(self) -> None:
        while not self._stopped.wait(_PAUSE_S):
            with self._sending:
                try:
                    self._send()
                except MetaqError as error:
                    self.failures[f"{type(error).__name__}: {error}"[:100]] += 1

    def _send(self) -> None:
        drawn = self._choice.random() if not self._is_plain else 1.0
        topic, body, options = self._drawn(300)
        if drawn < 0.06:
            delay_s = self._choice.uniform(*_DELAYS_S)
            due_ms = _now_ms() + int(delay_s * 1000)
            self._producer.send(DELAYED, body, delay=timedelta(seconds=delay_s), timeout=_TIMEOUT_S)
            self.memory.delayed.append(Delayed(body, due_ms))
        elif drawn < 0.10:
            undone = self._choice.random() < 0.3
            with suppress(_Undo), self._producer.transaction(topic, body, tag="transaction"):
                if undone:
                    raise _Undo
            (self.memory.undone if undone else self.memory.committed).append(body)
        else:
            sent_ms = _now_ms()
            result = self._producer.send(topic, body, timeout=_TIMEOUT_S, **options)
            self._note(topic, body, options, sent_ms, result)

    def _drawn(self, body_bytes: int) -> tuple[str, bytes, _Options]:
        choice = self._choice
        self._sequence += 1
        number = self._sequence
        body = f"{number}/".encode() + choice.randbytes(choice.randrange(1, body_bytes)).hex().encode()
        options: _Options = {
            "tag": f"tag{number % 5}",
            "keys": [f"key-{number}"],
            "properties": {"shop": f"shop {number % 7}", "check": f"{number * 7919}"},
            "key": f"customer-{number % 4}",
        }
        return choice.choice(TOPICS), body, options

    def _note(
        self, topic: str, body: bytes, options: _Options, sent_ms: int, result: metaq.SendResult
    ) -> None:
        properties = {**options["properties"], "TAGS": options["tag"], "KEYS": " ".join(options["keys"])}
        self.memory.messages.append(
            Acknowledged(
                topic,
                result.queue.id,
                result.queue_offset,
                result.id,
                body,
                tuple(sorted({**properties, "UNIQ_KEY": result.id}.items())),
                sent_ms,
                _now_ms(),
            )
        )

    def _commit_all(self) -> None:
        offset = 0
        while not self._stopped.wait(_COMMIT_EVERY_S):
            fields = {"consumerGroup": COMMITS, "topic": TOPICS[0], "queueId": "0"}
            fields["commitOffset"] = str(offset + 1)
            if self._ask(partial(PlainClient.call, code=UPDATE_CONSUMER_OFFSET, fields=fields)):
                offset += 1
                self.memory.offsets.append((time.monotonic(), offset))


def committed_before(offsets: Sequence[tuple[float, int]], moment: float) -> int:
    """Returns the last offset that was committed before a moment."""
    return max((offset for at, offset in offsets if at <= moment), default=0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
