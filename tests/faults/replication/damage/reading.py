"""Reads all messages of a group from one node, by queue offset and as a consumer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import metaq
from metaq.errors import MetaqError
from tests.faults.replication.damage.raw import Raw, raw_records
from tests.faults.replication.nodes import BrokerNode
from tests.support.plain_client import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_RETRY_IMMEDIATELY,
    QUERY_MESSAGE,
    SUCCESS,
    PlainClient,
    ServerClosed,
    pull,
)

GROUP_STATUS: Final = 30_322
SWITCH_MASTER: Final = 30_323
_QUERY_CONSUMER_OFFSET: Final = 14
_GET_ALL_TOPICS: Final = 21
_QUERY_NOT_FOUND: Final = 22
_COUNT_MAX = 1_000
_PATIENCE_S = 20.0
_PAUSE_S = 0.1
_IDLE_S = 10.0

Queue = tuple[str, int]
"""A topic and the id of a queue."""


@dataclass
class Read:
    """Everything that one node gave out."""

    node_id: int
    records: dict[Queue, list[Raw]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Queues that the node did not serve to their end."""
    topics: dict[str, int] = field(default_factory=dict)
    """The topics that the node knows, with their number of queues."""
    committed: int = 0
    """The offset that the node has of the committing group."""


@dataclass(frozen=True)
class Consumed:
    """One message as a consumer got it."""

    topic: str
    queue_id: int
    queue_offset: int
    id: str
    body: bytes
    tag: str
    keys: tuple[str, ...]
    properties: Mapping[str, str]


def read_node(
    node: BrokerNode,
    ends: Mapping[Queue, int],
    since: Mapping[Queue, int],
) -> Read:
    """Reads queues from an offset on, as plain pulls; `ends` says how long each of them is at least.

    A node that asks to try again, or that shows the newest messages a moment later, is asked again.
    """
    found = Read(node.id)
    for queue, end in ends.items():

        def read(queue: Queue = queue, end: int = end) -> None:
            _read_queue(found, node.address, queue, since.get(queue, 0), end)

        _retried(found, node, f"{queue[0]}/{queue[1]}", read)
    return found


def _retried(found: Read, node: BrokerNode, what: str, read: Callable[[], None]) -> None:
    # A node that did not serve one queue in all that time is not waited for again.
    deadline, last = time.monotonic() + (_PATIENCE_S if not found.failures else _PAUSE_S), ""
    while node.alive and time.monotonic() < deadline:
        try:
            read()
            return
        except (OSError, ServerClosed, AssertionError) as error:
            last = str(error)
            time.sleep(_PAUSE_S)
    found.failures.append(f"node {node.id} does not serve {what}: {last}")


def _read_queue(found: Read, address: str, queue: Queue, since: int, end_min: int) -> None:
    topic, queue_id = queue
    records = found.records[queue] = []
    with PlainClient(address, 10.0) as client:
        at = max(_offset(client, GET_MIN_OFFSET, topic, queue_id), since)
        end = _offset(client, GET_MAX_OFFSET, topic, queue_id)
        assert end >= end_min, f"it ends at {end}, and {end_min} messages were acknowledged"
        stuck_until = time.monotonic() + _PATIENCE_S
        while at < end:
            reply = pull(client, topic, queue_id, at, _COUNT_MAX)
            after = int(reply.fields.get("nextBeginOffset") or at)
            if reply.code == SUCCESS:
                records.extend(raw_records(reply.body))
            elif reply.code != PULL_RETRY_IMMEDIATELY and after <= at:
                assert time.monotonic() < stuck_until, f"pull at {at} of {end}: {reply.code} {reply.remark}"
                time.sleep(_PAUSE_S)
            if after > at:
                at, stuck_until = after, time.monotonic() + _PATIENCE_S


def _offset(client: PlainClient, code: int, topic: str, queue_id: int) -> int:
    reply = client.call(code, {"topic": topic, "queueId": str(queue_id)})
    assert reply.code == SUCCESS, f"no offset: {reply.code} {reply.remark}"
    return int(reply.fields["offset"])


def read_state(found: Read, node: BrokerNode, group: str, topic: str) -> None:
    """Adds the topics that the node knows, and an offset of a group."""

    def read() -> None:
        with PlainClient(node.address, 10.0) as client:
            found.topics = _topics(client)
            assert found.topics, "it has no topics"
            fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
            reply = client.call(_QUERY_CONSUMER_OFFSET, fields)
            assert reply.code in (SUCCESS, _QUERY_NOT_FOUND), f"no offset: {reply.code} {reply.remark}"
            found.committed = int(reply.fields["offset"]) if reply.code == SUCCESS else 0

    _retried(found, node, "its topics and offsets", read)


def knows_topics(node: BrokerNode, topics: Mapping[str, int]) -> bool:
    """Whether a node that runs has all these topics."""
    with suppress(OSError, ServerClosed, ValueError), PlainClient(node.address, 5.0) as client:
        return _topics(client).keys() >= topics.keys()
    return False


def _topics(client: PlainClient) -> dict[str, int]:
    reply = client.call(_GET_ALL_TOPICS, {})
    if reply.code != SUCCESS:
        return {}
    table = json.loads(reply.body)["topicConfigTable"]
    return {name: int(one["readQueueNums"]) for name, one in table.items()}


def found_by_key(address: str, topic: str, key: str) -> set[bytes]:
    """Returns the bodies of the messages that the key index finds."""
    fields = {"topic": topic, "key": key, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    with suppress(OSError, ServerClosed), PlainClient(address, 10.0) as client:
        reply = client.call(QUERY_MESSAGE, fields)
        if reply.code == SUCCESS:
            return {raw.body for raw in raw_records(reply.body)}
    return set()


def consume(nameservers: str, topics: Iterable[str], ends: Mapping[Queue, int]) -> list[Consumed]:
    """Reads these queues up to their ends with the client that users have, or until nothing more comes."""
    found: list[Consumed] = []
    waiting = {queue: end for queue, end in ends.items() if end > 0}
    with metaq.Client(nameservers) as client, client.puller(start="earliest") as puller:
        deadline = time.monotonic() + _PATIENCE_S
        _assign(puller, topics, deadline)
        idle_since = time.monotonic()
        while waiting and time.monotonic() < deadline and time.monotonic() - idle_since < _IDLE_S:
            try:
                messages = puller.poll(0.5, count=_COUNT_MAX)
            except MetaqError:
                time.sleep(_PAUSE_S)
                continue
            if messages:
                idle_since = time.monotonic()
            for message in messages:
                assert message.queue is not None
                found.append(
                    Consumed(
                        message.topic,
                        message.queue.id,
                        message.queue_offset,
                        message.id,
                        message.body,
                        message.tag or "",
                        message.keys,
                        dict(message.properties),
                    )
                )
                queue = (message.topic, message.queue.id)
                if message.queue_offset >= waiting.get(queue, 0) - 1:
                    waiting.pop(queue, None)
    return found


def _assign(puller: metaq.Puller, topics: Iterable[str], deadline: float) -> None:
    """A broker that changes its role refuses for a moment."""
    while True:
        try:
            puller.assign(*topics)
            return
        except MetaqError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def group_status(address: str) -> dict[str, Any] | None:
    """Returns the group as one node sees it; None if it does not answer."""
    with suppress(OSError, ServerClosed, ValueError), PlainClient(address, 5.0) as client:
        reply = client.call(GROUP_STATUS, {})
        if reply.code == SUCCESS:
            found: dict[str, Any] = json.loads(reply.body)
            return found
    return None
