"""How a producer sends, and what one send may ask for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from metaq.client.compression import FORMATS, Format
from metaq.client.message import BODY_BYTES_MAX, COMPRESS_FROM_BYTES, Outgoing, check_group, outgoing
from metaq.client.producer.results import SendStatus
from metaq.client.properties import DELAY_MS, DELIVER_MS, PRIORITY, SHARDING_KEY
from metaq.client.session.routes import Queue
from metaq.errors import InvalidMessage, UsageError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Checked when a producer is made; raises UsageError."""

    group: str
    timeout_s: float = 15.0
    """For one send with all its tries."""
    attempt_timeout_s: float = 6.0
    """For one try: a little more than a broker waits for its disk and its replicas."""
    accept: frozenset[SendStatus] = frozenset()
    """Statuses besides `stored` that are not errors."""
    body_bytes_max: int = BODY_BYTES_MAX
    compression: Format | None = "zlib"
    """In which format bodies from that size on are compressed; None in none."""
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    linger_s: float = 0.002
    """How long `send_soon` waits for more to send with a message."""
    batch_bytes_max: int = 256 * KIB
    """What `send_soon` sends at once at most."""
    buffer_bytes_max: int = 32 * MIB
    """What `send_soon` keeps at most; from there on it waits."""
    batches_in_flight_max: int = 4
    """Batches of one topic that `send_soon` sends at the same time. Messages with a key or for a given queue
    keep their order: their batches are sent one after the other."""
    half_properties: str | None = None
    """Where these are given, what goes together is stored as one half message with these properties, encoded:
    for who decides about many messages at once, as the sink of Spark does."""

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
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is a whole number from 1 on, not {value!r}")
        if self.compression is not None and self.compression not in FORMATS:
            raise UsageError(f"compression is one of {', '.join(FORMATS)} or None, not {self.compression!r}")
        if not isinstance(self.linger_s, (int, float)) or not 0 <= self.linger_s <= 60:
            raise UsageError(f"linger_s is a number of seconds from 0 to 60, not {self.linger_s!r}")


class MessageOptions(TypedDict, total=False):
    """What every way to send one message takes besides its topic and its body."""

    tag: str | None
    keys: Iterable[str]
    properties: Mapping[str, str] | None
    key: str | None
    """Messages with the same key go to the same queue."""
    queue: Queue | None
    delay: timedelta | float | None
    """How much later it is delivered, in seconds where it is a number."""
    deliver_at: datetime | None
    """When it is delivered; without a time zone it is local time."""
    priority: int | None
    timeout: float | None
    """Seconds for the whole call."""


@dataclass(frozen=True, slots=True)
class Order:
    """A checked message and where it is to go."""

    message: Outgoing
    key: str | None
    queue: Queue | None
    timeout_s: float


def order(
    options: ProducerOptions,
    unique_id: str,
    topic: str,
    body: bytes,
    *,
    tag: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    key: str | None = None,
    queue: Queue | None = None,
    delay: timedelta | float | None = None,
    deliver_at: datetime | None = None,
    priority: int | None = None,
    timeout: float | None = None,
) -> Order:
    """Checks everything that can be known to be wrong before anything is sent; raises InvalidMessage."""
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
        if not isinstance(key, str) or not key or "\x01" in key or "\x02" in key:
            raise InvalidMessage(f"a sharding key is a text that is not empty, not {key!r}")
        message.properties[SHARDING_KEY] = key
    if queue is not None:
        if not isinstance(queue, Queue) or queue.topic != topic:
            raise InvalidMessage(f"{queue!r} is no queue of {topic}")
        if key is not None:
            raise InvalidMessage("a message goes to the queue of its key or to a given queue, not both")
    _set_time(message, delay, deliver_at)
    if priority is not None:
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            raise InvalidMessage(f"a priority is a whole number from 0 on, not {priority!r}")
        message.properties[PRIORITY] = str(priority)
        message.batchable = False
    if timeout is not None:
        check_timeout(timeout, "a timeout")
    return Order(message, key, queue, options.timeout_s if timeout is None else timeout)


def _set_time(message: Outgoing, delay: timedelta | float | None, deliver_at: datetime | None) -> None:
    if delay is not None:
        if deliver_at is not None:
            raise InvalidMessage("a message has a delay or a time of delivery, not both")
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e10:
            raise InvalidMessage(f"a delay is a timedelta or seconds, and not negative, not {delay!r}")
        message.properties[DELAY_MS] = str(round(seconds * 1000))
        message.batchable = False
    elif deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise InvalidMessage(f"a time of delivery is a datetime, not {type(deliver_at).__name__}")
        message.properties[DELIVER_MS] = str(round(deliver_at.timestamp() * 1000))
        message.batchable = False


def check_timeout(value: float, name: str) -> None:
    """Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UsageError(f"{name} is a number of seconds above 0, not {value!r}")
