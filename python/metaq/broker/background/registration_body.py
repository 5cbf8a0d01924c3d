"""The body of a full registration: all topics of a broker, compressed if there are very many."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from metaq.protocol.bodies import RegisterBrokerBody, TopicConfigTable

PLAIN_BODY_BYTES_MAX = 12 * 1024 * 1024
"""A larger registration is compressed, because a frame has at most 16 MiB. The compressed form lacks the
flags of units, so it is used only then."""


def encode_all(table: TopicConfigTable) -> tuple[bytes, bool]:
    """The body of a registration, and whether it is compressed."""
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
    if len(body) <= PLAIN_BODY_BYTES_MAX:
        return body, False
    return zlib.compress(b"".join(_compressed_parts(table)), level=1), True


def _compressed_parts(table: TopicConfigTable) -> Iterable[bytes]:
    """Apache's compact form: parts with their lengths before them. Name servers do not look at the
    attributes, which those before 5.0 could not even read."""
    yield _part(table.data_version.encode())
    yield len(table.topic_config_table).to_bytes(4)
    for config in table.topic_config_table.values():
        words = (
            config.topic_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_filter_type,
        )
        yield _part(" ".join(map(str, words)).encode())
    yield _part(b"[]")  # filter servers
    yield (0).to_bytes(4)  # topics that are spread over several brokers


def _part(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content
