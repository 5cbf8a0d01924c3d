"""The body of a broker's registration, read from its two forms and checked.

Plain, it is the JSON of RegisterBrokerBody. Compressed, it is a zlib stream of parts, each with its length:

    ┌──────┬──────────────┬───────┬──────┬───────┬───┬──────┬──────────────────┬────────────────────┐
    │ len4 │ DataVersion  │ count │ len4 │ topic │ … │ len4 │ filter servers   │ queue mappings …   │
    │      │ JSON         │ 4     │      │ text  │   │      │ JSON             │ (from 5.0 on)      │
    └──────┴──────────────┴───────┴──────┴───────┴───┴──────┴──────────────────┴────────────────────┘

where a topic's text is `name readQueues writeQueues permission filterType attributesJson`. We stop after the
topics: filter servers are gone and static topics are not served.
"""

from __future__ import annotations

import logging
import re
import zlib
from typing import Final

import msgspec

from metaq.nameserver.large_json import LargeTable
from metaq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.errors import ProtocolError
from metaq.protocol.handling.body_reading import is_short
from metaq.protocol.handling.peer_log import peer_log

_log = logging.getLogger(__name__)

SMALL_BYTES: Final = 128 * 1024
"""A plain body of this size takes about a millisecond to read. Longer ones are read topic by topic."""
INFLATED_BYTES_MAX: Final = 32 * 1024 * 1024
PART_BYTES_MAX: Final = 64 * 1024
"""The longest version or topic in a compressed body."""
QUEUES_MAX: Final = 65_535
"""Queues of one topic on one broker: clients build a list of them."""

_BODY_SHAPE_SINCE: Final = 37
"""Before this version (3.0.11) the body was only the topic table."""
_ZLIB_FIRST_BYTE: Final = b"x"
"""Apache's 5.5.0 broker says `compressed=false` of bodies that it did compress. JSON never begins so."""
_NAME = re.compile(r"[^\s\"\\\x00-\x1f\x7f\ud800-\udfff]{1,255}")
"""A JSON body can escape a lone surrogate, which no answer could encode."""


def check_name(what: str, name: str) -> str:
    """The name itself; raises ProtocolError. Looser than the rules for clients: brokers of any age
    register."""
    if _NAME.fullmatch(name) is None:
        raise ProtocolError(f"{what} {name[:64]!r} is empty, longer than 255 characters or has blanks in it")
    return name


def is_small(command: RegisterBroker, body: bytes) -> bool:
    """Whether the body can be read on the event loop."""
    return is_short(body) and not (command.compressed or body.startswith(_ZLIB_FIRST_BYTE))


def read_topics(
    command: RegisterBroker, version: int, body: bytes, topics_max: int, remote: str = ""
) -> TopicConfigTable:
    """The topic table of a registration. Raises ProtocolError, for too many topics before they are read."""
    if command.body_crc32 != 0 and zlib.crc32(body) & 0x7FFFFFFF != command.body_crc32:
        raise ProtocolError("the body does not match bodyCrc32", code=1)
    if not body:
        return TopicConfigTable()
    if command.compressed or body.startswith(_ZLIB_FIRST_BYTE):
        table = _read_compressed(body, topics_max)
    elif len(body) > SMALL_BYTES:
        table = _read_large(body, topics_max)
    elif version < _BODY_SHAPE_SINCE:
        table = TopicConfigTable.decode(body)
    else:
        table = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper
    if len(table.topic_config_table) > topics_max:
        raise _too_many(topics_max)
    return TopicConfigTable(
        table.data_version, _usable(table.topic_config_table, command.broker_name, remote)
    )


def _read_large(body: bytes, topics_max: int) -> TopicConfigTable:
    large = LargeTable(body, topics_max)
    return TopicConfigTable(large.version, large.topics)


def _too_many(topics_max: int) -> ProtocolError:
    return ProtocolError(
        f"the body names more than {topics_max} topics (nameserver_broker_topics_max of the name server)"
    )


def _usable(topics: dict[str, TopicConfig], broker_name: str, remote: str) -> dict[str, TopicConfig]:
    """Leaves out topics that would harm clients, so that one odd topic does not hide a whole broker."""
    usable: dict[str, TopicConfig] = {}
    for name, topic in topics.items():
        if _NAME.fullmatch(name) is None:
            _warn(remote, "broker %s: a topic with the unusable name %r is left out", broker_name, name[:64])
        elif not (0 <= topic.read_queue_nums <= QUEUES_MAX and 0 <= topic.write_queue_nums <= QUEUES_MAX):
            _warn(remote, "broker %s: topic %s has an impossible number of queues", broker_name, name)
        else:
            usable[name] = topic
    return usable


def _warn(remote: str, text: str, *arguments: object) -> None:
    peer_log.write(_log, logging.WARNING, remote, text, *arguments)


def _read_compressed(body: bytes, topics_max: int) -> TopicConfigTable:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise ProtocolError(f"the compressed body is damaged: {error}") from None
    if inflater.unconsumed_tail:
        raise ProtocolError(f"the compressed body is larger than {INFLATED_BYTES_MAX} bytes")
    if not inflater.eof:
        raise ProtocolError("the compressed body is damaged: it is cut short")
    parts = _Parts(data)
    version = DataVersion.decode(parts.take())
    count = parts.take_count()
    if count > topics_max:
        raise _too_many(topics_max)
    topics = (_read_topic(parts.take()) for _ in range(count))
    return TopicConfigTable(version, {topic.topic_name: topic for topic in topics})


def _read_topic(part: bytes) -> TopicConfig:
    try:
        words = part.decode().split(" ", 5)
        name, read_queues, write_queues, permission, filter_type = words[:5]
        topic = {
            "topicName": name,
            "readQueueNums": int(read_queues),
            "writeQueueNums": int(write_queues),
            "perm": int(permission),
            "topicFilterType": filter_type,
        }
        return msgspec.convert(topic, TopicConfig)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the compressed body has a topic that cannot be read: {error}") from None
    except ValueError:
        raise ProtocolError(f"the compressed body has a topic that cannot be read: {part[:64]!r}") from None


class _Parts:
    """Takes length-prefixed parts off a buffer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take_count(self) -> int:
        return int.from_bytes(self._slice(4), signed=False)

    def take(self) -> bytes:
        length = self.take_count()
        if PART_BYTES_MAX < length <= len(self._data):
            raise ProtocolError(f"a part of the compressed body is longer than {PART_BYTES_MAX} bytes")
        return self._slice(length)

    def _slice(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise ProtocolError("the compressed body ends in the middle of a part")
        part, self._at = self._data[self._at : end], end
        return part
