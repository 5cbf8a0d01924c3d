"""Messages as assertions see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from metaq._core import Record, Store, decode_records
from metaq.client.compression import body_of

ENTRIES_PER_READ = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the broker keeps it."""

    topic: str
    queue: int
    queue_offset: int
    id: str
    body: bytes
    """As it was sent; what cannot be decompressed stays as it is."""
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    retries: int
    """How often it has come again already."""
    stored_at: datetime
    """By the broker's clock."""

    @classmethod
    def of(cls, record: Record) -> StoredMessage:
        body = body_of(record)
        properties = record.properties
        return cls(
            topic=record.topic,
            queue=record.queue_id,
            queue_offset=record.queue_offset,
            id=record.message_id,
            body=record.body if body is None else body,
            tag=properties.get("TAGS"),
            keys=tuple(properties.get("KEYS", "").split()),
            properties=properties,
            retries=record.reconsume_times,
            stored_at=moment(record.store_timestamp_ms),
        )


def moment(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def read_topic(store: Store, topic: str) -> list[StoredMessage]:
    """Everything in all queues of the topic, in the order it was stored."""
    places: list[int] = []
    for queue_id in store.queue_ids(topic):
        queue_offset = store.min_offset(topic, queue_id)
        while entries := store.queue_entries(topic, queue_id, queue_offset, ENTRIES_PER_READ):
            places += [physical_offset for physical_offset, _, _ in entries]
            queue_offset += len(entries)
    found = [store.record_at(physical_offset) for physical_offset in sorted(places)]
    return [StoredMessage.of(decode_records(record)[0]) for record in found if record is not None]
