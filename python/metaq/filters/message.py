"""A message as a filter function sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from metaq.client.compression import decompress
from metaq.errors import UnreadableBody
from metaq.protocol.properties import KEYS, TAGS

if TYPE_CHECKING:
    from metaq._core import Record

BODY_BYTES_MAX = 32 * 1024 * 1024
"""The largest size to which a compressed body may grow."""


# Not frozen, because one is made for every message and frozen instances take longer to make.
@dataclass(eq=False)
class FilterMessage:
    """A stored message, as a filter function gets it.

    In tests of a function you make it yourself: `FilterMessage("t", b"body", {"TAGS": "x"})`.
    """

    topic: str
    stored_body: bytes = b""
    """The body as it is stored, perhaps compressed; `body` is what the producer sent."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The user's properties and those of the system, such as `TAGS`, `KEYS` and `UNIQ_KEY`."""
    queue_id: int = 0
    queue_offset: int = 0
    born_timestamp_ms: int = 0
    """When the producer sent it, by the producer's clock."""
    store_timestamp_ms: int = 0
    """When the broker stored it."""
    reconsume_times: int = 0
    system_flag: int = 0

    @classmethod
    def of(cls, record: Record) -> FilterMessage:
        return cls(
            topic=record.topic,
            stored_body=record.body,
            properties=record.properties,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset,
            born_timestamp_ms=record.born_timestamp_ms,
            store_timestamp_ms=record.store_timestamp_ms,
            reconsume_times=record.reconsume_times,
            system_flag=record.system_flag,
        )

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(TAGS)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys by which the message can be found."""
        return tuple(self.properties.get(KEYS, "").split())

    @cached_property
    def body(self) -> bytes:
        """The body that the producer sent, decompressed at the first access.

        Raises ValueError if it is damaged or becomes too large.
        """
        try:
            return decompress(self.stored_body, self.system_flag, BODY_BYTES_MAX)
        except UnreadableBody as error:
            raise ValueError(str(error)) from None
