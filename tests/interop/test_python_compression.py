"""Bodies compressed by one client and read by the other, in each format that the Java client has."""

from __future__ import annotations

import hashlib

import pytest

import metaq
from tests.interop.clients import Clients, binary
from tests.interop.kinds import java_id

FORMATS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
FORMAT_BITS = 0x701
LONG = b"the same words over and over again; " * 5000
"""Longer than one block of an LZ4 frame."""

since_5_0 = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "binary")], ids=java_id, indirect=True, scope="session"
)


@since_5_0
def test_python_reads_what_java_compressed(java: Clients) -> None:
    topic = java.topic(queues=1)
    for format in FORMATS:
        java.producer(compression=format.upper()).send(topic, [binary(LONG + format.encode())])
    with metaq.Client(java.cluster.namesrv) as client, client.puller(start="earliest") as puller:
        puller.assign(topic)
        messages: list[metaq.Message] = []
        while len(messages) < len(FORMATS) and (found := puller.poll(timeout=60)):
            messages += found
    assert [message.body for message in messages] == [LONG + format.encode() for format in FORMATS]
    assert [message.system_flag & FORMAT_BITS for message in messages] == list(FORMATS.values())


@since_5_0
def test_java_reads_what_python_compressed(java: Clients) -> None:
    topic = java.topic(queues=1)
    with metaq.Client(java.cluster.namesrv) as client:
        for format in FORMATS:
            with client.producer(f"by_{format}", compression=format) as producer:  # type: ignore[arg-type]
                producer.send(topic, LONG + format.encode())
                producer.send(topic, b"short")
    stored = java.pull_consumer().read_all(topic)
    assert [message["body_sha256"] for message in stored[::2]] == [
        hashlib.sha256(LONG + format.encode()).hexdigest() for format in FORMATS
    ]
    assert all(message["stored_bytes"] < len(LONG) / 10 for message in stored)
    # Java takes the first bit away when it has decompressed a body.
    assert [message["system_flag"] & FORMAT_BITS | 1 for message in stored[::2]] == list(FORMATS.values())
    assert [message["body"] for message in stored[1::2]] == ["short"] * len(FORMATS)


@pytest.mark.parametrize("java_kind", [("4.9.8", "json")], ids=java_id, indirect=True, scope="session")
def test_what_python_compresses_by_default_is_read_by_clients_before_5_0(java: Clients) -> None:
    topic = java.topic(queues=1)
    with metaq.Client(java.cluster.namesrv) as client, client.producer("by_default") as producer:
        producer.send(topic, LONG)
    (stored,) = java.pull_consumer().read_all(topic)
    assert stored["body_sha256"] == hashlib.sha256(LONG).hexdigest()
    assert stored["stored_bytes"] < len(LONG) / 10
