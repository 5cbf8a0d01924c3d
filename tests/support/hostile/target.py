"""The servers under attack, and the ways in which attackers send and do not read."""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.plain_client import (
    PULL_MESSAGE,
    SEND_BATCH_MESSAGE,
    SUCCESS,
    PlainClient,
    Reply,
    ServerClosed,
    create_topic,
    frame,
    queue_end,
    send_fields,
)

KIB, MIB = 1024, 1024 * 1024
GET_BROKER_RUNTIME_INFO = 28
ANSWER_TIMEOUT_S = 60.0
UNREAD_TIMEOUT_S = 1.0
"""A server that takes nothing for this long does not read any more."""
LINGER_S = 1.0
PIPELINED = 100


class Deceived(AssertionError):
    """A server accepted or showed what it must refuse."""


@dataclass(frozen=True)
class Target:
    """The servers, and how hard they are attacked: 1 is what once brought them down."""

    broker: str
    nameserver: str
    log: Path
    scale: float = 1.0

    def connect(self, timeout_s: float = ANSWER_TIMEOUT_S) -> PlainClient:
        return PlainClient(self.broker, timeout_s)

    def ask_names(self, timeout_s: float = ANSWER_TIMEOUT_S) -> PlainClient:
        return PlainClient(self.nameserver, timeout_s)

    def count(self, full: int, least: int = 1) -> int:
        """How often to do what the original attack did `full` times."""
        return max(least, round(full * self.scale))


def mute(target: Target, connections: ExitStack) -> PlainClient:
    """A client that reads nothing, with as little room for answers as the system allows."""
    client = connections.enter_context(target.connect())
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    client.socket.settimeout(UNREAD_TIMEOUT_S)
    return client


def pour(client: PlainClient, data: bytes, times: int = 1) -> None:
    """Writes as much as the server takes. It may stop reading, or close."""
    with suppress(ServerClosed, OSError):
        for _ in range(times):
            client.write(data)


def linger() -> None:
    """Gives the server time to do what an attack made it do, before the attacker leaves."""
    time.sleep(LINGER_S)


def in_parallel(work: Callable[[PlainClient], None], clients: Iterable[PlainClient]) -> None:
    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def answers(client: PlainClient, frames: Iterable[bytes]) -> Counter[int]:
    """Sends the requests, many at a time, and counts the codes of their answers."""
    codes: Counter[int] = Counter()
    waiting: list[bytes] = []
    for one in frames:
        waiting.append(one)
        if len(waiting) == PIPELINED:
            codes.update(reply.code for reply in _exchange(client, waiting))
            waiting.clear()
    codes.update(reply.code for reply in _exchange(client, waiting))
    return codes


def _exchange(client: PlainClient, frames: list[bytes]) -> Iterator[Reply]:
    client.write(b"".join(frames))
    for _ in frames:
        yield client.read_reply()


def refuse_all(codes: Counter[int], what: str) -> None:
    if codes[SUCCESS]:
        raise Deceived(f"{codes[SUCCESS]} of {codes.total()} requests were accepted: {what}")


def pull_frame(
    topic: str,
    queue_id: int = 0,
    *,
    count: int = 32,
    queue_offset: int = 0,
    expression: str = "*",
    expression_type: str = "TAG",
    hold_ms: int = 0,
    group: str = "hostile",
) -> bytes:
    return frame(
        PULL_MESSAGE,
        {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(count),
            "sysFlag": str(4 | (2 if hold_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": expression_type,
            "maxMsgBytes": str(2 * MIB),
        },
    )


def filled(client: PlainClient, topic: str, messages: int, fill: Callable[[int], object]) -> None:
    """Makes a topic of one queue with that many messages; `fill` gets the number that are missing."""
    if (reply := create_topic(client, topic, 1)).code != SUCCESS:
        raise RuntimeError(f"topic {topic}: {reply.code} {reply.remark}")
    missing = messages - queue_end(client, topic, 0)
    if missing > 0:
        fill(missing)


def send_batch(client: PlainClient, topic: str, count: int, body: bytes, properties: bytes) -> None:
    size = 22 + len(body) + len(properties)
    record = (
        size.to_bytes(4) + bytes(12) + len(body).to_bytes(4) + body + len(properties).to_bytes(2) + properties
    )
    reply = client.call(SEND_BATCH_MESSAGE, {**send_fields(topic, 0), "m": "true"}, record * count)
    if reply.code != SUCCESS:
        raise RuntimeError(f"batch for {topic}: {reply.code} {reply.remark}")


def runtime_info(client: PlainClient) -> dict[str, str]:
    """The figures that the broker reports about itself."""
    reply = client.call(GET_BROKER_RUNTIME_INFO, {})
    table: dict[str, str] = json.loads(reply.body)["table"]
    return table


def json_body(value: object) -> bytes:
    return json.dumps(value).encode()


def compressed(data: bytes) -> bytes:
    return zlib.compress(data, 1)


@contextmanager
def crowd(target: Target, count: int) -> Iterator[list[PlainClient]]:
    """Clients that read nothing."""
    with ExitStack() as connections:
        yield [mute(target, connections) for _ in range(count)]
