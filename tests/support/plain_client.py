"""A blocking client of the wire protocol, a few screens long and independent of the product.

A fault of the product cannot hide behind the same fault in the code that judges it, and tests can send what
no honest client sends. It knows JSON headers only.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
PULL_MESSAGE = 11
QUERY_MESSAGE = 12
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31

SUCCESS = 0
PULL_NOT_FOUND = 19
PULL_RETRY_IMMEDIATELY = 20

_RESPONSE = 1
_SUSPEND, _SUBSCRIPTION_GIVEN = 2, 4
_BORN_HOST_V6, _STORE_HOST_V6 = 1 << 4, 1 << 5
_MAGIC_V1, _MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
_CHECKER_GROUP = "fault_checker"


class ServerClosed(Exception):
    """The server closed the connection."""


@dataclass(frozen=True)
class Reply:
    code: int
    opaque: int
    remark: str
    fields: dict[str, str]
    body: bytes


class Stored(NamedTuple):
    """The part of a stored record that the tests look at."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    stored_ms: int
    body: bytes


def frame(code: int, fields: dict[str, str], body: bytes = b"", *, opaque: int = 0, flag: int = 0) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "language": "OTHER",
            "version": 513,
            "opaque": opaque,
            "flag": flag,
            "extFields": fields,
        }
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class PlainClient:
    """One connection to one server."""

    def __init__(self, address: str, timeout_s: float = 60.0, *, source: str = "") -> None:
        """`source` is one of the addresses of this machine."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._opaque = 0

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def next_opaque(self) -> int:
        self._opaque += 1
        return self._opaque

    def write(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionError, BrokenPipeError) as gone:
            raise ServerClosed(str(gone)) from gone

    def read_reply(self) -> Reply:
        """Returns the next response; skips requests of the server. Raises ServerClosed, TimeoutError."""
        while True:
            size = self._take(4)
            data = self._take(struct.unpack(">I", size)[0])
            word = struct.unpack_from(">I", data)[0]
            header = json.loads(data[4 : 4 + (word & 0xFFFFFF)])
            if header["flag"] & _RESPONSE:
                return Reply(
                    code=header["code"],
                    opaque=header["opaque"],
                    remark=header.get("remark") or "",
                    fields=header.get("extFields") or {},
                    body=data[4 + (word & 0xFFFFFF) :],
                )

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Reply:
        opaque = self.next_opaque()
        self.write(frame(code, fields, body, opaque=opaque))
        reply = self.read_reply()
        if reply.opaque != opaque:
            raise AssertionError(f"asked with {opaque}, answered with {reply.opaque}")
        return reply

    def closed_by_server(self, timeout_s: float) -> bool:
        """Returns True as soon as the server has closed, and False after that time."""
        self.socket.settimeout(timeout_s)
        try:
            return self.socket.recv(65536) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionError as gone:
                raise ServerClosed(str(gone)) from gone
            if not data:
                raise ServerClosed("end of stream")
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


def send_fields(
    topic: str, queue_id: int, properties: str = "", *, group: str = "fault_sender"
) -> dict[str, str]:
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }


def create_topic(client: PlainClient, topic: str, queues: int) -> Reply:
    return client.call(
        UPDATE_AND_CREATE_TOPIC,
        {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        },
    )


def send(client: PlainClient, topic: str, queue_id: int, body: bytes, properties: str = "") -> Reply:
    return client.call(SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)


def queue_end(client: PlainClient, topic: str, queue_id: int, code: int = GET_MAX_OFFSET) -> int:
    reply = client.call(code, {"topic": topic, "queueId": str(queue_id)})
    if reply.code != SUCCESS:
        raise AssertionError(f"offset of {topic}/{queue_id}: {reply.code} {reply.remark}")
    return int(reply.fields["offset"])


def pull(
    client: PlainClient,
    topic: str,
    queue_id: int,
    queue_offset: int,
    count_max: int = 32,
    *,
    hold_ms: int = 0,
) -> Reply:
    """With `hold_ms` the broker holds a pull that finds nothing for that long."""
    return client.call(
        PULL_MESSAGE,
        {
            "consumerGroup": _CHECKER_GROUP,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(count_max),
            "sysFlag": str(_SUBSCRIPTION_GIVEN | (_SUSPEND if hold_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        },
    )


def read_queue(client: PlainClient, topic: str, queue_id: int, begin: int | None = None) -> list[Stored]:
    """Returns everything from `begin`, or the queue's start, up to the end that it has now."""
    at = queue_end(client, topic, queue_id, GET_MIN_OFFSET) if begin is None else begin
    end = queue_end(client, topic, queue_id)
    found: list[Stored] = []
    while at < end:
        reply = pull(client, topic, queue_id, at)
        if reply.code == SUCCESS:
            found.extend(stored_records(reply.body))
        elif reply.code != PULL_RETRY_IMMEDIATELY:
            raise AssertionError(f"pull of {topic}/{queue_id} at {at} of {end}: {reply.code} {reply.remark}")
        after = int(reply.fields["nextBeginOffset"])
        if after <= at:
            raise AssertionError(f"pull of {topic}/{queue_id} at {at} does not advance (code {reply.code})")
        at = after
    return found


def stored_records(data: bytes) -> Iterator[Stored]:
    """The records of a pull, laid out as the commit log has them.

    totalSize 4 | magic 4 | bodyCRC 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8 | sysFlag 4 |
    bornTimestamp 8 | bornHost 8 or 20 | storeTimestamp 8 | storeHost 8 or 20 | reconsumeTimes 4 |
    preparedTransactionOffset 8 | bodyLength 4, body | topicLength 1 or 2, topic | propertiesLength 2,
    properties
    """
    at = 0
    while at < len(data):
        size, magic, _, queue_id, _, queue_offset, physical_offset, system_flag = struct.unpack_from(
            ">IIIiiqqi", data, at
        )
        if magic not in (_MAGIC_V1, _MAGIC_V2) or size > len(data) - at:
            raise AssertionError(f"no record at byte {at}: magic {magic:#x}, size {size}")
        stored_at = at + 40 + 8 + (20 if system_flag & _BORN_HOST_V6 else 8)
        body_at = stored_at + 8 + (20 if system_flag & _STORE_HOST_V6 else 8) + 4 + 8
        body_size = struct.unpack_from(">I", data, body_at)[0]
        topic_at = body_at + 4 + body_size
        if magic == _MAGIC_V1:
            topic_size, topic_at = data[topic_at], topic_at + 1
        else:
            topic_size, topic_at = struct.unpack_from(">H", data, topic_at)[0], topic_at + 2
        yield Stored(
            topic=data[topic_at : topic_at + topic_size].decode(),
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            size_bytes=size,
            stored_ms=struct.unpack_from(">q", data, stored_at)[0],
            body=data[body_at + 4 : body_at + 4 + body_size],
        )
        at += size
