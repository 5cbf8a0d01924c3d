"""Messages to send: their rules and their layout on the wire. The class `Message` itself is native."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq._core import Message, register_message_rules
from metaq.client import compression
from metaq.client.compression import INFLATED_BYTES_MAX
from metaq.client.consumer.replying import reply
from metaq.errors import InvalidMessage
from metaq.protocol.names import group_fault, topic_fault
from metaq.protocol.properties import KEYS, SYSTEM_NAMES, TAGS, UNIQUE_KEY, WAIT, encode_properties

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BODY_BYTES_MAX",
    "COMPRESS_FROM_BYTES",
    "INFLATED_BYTES_MAX",
    "PROPERTIES_BYTES_MAX",
    "TRANSACTION_PREPARED",
    "Message",
    "Outgoing",
    "check_group",
    "check_sharding_key",
    "check_topic",
    "checked_body",
    "encode_batch",
    "inflate",
    "outgoing",
]

MIB: Final = 1024 * 1024
BODY_BYTES_MAX: Final = 4 * MIB
"""The largest body that a broker accepts by default."""
PROPERTIES_BYTES_MAX: Final = 32_767
COMPRESS_FROM_BYTES: Final = 4096

TRANSACTION_PREPARED: Final = 4


def inflate(body: bytes, system_flag: int, bytes_max: int | None = None) -> bytes:
    """Returns the body as its producer sent it. Raises UnreadableBody."""
    return compression.decompress(body, system_flag, bytes_max)


register_message_rules(inflate=inflate, system_names=SYSTEM_NAMES, reply=reply)


@dataclass(slots=True)
class Outgoing:
    """A checked message that is ready to be encoded."""

    topic: str
    body: bytes
    properties: dict[str, str]
    system_flag: int = 0
    flag: int = 0
    batchable: bool = True
    """Brokers do not accept delayed or prioritised messages in batches."""
    has_span: bool = False
    """It has a `create` span of its own."""

    @property
    def id(self) -> str:
        """The unique id."""
        return self.properties[UNIQUE_KEY]

    def size_bytes(self) -> int:
        """Returns its size in a batch."""
        properties = encode_properties(self.properties).encode()
        return _BATCH_HEAD.size + len(self.body) + _BATCH_TAIL.size + len(properties)

    def compress(self, from_bytes: int, format: compression.Format | None) -> None:
        """Compresses the body if it is large enough and becomes smaller."""
        if format is not None and len(self.body) >= from_bytes:
            self.body, self.system_flag = compression.compress(self.body, self.system_flag, format)


def outgoing(
    topic: str,
    body: Buffer,
    unique_id: str,
    *,
    tag: str | None = None,
    keys: Iterable[str] | None = (),
    properties: Mapping[str, str] | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Outgoing:
    """Checks a message to send. Raises InvalidMessage, which names the broken rule."""
    check_topic(topic)
    content = checked_body(body)
    if len(content) > body_bytes_max:
        raise InvalidMessage(f"the body has {len(content)} bytes, the limit is {body_bytes_max}")
    wire: dict[str, str] = {}
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidMessage(f"properties is a mapping such as a dict, not {type(properties).__name__}")
    for name, value in (properties or {}).items():
        wire[_checked("the name of a property", name)] = _checked(f"the property {name!r}", value)
        if name in SYSTEM_NAMES:
            raise InvalidMessage(
                f"the property {name} is reserved for the system", hint="choose another name"
            )
    if tag is not None:
        wire[TAGS] = _checked("a tag", tag)
        if "||" in tag:
            raise InvalidMessage(f"the tag {tag!r} contains ||, which separates tags in subscriptions")
    if keys is None or isinstance(keys, str):
        keys = () if keys is None else (keys,)
    elif not isinstance(keys, Iterable):
        raise InvalidMessage(f"keys is a list of texts, not {type(keys).__name__}")
    joined = " ".join(_checked_key(key) for key in keys)
    if joined:
        wire[KEYS] = joined
    wire[UNIQUE_KEY] = unique_id
    wire[WAIT] = "true"
    if len(encode_properties(wire).encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"the properties have more than {PROPERTIES_BYTES_MAX} bytes in all")
    return Outgoing(topic, content, wire)


def checked_body(body: Buffer) -> bytes:
    """Returns the bytes of any bytes-like object. Raises InvalidMessage for anything else."""
    if isinstance(body, bytes):
        return body
    try:
        return memoryview(body).tobytes()
    except TypeError:
        raise InvalidMessage(f"a body is bytes, not {type(body).__name__}", hint="encode it first") from None


def check_sharding_key(key: str) -> None:
    """Raises InvalidMessage unless this is a text that can be a property."""
    if not isinstance(key, str) or not key or "\x01" in key or "\x02" in key or not _is_encodable(key):
        raise InvalidMessage(f"key is {key!r}: a sharding key must be a text that is not empty")


def check_topic(topic: str) -> None:
    """Raises InvalidMessage for a topic name that brokers do not accept."""
    _check_name("topic", topic, topic_fault)


def check_group(group: str) -> None:
    """Raises InvalidMessage for a group name that brokers do not accept."""
    _check_name("group", group, group_fault)


def _check_name(kind: str, name: str, find_fault: Callable[[str], str | None]) -> None:
    if not isinstance(name, str):
        raise InvalidMessage(f"the name of a {kind} is a str, not {type(name).__name__}")
    fault = find_fault(name)
    if fault is not None:
        raise InvalidMessage(fault)


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} is a str, not {type(text).__name__}")
    if not text:
        raise InvalidMessage(f"{what} is empty")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessage(f"{what} contains the character 1 or 2, which separate properties on the wire")
    if not _is_encodable(text):
        raise InvalidMessage(f"{what} contains a lone surrogate, which UTF-8 cannot encode")
    return text


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked_key(key: str) -> str:
    if len(_checked("a key", key).split()) != 1 or key != key.strip():
        raise InvalidMessage(f"the key {key!r} contains white space, which separates keys")
    return key


_BATCH_HEAD: Final = struct.Struct(">iiiii")
_BATCH_TAIL: Final = struct.Struct(">h")


def encode_batch(messages: Iterable[Outgoing]) -> bytes:
    """Encodes the body of a batch, one record after the other:

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
