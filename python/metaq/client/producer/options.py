"""The options of a producer and of one send, checked before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from metaq.client.clock import seconds_of
from metaq.client.compression import FORMATS, Format
from metaq.client.message import (
    BODY_BYTES_MAX,
    COMPRESS_FROM_BYTES,
    Outgoing,
    check_group,
    check_sharding_key,
    outgoing,
)
from metaq.client.producer.results import SendStatus
from metaq.client.session.routes import Queue
from metaq.errors import InvalidMessage, UsageError
from metaq.protocol.properties import DELAY_LEVEL, DELAY_MS, DELIVER_MS, PRIORITY, SHARDING_KEY
from metaq.settings import DELAY_LEVELS_MS
from metaq.suggestions import unknown_options

if TYPE_CHECKING:
    from typing_extensions import Buffer

KIB = 1024
MIB = 1024 * KIB

DEFAULT_GROUP: Final = "metaq"


class ProducerKeywords(TypedDict, total=False):
    """The keyword options of `Client.producer`. All are optional."""

    timeout: float
    """Seconds for one send with all its attempts (default 15.0)."""
    attempt_timeout: float
    """Seconds for one attempt (default 6.0)."""
    accept: Iterable[SendStatus | str]
    """Statuses besides "stored" that are not errors (default none)."""
    body_bytes_max: int
    """The largest body (default 4 MiB)."""
    compression: Format | None
    """The format in which bodies are compressed (default "zlib"); None does not compress."""
    compress_from_bytes: int
    """The smallest body that is compressed (default 4096)."""
    linger: float
    """Seconds for which `send_soon` waits for more messages (default 0.002)."""
    batch_bytes_max: int
    """How much `send_soon` sends at once (default 256 KiB)."""
    buffer_bytes_max: int
    """How much `send_soon` holds before it waits (default 32 MiB)."""
    batches_in_flight_max: int
    """Batches of one topic that `send_soon` sends at the same time (default 4); batches whose order counts
    are sent one after the other."""
    delay_levels_max: int
    """The highest `delay_level` of a message (default 18, as brokers have it unless their `delay_levels` say
    otherwise). A broker takes a higher one for its last."""


class MessageOptions(TypedDict, total=False):
    """The keyword options of every call that sends one message. All are optional."""

    tag: str | None
    """The tag, by which consumers can filter."""
    keys: Iterable[str] | None
    """Keys by which the message can be found."""
    properties: Mapping[str, str] | None
    """Your own properties."""
    key: str | None
    """The sharding key: messages with the same key go to the same queue."""
    queue: Queue | None
    """The queue; it excludes `key`."""
    delay: timedelta | float | None
    """When the message is delivered, as a timedelta or in seconds from now."""
    deliver_at: datetime | None
    """When the message is delivered. Without a time zone it is local time of this machine, as everywhere."""
    delay_level: int | None
    """When the message is delivered, as a delay level of the broker, counted from 1."""
    priority: int | None
    """The priority, 0 or higher."""
    timeout: float | None
    """Seconds for the whole call."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """All options of a producer. Raises UsageError if one is out of its limits."""

    group: str
    timeout_s: float = 15.0
    attempt_timeout_s: float = 6.0
    """A little more than a broker waits for its disk and its replicas."""
    accept: frozenset[SendStatus] = frozenset()
    body_bytes_max: int = BODY_BYTES_MAX
    compression: Format | None = "zlib"
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    linger_s: float = 0.002
    batch_bytes_max: int = 256 * KIB
    buffer_bytes_max: int = 32 * MIB
    batches_in_flight_max: int = 4
    delay_levels_max: int = len(DELAY_LEVELS_MS)
    half_properties: str | None = None
    """If given, each batch is stored as one half message with these encoded properties. The Spark sink uses
    this to decide about many messages at once."""

    def __post_init__(self) -> None:
        check_group(self.group)
        for name in ("timeout_s", "attempt_timeout_s"):
            check_timeout(getattr(self, name), name)
        for name in (
            "body_bytes_max",
            "compress_from_bytes",
            "batch_bytes_max",
            "buffer_bytes_max",
            "batches_in_flight_max",
            "delay_levels_max",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}: it must be a whole number, at least 1")
        if self.compression is not None and self.compression not in FORMATS:
            raise UsageError(
                f"compression is {self.compression!r}: it must be one of {', '.join(FORMATS)} or None"
            )
        if not isinstance(self.linger_s, (int, float)) or not 0 <= self.linger_s <= 60:
            raise UsageError(f"linger_s is {self.linger_s!r}: it must be a number of seconds from 0 to 60")


_SECONDS: Final = ("timeout", "attempt_timeout", "linger")


def producer_options(group: str, keywords: ProducerKeywords) -> ProducerOptions:
    """Checks the options of one producer. Raises UsageError, which names the broken rule."""
    given: dict[str, Any] = dict(keywords)
    unknown = given.keys() - ProducerKeywords.__annotations__.keys()
    if unknown:
        text, hint = unknown_options("a producer", unknown, ProducerKeywords.__annotations__)
        raise UsageError(text, hint=hint)
    if "accept" in given:
        given["accept"] = SendStatus.all_of(given["accept"])
    for name in _SECONDS:
        if name in given:
            given[f"{name}_s"] = given.pop(name)
    return ProducerOptions(group, **given)


@dataclass(frozen=True, slots=True)
class PreparedSend:
    """A checked message and its destination."""

    message: Outgoing
    key: str | None
    queue: Queue | None
    timeout_s: float


def prepare_send(
    options: ProducerOptions,
    unique_id: str,
    topic: str,
    body: Buffer,
    *,
    tag: str | None = None,
    keys: Iterable[str] | None = (),
    properties: Mapping[str, str] | None = None,
    key: str | None = None,
    queue: Queue | None = None,
    delay: timedelta | float | None = None,
    deliver_at: datetime | None = None,
    delay_level: int | None = None,
    priority: int | None = None,
    timeout: float | None = None,
    **unknown: object,
) -> PreparedSend:
    """Checks everything that can be checked before a send. Raises InvalidMessage or UsageError."""
    if unknown:
        text, hint = unknown_options("a message", unknown, MessageOptions.__annotations__)
        raise UsageError(text, hint=hint)
    message = outgoing(
        topic,
        body,
        unique_id,
        tag=tag,
        keys=keys,
        properties=properties,
        body_bytes_max=options.body_bytes_max,
    )
    if key is not None:
        check_sharding_key(key)
        message.properties[SHARDING_KEY] = key
    if queue is not None:
        if not isinstance(queue, Queue) or queue.topic != topic:
            raise InvalidMessage(f"{queue!r} is not a queue of {topic}")
        if key is not None:
            raise InvalidMessage("key and queue exclude each other: leave one of them out")
    _set_delivery_time(message, delay, deliver_at, delay_level, options.delay_levels_max)
    if priority is not None:
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            raise InvalidMessage(f"priority is {priority!r}: it must be a whole number, at least 0")
        message.properties[PRIORITY] = str(priority)
        message.batchable = False
    if timeout is not None:
        check_timeout(timeout, "timeout")
    return PreparedSend(message, key, queue, options.timeout_s if timeout is None else timeout)


def _set_delivery_time(
    message: Outgoing,
    delay: timedelta | float | None,
    deliver_at: datetime | None,
    delay_level: int | None,
    delay_levels_max: int,
) -> None:
    if sum(given is not None for given in (delay, deliver_at, delay_level)) > 1:
        raise InvalidMessage("delay, deliver_at and delay_level exclude each other: give one of them")
    if delay is not None:
        seconds = seconds_of(delay)
        if seconds is None:
            raise InvalidMessage(
                f"delay is {delay!r}: it must be a timedelta or seconds, and it cannot be negative"
            )
        message.properties[DELAY_MS] = str(round(seconds * 1000))
        message.batchable = False
    elif deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise InvalidMessage(f"deliver_at is a datetime, not {type(deliver_at).__name__}")
        try:
            message.properties[DELIVER_MS] = str(round(deliver_at.timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            raise InvalidMessage(f"deliver_at is {deliver_at!r}: it is too far away") from None
        message.batchable = False
    elif delay_level is not None:
        if isinstance(delay_level, bool) or not isinstance(delay_level, int) or delay_level < 1:
            raise InvalidMessage(
                f"delay_level is {delay_level!r}: it must be a whole number, at least 1",
                hint="level 1 is the first delay of the broker, by default 1 s",
            )
        if delay_level > delay_levels_max:
            raise InvalidMessage(
                f"delay_level is {delay_level}: the highest is {delay_levels_max} (delay_levels_max)",
                hint="any other delay is possible with `delay`; if your brokers have more levels, make the "
                "producer with delay_levels_max",
            )
        message.properties[DELAY_LEVEL] = str(delay_level)
        message.batchable = False


def check_timeout(value: float, name: str) -> None:
    """Raises UsageError unless the value is a positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {value!r}: it must be a number of seconds above 0")
