"""Messages: what a user may send, and how it is laid out. What a user sees of one is native."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq._core import Message, register_message_rules
from metaq.client import compression
from metaq.client.compression import INFLATED_BYTES_MAX
from metaq.client.properties import KEYS, SYSTEM_NAMES, TAGS, UNIQUE_KEY, encode_properties
from metaq.errors import InvalidMessage
from metaq.protocol.names import RETRY_TOPIC_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX

__all__ = [
    "BODY_BYTES_MAX",
    "COMPRESS_FROM_BYTES",
    "INFLATED_BYTES_MAX",
    "PROPERTIES_BYTES_MAX",
    "TRANSACTION_PREPARED",
    "Message",
    "Outgoing",
    "check_group",
    "check_topic",
    "encode_batch",
    "inflate",
    "outgoing",
]

MIB: Final = 1024 * 1024
BODY_BYTES_MAX: Final = 4 * MIB
"""What a broker takes unless it is set up otherwise."""
PROPERTIES_BYTES_MAX: Final = 32_767
COMPRESS_FROM_BYTES: Final = 4096

TRANSACTION_PREPARED: Final = 4


def inflate(body: bytes, system_flag: int, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """The body as it was before its sender compressed it; raises UnreadableBody."""
    return compression.decompress(body, system_flag, bytes_max)


register_message_rules(inflate=inflate, system_names=SYSTEM_NAMES)


@dataclass(slots=True)
class Outgoing:
    """A message that was checked and is ready to be encoded."""

    topic: str
    body: bytes
    properties: dict[str, str]
    system_flag: int = 0
    flag: int = 0
    batchable: bool = True
    """Brokers take no delayed or prioritised messages in batches."""
    has_span: bool = False
    """It was created in a span of its own."""

    @property
    def id(self) -> str:
        return self.properties[UNIQUE_KEY]

    def size_bytes(self) -> int:
        """What it takes in a batch."""
        properties = encode_properties(self.properties).encode()
        return _BATCH_HEAD.size + len(self.body) + _BATCH_TAIL.size + len(properties)

    def compress(self, from_bytes: int, format: compression.Format | None) -> None:
        """Where it is large enough and becomes smaller by it."""
        if format is not None and len(self.body) >= from_bytes:
            self.body, self.system_flag = compression.compress(self.body, self.system_flag, format)


def outgoing(
    topic: str,
    body: bytes,
    unique_id: str,
    *,
    tag: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Outgoing:
    """Checks what a user wants to send; raises InvalidMessage, saying which rule it breaks."""
    check_topic(topic)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(f"a body is bytes, not {type(body).__name__}", hint="encode it first")
    body = bytes(body)
    if len(body) > body_bytes_max:
        raise InvalidMessage(f"a body of {len(body)} bytes is too large: at most {body_bytes_max} are taken")
    wire: dict[str, str] = {}
    for name, value in (properties or {}).items():
        wire[_checked("the name of a property", name)] = _checked(f"the property {name}", value)
        if name in SYSTEM_NAMES:
            raise InvalidMessage(f"the property {name} belongs to the system", hint="choose another name")
    if tag is not None:
        wire[TAGS] = _checked("a tag", tag)
        if "||" in tag:
            raise InvalidMessage(f"the tag {tag!r} holds ||, which separates tags in subscriptions")
    if isinstance(keys, str):
        keys = (keys,)
    joined = " ".join(_checked_key(key) for key in keys)
    if joined:
        wire[KEYS] = joined
    wire[UNIQUE_KEY] = unique_id
    wire["WAIT"] = "true"
    if len(encode_properties(wire).encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"the properties take more than {PROPERTIES_BYTES_MAX} bytes")
    return Outgoing(topic, body, wire)


_TOPIC_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%|_-")


def check_topic(topic: str) -> None:
    """Raises InvalidMessage, saying which rule it breaks."""
    _check_name(
        "topic",
        topic,
        RETRY_TOPIC_CHARACTERS_MAX
        if isinstance(topic, str) and topic.startswith("%")
        else TOPIC_CHARACTERS_MAX,
    )


def check_group(group: str) -> None:
    """Raises InvalidMessage, saying which rule it breaks."""
    _check_name("group", group, 120)


def _check_name(kind: str, name: str, characters_max: int) -> None:
    if not isinstance(name, str):
        raise InvalidMessage(f"the name of a {kind} is a str, not {type(name).__name__}")
    if not name:
        raise InvalidMessage(f"the name of the {kind} is empty")
    if len(name) > characters_max:
        raise InvalidMessage(
            f"the name of the {kind} has {len(name)} characters: at most {characters_max} may be"
        )
    if not _TOPIC_CHARACTERS.issuperset(name):
        raise InvalidMessage(f"the {kind} {name!r} has other characters than letters, digits, %, |, _ and -")


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} is a str, not {type(text).__name__}")
    if not text:
        raise InvalidMessage(f"{what} is empty")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessage(f"{what} holds a character 1 or 2, which separate properties on the wire")
    return text


def _checked_key(key: str) -> str:
    if len(_checked("a key", key).split()) != 1 or key != key.strip():
        raise InvalidMessage(f"the key {key!r} holds white space, which separates keys")
    return key


_BATCH_HEAD: Final = struct.Struct(">iiiii")
_BATCH_TAIL: Final = struct.Struct(">h")


def encode_batch(messages: Iterable[Outgoing]) -> bytes:
    """The body of a batch, one record after the other:

    | total size i32 | magic 0 i32 | checksum 0 i32 | flag i32 |
    | body size i32 | body | properties size i16 | properties |
    """
    parts: list[bytes] = []
    for message in messages:
        properties = encode_properties(message.properties).encode()
        size = _BATCH_HEAD.size + len(message.body) + _BATCH_TAIL.size + len(properties)
        parts += (
            _BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            _BATCH_TAIL.pack(len(properties)),
            properties,
        )
    return b"".join(parts)
