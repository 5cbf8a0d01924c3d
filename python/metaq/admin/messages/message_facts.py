"""A message as a record for programs, without its body, for `metaq message` and the console's exports."""

from __future__ import annotations

from metaq.client.message import Message


def message_facts(message: Message) -> dict[str, object]:
    """Returns the names and values of a message, in the order in which they are written."""
    queue = message.queue
    return {
        "topic": message.topic,
        "broker": None if queue is None else queue.broker,
        "queue_id": None if queue is None else queue.id,
        "queue_offset": message.queue_offset,
        "id": message.id,
        "offset_id": message.offset_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "born_timestamp_ms": message.born_at,
        "store_timestamp_ms": message.stored_at,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": {**message.system_properties, **message.properties},
    }
