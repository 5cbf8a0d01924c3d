"""Stored messages, in the form that assertions use."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from metaq._core import Record, Store, decode_records
from metaq.client.compression import body_of
from metaq.protocol.properties import KEYS, TAGS, UNIQUE_KEY

ENTRIES_PER_READ = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the broker stores it."""

    topic: str
    queue: int
    queue_offset: int
    id: str
    """The unique id that its producer gave it; the offset id if it has none."""
    offset_id: str
    """The id that the broker gave it: its address and the physical offset."""
    body: bytes
    """The body as it was sent, or as it is stored if it cannot be decompressed."""
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    reconsume_times: int
    """How often its consumer group has failed to process it."""
    stored_time: datetime
    """When it was stored, by the broker's clock."""

    @property
    def retries(self) -> int:
        """Use `reconsume_times`, as with `metaq.Message`."""
        _warn("retries", "reconsume_times")
        return self.reconsume_times

    @property
    def stored_at(self) -> datetime:
        """Use `stored_time`: with `metaq.Message`, `stored_at` is a number of milliseconds."""
        _warn("stored_at", "stored_time")
        return self.stored_time

    @classmethod
    def of(cls, record: Record) -> StoredMessage:
        body = body_of(record)
        properties = record.properties
        return cls(
            topic=record.topic,
            queue=record.queue_id,
            queue_offset=record.queue_offset,
            id=properties.get(UNIQUE_KEY) or record.message_id,
            offset_id=record.message_id,
            body=record.body if body is None else body,
            tag=properties.get(TAGS),
            keys=tuple(properties.get(KEYS, "").split()),
            properties=properties,
            reconsume_times=record.reconsume_times,
            stored_time=moment(record.store_timestamp_ms),
        )


def _warn(old: str, new: str) -> None:
    warnings.warn(f"StoredMessage.{old} is called {new} now", DeprecationWarning, stacklevel=3)


def moment(ms: int) -> datetime:
    """Converts milliseconds since 1970."""
    return EPOCH + timedelta(milliseconds=ms)


def read_topic(store: Store, topic: str) -> list[StoredMessage]:
    """Returns the messages of all queues of a topic, in the order in which they were stored."""
    physical_offsets: list[int] = []
    for queue_id in store.queue_ids(topic):
        queue_offset = store.min_offset(topic, queue_id)
        while entries := store.queue_entries(topic, queue_id, queue_offset, ENTRIES_PER_READ):
            physical_offsets += [physical_offset for physical_offset, _, _ in entries]
            queue_offset += len(entries)
    found = [store.record_at(physical_offset) for physical_offset in sorted(physical_offsets)]
    return [StoredMessage.of(decode_records(record)[0]) for record in found if record is not None]
