"""Rows of a table as the data plane takes them: Arrow's buffers, column by column."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts or bytes. A row is null where its bit, counted from `first_bit`, is not set in `validity`."""

    data: bytes
    offsets: bytes
    """Four bytes each, one more than there are rows. The first says where `data` begins."""
    validity: bytes | None = None
    first_bit: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """Eight bytes each."""

    values: bytes
    validity: bytes | None = None
    first_bit: int = 0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values; those of a row stand between its offset and the next one's."""

    offsets: bytes
    names: Texts
    values: Texts
    validity: bytes | None = None
    first_bit: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages, one for each row."""

    count: int
    bodies: Texts
    topic: str | None = None
    """Of rows that name none themselves."""
    topics: Texts | None = None
    tags: Texts | None = None
    keys: Texts | None = None
    """Several keys of a row are separated by spaces."""
    properties: Pairs | None = None
    sharding_keys: Texts | None = None
    brokers: Texts | None = None
    queue_ids: Numbers | None = None
    delay_levels: Numbers | None = None
    deliver_ms: Numbers | None = None
