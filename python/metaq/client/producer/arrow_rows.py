"""Rows of a table in the form that the data plane reads: Arrow buffers, column by column."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts or bytes. A row is null if its bit in `validity`, counted from `first_bit`, is 0."""

    data: bytes
    offsets: bytes
    """Four bytes each, one more than there are rows. The first one is where `data` starts."""
    validity: bytes | None = None
    first_bit: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers, eight bytes each."""

    values: bytes
    validity: bytes | None = None
    first_bit: int = 0


@dataclass(frozen=True, slots=True)
class Pairs:
    """A column of maps. The names and values of a row lie between its offset and the next one."""

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
    """The topic of rows that do not name one."""
    topics: Texts | None = None
    tags: Texts | None = None
    keys: Texts | None = None
    """The keys of a row, separated by spaces."""
    properties: Pairs | None = None
    sharding_keys: Texts | None = None
    brokers: Texts | None = None
    queue_ids: Numbers | None = None
    delay_levels: Numbers | None = None
    deliver_ms: Numbers | None = None
