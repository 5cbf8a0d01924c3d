"""Clients that make a broker hold memory: it stays within its budget, and is given back afterwards."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bench.process_figures import memory_bytes
from metaq.memory import TRIM_BYTES
from tests.support.hostile.target import in_parallel, pour
from tests.support.plain_client import (
    PULL_MESSAGE,
    SUCCESS,
    PlainClient,
    create_topic,
    frame,
    queue_end,
    send,
    stored_records,
)
from tests.support.plain_client import pull as pull_once
from tests.support.serving import KIB, MIB, Serving
from tests.support.waiting import wait_until

VIEW_MESSAGE = 33
SYSTEM_BUSY = 2
TOPIC = "hostile_memory"
QUEUES = 2
BUDGET_BYTES = 96 * MIB
"""For all connections of the broker."""
CONNECTION_BYTES = 32 * MIB
SLACK_BYTES = 64 * MIB
"""For what is allocated before it is counted, and for what the allocator rounds up."""
KEPT_BYTES = TRIM_BYTES + 8 * MIB
"""More than this may not stay after an attack."""
LARGE_BODY = 4 * MIB - KIB


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("hostile_memory")
    settings = {
        "commit_log_file_bytes": 64 * MIB,
        "connections_per_address_max": 1_000,
        "memory_bytes_max": BUDGET_BYTES,
        "connection_memory_bytes_max": CONNECTION_BYTES,
        "memory_trim_interval_s": 1,
    }
    with Serving(home, home / "data", flush="async", settings=settings) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, QUEUES).code == SUCCESS
            for number in range(32):
                assert send(client, TOPIC, 0, bytes([number]) * 64 * KIB).code == SUCCESS
            assert send(client, TOPIC, 1, b"s" * 1_500).code == SUCCESS
            # Everything that a first pull allocates for good is there before the memory is looked at.
            assert pull_once(client, TOPIC, 0, 0).code == SUCCESS
        yield broker
        assert broker.stop() == 0


class Watch:
    """Samples the memory of a broker, and the answers of a healthy client beside the attack."""

    def __init__(self, broker: Serving) -> None:
        self._broker = broker
        self._ended = threading.Event()
        self.before = self.now()
        self.peak = self.before
        self.slowest_s = 0.0
        self.refused: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._sample, self._send)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def now(self) -> int:
        return memory_bytes(self._broker.pid)["own"]

    def _sample(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, self.now())

    def _send(self) -> None:
        with self._broker.connect() as client:
            while not self._ended.wait(0.02):
                began = time.monotonic()
                reply = send(client, TOPIC, 1, b"healthy")
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                if reply.code != SUCCESS:
                    self.refused.append(reply.remark)


@contextmanager
def attacked(broker: Serving, name: str, *, peak_bytes: int) -> Iterator[ExitStack]:
    """Runs an attack, whose connections live as long as the block, and judges what it cost."""
    with Watch(broker) as watch:
        with ExitStack() as connections:
            yield connections
            wait_until(lambda: settled(watch), timeout_s=10)
            during = watch.now()
        with suppress(TimeoutError):
            wait_until(lambda: watch.now() < watch.before + KEPT_BYTES, timeout_s=20)
        after = watch.now()
    figures = (watch.before, watch.peak, during, after)
    print(
        f"\n{name}: before {figures[0] / MIB:.0f}, peak {figures[1] / MIB:.0f}, at its end"
        f" {figures[2] / MIB:.0f}, after {figures[3] / MIB:.0f} MiB;"
        f" slowest healthy send {watch.slowest_s * 1000:.0f} ms"
    )
    assert watch.refused == []
    assert watch.peak - watch.before < peak_bytes
    assert after - watch.before < KEPT_BYTES


def settled(watch: Watch) -> bool:
    """Whether the broker has taken all that the attack gives it."""
    first = watch.now()
    time.sleep(0.5)
    return abs(watch.now() - first) < MIB


def mute(broker: Serving, connections: ExitStack) -> PlainClient:
    """A client that reads nothing, with as little room for answers as the system allows."""
    client = connections.enter_context(broker.connect())
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    client.socket.settimeout(2)
    return client


def pull_frame(
    queue_id: int, count_max: int, *, queue_offset: int = 0, tags: str = "*", hold_ms: int = 0
) -> bytes:
    return frame(
        PULL_MESSAGE,
        {
            "consumerGroup": "hostile",
            "topic": TOPIC,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(count_max),
            "sysFlag": str(4 | (2 if hold_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": tags,
            "subVersion": "0",
            "expressionType": "TAG",
            "maxMsgBytes": str(2 * MIB),
        },
    )


def test_answers_of_the_control_plane_that_nobody_reads(served: Serving) -> None:
    with served.connect() as client:
        assert send(client, TOPIC, 0, b"x" * LARGE_BODY).code == SUCCESS
        record = next(stored_records(pull_once(client, TOPIC, 0, 32, 1).body))
    with attacked(served, "VIEW_MESSAGE", peak_bytes=CONNECTION_BYTES + SLACK_BYTES) as connections:
        client = mute(served, connections)
        view = frame(VIEW_MESSAGE, {"offset": str(record.physical_offset)})
        pour(client, view * 200)
        wait_until(lambda: "connection_memory_bytes_max" in served.log())


def test_held_pulls_with_large_filters(served: Serving) -> None:
    with attacked(served, "held pulls", peak_bytes=CONNECTION_BYTES + SLACK_BYTES) as connections:
        client = mute(served, connections)
        with served.connect() as healthy:
            end = queue_end(healthy, TOPIC, 0)
        pour(client, pull_frame(0, 1, queue_offset=end, tags="a||" * 100_000, hold_ms=60_000))
        assert "pull_filter_bytes_max" in client.read_reply().remark
        tags = "||".join(map(str, range(8_000)))
        allowed = pull_frame(0, 1, queue_offset=end, tags=tags, hold_ms=60_000)
        for _ in range(10):
            pour(client, allowed * 200)
        refusal = client.read_reply()
        assert refusal.code == SYSTEM_BUSY
        assert "connection_memory_bytes_max" in refusal.remark


def test_connections_that_pull_small_messages_and_do_not_read(served: Serving) -> None:
    with attacked(served, "unread pulls", peak_bytes=BUDGET_BYTES + SLACK_BYTES) as connections:
        clients = [mute(served, connections) for _ in range(60)]
        requests = pull_frame(1, 1) * 20_000
        in_parallel(lambda client: pour(client, requests), clients)


def test_connections_that_pull_large_answers_and_do_not_read(served: Serving) -> None:
    with attacked(served, "pipelined pulls", peak_bytes=SLACK_BYTES) as connections:
        clients = [mute(served, connections) for _ in range(100)]
        requests = pull_frame(0, 32) * 200
        in_parallel(lambda client: pour(client, requests), clients)
