"""A healthy client in a process of its own: it sends, pulls, sends heartbeats and asks for routes.

It measures how long each answer takes, and knows at the end whether every message that was acknowledged is
where the acknowledgement said.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

from tests.support.plain_client import (
    PULL_NOT_FOUND,
    PULL_RETRY_IMMEDIATELY,
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    Reply,
    ServerClosed,
    create_topic,
    pull,
    read_queue,
    send,
    send_fields,
    stored_records,
)

TOPIC, GROUP, CLIENT_ID = "healthy", "healthy", "healthy"
QUEUES = 3
COMMITTED_QUEUE = QUEUES
"""Committed transactions go here, so that the places of all other messages are known."""
HEART_BEAT, END_TRANSACTION, GET_CONSUMER_LIST, GET_ROUTE = 34, 37, 38, 105
UPDATE_CONSUMER_OFFSET = 15
PREPARED, COMMIT = 4, 8
CALL_TIMEOUT_S = 60.0
FAILURES_KEPT = 20
KINDS = ("send", "pull", "heartbeat", "commit", "members", "half", "end", "route")
SAMPLES_MORE = 2
"""One may be under way when the period ends."""


@dataclass
class Timing:
    """How long the answers to one kind of request took."""

    seconds: list[float] = field(default_factory=list)

    def worst_s(self) -> float:
        return max(self.seconds, default=0.0)

    def percentile_s(self, percent: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


@dataclass
class Window:
    """The experience of the client in one period."""

    timings: dict[str, Timing] = field(default_factory=lambda: defaultdict(Timing))
    failures: list[str] = field(default_factory=list)
    failure_count: int = 0

    def worst_s(self) -> float:
        return max((timing.worst_s() for timing in self.timings.values()), default=0.0)

    def fail(self, text: str) -> None:
        self.failure_count += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(text)


@dataclass(frozen=True)
class Verdict:
    """The end of it: what was acknowledged, and whatever is not where it should be."""

    acknowledged: int
    problems: list[str]


class HealthyClient:
    """Starts the process, and asks it from time to time how it is."""

    def __init__(self, broker: str, nameserver: str, pause_s: float = 0.01) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._end, child_end = spawn.Pipe()
        arguments = (child_end, broker, nameserver, pause_s)
        self._process = spawn.Process(target=_run, args=arguments, daemon=True, name="healthy client")
        self._process.start()

    def __enter__(self) -> HealthyClient:
        self.window()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def window(self) -> Window:
        """Returns what happened since the last call. It waits until each kind of request was answered once
        more: a stall that has begun belongs to this period."""
        self._end.send("window")
        window: Window = self._end.recv()
        return window

    def check(self) -> Verdict:
        """Ends the work and compares what the queues hold with what was acknowledged."""
        self._end.send("check")
        verdict: Verdict = self._end.recv()
        return verdict


def _run(orders: Connection, broker: str, nameserver: str, pause_s: float) -> None:
    # Linux shares the processor between sessions first: this client must not suffer from attackers of this
    # machine, which may be many processes.
    os.setsid()
    work = _Work(broker, nameserver, pause_s)
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        orders.send(work.take_window() if order == "window" else work.check())


class _Work:
    def __init__(self, broker: str, nameserver: str, pause_s: float) -> None:
        self._broker, self._nameserver, self._pause_s = broker, nameserver, pause_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._window = Window()
        self._acknowledged: dict[int, dict[int, bytes]] = {queue: {} for queue in range(QUEUES)}
        """Bodies by queue and offset."""
        self._committed: list[bytes] = []
        self._attempted: set[bytes] = set()
        self._read: dict[int, int] = dict.fromkeys(range(QUEUES), 0)
        with PlainClient(broker, CALL_TIMEOUT_S) as client:
            _expect(create_topic(client, TOPIC, QUEUES + 1), SUCCESS)
        jobs = (self._send, self._pull, self._belong, self._commit_transaction)
        self._threads = [threading.Thread(target=self._repeat, args=(broker, job)) for job in jobs]
        self._threads.append(threading.Thread(target=self._repeat, args=(nameserver, self._ask_route)))
        for thread in self._threads:
            thread.start()

    def take_window(self) -> Window:
        wanted = {kind: count + SAMPLES_MORE for kind, count in self._sample_counts().items()}
        while any(count < wanted[kind] for kind, count in self._sample_counts().items()):
            time.sleep(self._pause_s)
        with self._lock:
            window, self._window = self._window, Window()
        # A plain dictionary crosses to the other process.
        window.timings = dict(window.timings)
        return window

    def _sample_counts(self) -> dict[str, int]:
        with self._lock:
            return {kind: len(self._window.timings[kind].seconds) for kind in KINDS}

    def check(self) -> Verdict:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        problems = []
        with PlainClient(self._broker, CALL_TIMEOUT_S) as client:
            for queue in range(QUEUES):
                stored = {record.queue_offset: record.body for record in read_queue(client, TOPIC, queue)}
                problems += misplaced(queue, self._acknowledged[queue], stored, self._attempted)
            delivered = Counter(record.body for record in read_queue(client, TOPIC, COMMITTED_QUEUE))
        problems += [
            f"committed transaction {body!r} was delivered {delivered[body]} times"
            for body in self._committed
            if delivered[body] != 1
        ]
        acknowledged = sum(map(len, self._acknowledged.values())) + len(self._committed)
        return Verdict(acknowledged, problems[:FAILURES_KEPT])

    def _repeat(self, address: str, job: Callable[[PlainClient, int], None]) -> None:
        """Does the job again and again; after a failure on a new connection."""
        number = 0
        while not self._ended.is_set():
            try:
                with PlainClient(address, CALL_TIMEOUT_S) as client:
                    while not self._ended.wait(self._pause_s):
                        job(client, number)
                        number += 1
            except (ServerClosed, OSError, AssertionError, KeyError) as failure:
                number += 1
                with self._lock:
                    self._window.fail(f"{job.__name__.strip('_')}: {failure!r}")
                self._ended.wait(0.2)

    def _timed(self, kind: str, call: Callable[[], Reply]) -> Reply:
        began = time.monotonic()
        try:
            return call()
        finally:
            with self._lock:
                self._window.timings[kind].seconds.append(time.monotonic() - began)

    def _send(self, client: PlainClient, number: int) -> None:
        body, queue = b"healthy-%d" % number, number % QUEUES
        self._attempted.add(body)
        reply = _expect(self._timed("send", lambda: send(client, TOPIC, queue, body)), SUCCESS)
        self._acknowledged[queue][int(reply.fields["queueOffset"])] = body

    def _pull(self, client: PlainClient, number: int) -> None:
        queue = number % QUEUES
        at = self._read[queue]
        reply = self._timed("pull", lambda: pull(client, TOPIC, queue, at))
        _expect(reply, SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY)
        offsets = [record.queue_offset for record in stored_records(reply.body)]
        if offsets != list(range(at, at + len(offsets))):
            raise AssertionError(f"a pull of {queue}/{at} answers with {offsets}")
        self._read[queue] = at + len(offsets)

    def _belong(self, client: PlainClient, number: int) -> None:
        """Sends a heartbeat, commits an offset, and looks whether the client is a member of its group."""
        beat = self._timed("heartbeat", lambda: client.call(HEART_BEAT, {}, _heartbeat()))
        _expect(beat, SUCCESS)
        commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(self._read[0])}
        _expect(self._timed("commit", lambda: client.call(UPDATE_CONSUMER_OFFSET, commit)), SUCCESS)
        listed = self._timed("members", lambda: client.call(GET_CONSUMER_LIST, {"consumerGroup": GROUP}))
        _expect(listed, SUCCESS)
        members = json.loads(listed.body)["consumerIdList"]
        if CLIENT_ID not in members:
            raise AssertionError(f"not a member of its own group any more: {members}")

    def _commit_transaction(self, client: PlainClient, number: int) -> None:
        body = b"transaction-%d" % number
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{number:032X}\x02"
        fields = send_fields(TOPIC, COMMITTED_QUEUE, properties, group=GROUP) | {"f": str(PREPARED)}
        fields["g"] = str(int(time.time() * 1000))  # The first check gives up what was born long ago.
        half = self._timed("half", lambda: client.call(SEND_MESSAGE_V2, fields, body))
        _expect(half, SUCCESS)
        end = {
            "producerGroup": GROUP,
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
            "commitOrRollback": str(COMMIT),
            "fromTransactionCheck": "false",
            "msgId": "",
        }
        _expect(self._timed("end", lambda: client.call(END_TRANSACTION, end)), SUCCESS)
        self._committed.append(body)

    def _ask_route(self, client: PlainClient, number: int) -> None:
        reply = self._timed("route", lambda: client.call(GET_ROUTE, {"topic": TOPIC}))
        _expect(reply, SUCCESS)
        if self._broker.encode() not in reply.body:
            raise AssertionError(f"the route does not name the broker: {reply.body!r}")


def misplaced(
    queue: int, acknowledged: dict[int, bytes], stored: dict[int, bytes], attempted: set[bytes]
) -> list[str]:
    """Compares a queue with the acknowledgements. A message that was attempted and never acknowledged may be
    there once, or not at all."""
    problems = [
        f"{body!r} was acknowledged at {queue}/{offset}, where {stored.get(offset)!r} is"
        for offset, body in acknowledged.items()
        if stored.get(offset) != body
    ]
    places = Counter(stored.values())
    problems += [f"{body!r} is in queue {queue} {count} times" for body, count in places.items() if count > 1]
    problems += [f"{body!r} in queue {queue} is nobody's" for body in places if body not in attempted]
    return problems


def _expect(reply: Reply, *codes: int) -> Reply:
    if reply.code not in codes:
        raise AssertionError(f"{reply.code} {reply.remark}")
    return reply


def _heartbeat() -> bytes:
    subscription = {"topic": TOPIC, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    producers = [{"groupName": GROUP}]
    data = {"clientID": CLIENT_ID, "consumerDataSet": [consumer], "producerDataSet": producers}
    return json.dumps(data).encode()
