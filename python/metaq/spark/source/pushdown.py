"""Filters of a query that queues and brokers can apply, so that rows they exclude are never read.

Only exact filters are taken from Spark. Conditions on `storeTimestamp` limit what is read as well, but Spark
applies them again. A MetaQ broker never stores a message with an earlier time than the one before, so its
queues are cut at exactly these times. An Apache broker may do so after its clock was set back: of its
messages, which a MetaQ broker may have taken over, `CLOCK_SLACK_MS` more are read on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from metaq.client.session.routes import Queue
from metaq.spark.source.offsets import OFFSET_MAX, Range
from metaq.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

STORE_TIME: Final = "storeTimestamp"
CLOCK_SLACK_MS: Final = 60_000
"""How far a broker's clock may be set back without a condition on times leaving out messages."""

_QUEUE_COLUMNS = {"topic": "topic", "brokerName": "broker", "queueId": "id"}


class FindsOffsets(Protocol):
    """The part of a cluster that finds offsets by time."""

    def offsets_at(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """Returns the offset of the first message that was stored at the time or later."""

    def ordered_since(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns since when the messages of queues are in the order of their store times, if it is known."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The part of a subscription that the filters of a query leave."""

    allowed: tuple[tuple[str, frozenset[Any]], ...] = ()
    """Attributes of queues and the values that they may have."""
    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    tags: frozenset[str] | None = field(default=None)
    from_ms: int | None = None
    to_ms: int | None = None
    """Store times, both included."""

    def wants(self, queue: Queue) -> bool:
        return all(getattr(queue, attribute) in values for attribute, values in self.allowed)

    def cut(self, part: Range) -> Range:
        return _cut(part, self.from_offset, self.to_offset)

    def cut_times(self, cluster: FindsOffsets, ranges: list[Range]) -> list[Range]:
        """Cuts ranges by the store times, as far as the queues know them."""
        queues = [part.queue for part in ranges if part.length]
        if self.from_ms is None and self.to_ms is None:
            return ranges
        since_ms = cluster.ordered_since(queues)
        starts: Mapping[Queue, int] = {}
        ends: Mapping[Queue, int] = {}
        if (first_ms := self.from_ms) is not None:
            starts = cluster.offsets_at(
                {queue: max(first_ms - _slack_ms(first_ms, since_ms.get(queue)), 0) for queue in queues}
            )
        if (last_ms := self.to_ms) is not None:
            # Both times are included, so the range ends at the first message that is later.
            ends = cluster.offsets_at(
                {queue: max(last_ms + _slack_ms(last_ms, since_ms.get(queue)) + 1, 0) for queue in queues}
            )
        return [_cut(part, starts.get(part.queue, 0), ends.get(part.queue, OFFSET_MAX)) for part in ranges]

    def filtered(self, options: SourceOptions) -> SourceOptions:
        return options if self.tags is None else replace(options, tags=" || ".join(sorted(self.tags)))


def _slack_ms(time_ms: int, ordered_since_ms: int | None) -> int:
    """Returns how much more is read on a side. Clocks may have been ahead before a queue was in order."""
    is_ordered = ordered_since_ms is not None and time_ms - CLOCK_SLACK_MS >= ordered_since_ms
    return 0 if is_ordered else CLOCK_SLACK_MS


def _cut(part: Range, from_offset: int, to_offset: int) -> Range:
    first, last = max(part.from_offset, from_offset), min(part.to_offset, to_offset)
    return Range(part.queue, first, max(first, last))


def narrow(options: SourceOptions, filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """Returns the narrowed subscription, and the filters that Spark must apply itself."""
    narrowed, left = Narrowed(), []
    for wanted in filters:
        narrowed = _take_time(narrowed, wanted)
        taken = _take(options, narrowed, wanted)
        if taken is None:
            left.append(wanted)
        else:
            narrowed = taken
    return narrowed, left


def _take(options: SourceOptions, narrowed: Narrowed, wanted: Filter) -> Narrowed | None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

    column = ".".join(getattr(wanted, "attribute", ()))
    value: Any = getattr(wanted, "value", None)
    if isinstance(wanted, EqualTo | In):
        values = frozenset((value,) if isinstance(wanted, EqualTo) else value)
        if column in _QUEUE_COLUMNS:
            return replace(narrowed, allowed=(*narrowed.allowed, (_QUEUE_COLUMNS[column], values)))
        if column == "tags" and _can_filter_tags(options, values) and narrowed.tags is None:
            return replace(narrowed, tags=values)
    if column != "queueOffset" or type(value) is not int:
        return None
    match wanted:
        case EqualTo():
            bounds = (value, value + 1)
        case GreaterThan():
            bounds = (value + 1, OFFSET_MAX)
        case GreaterThanOrEqual():
            bounds = (value, OFFSET_MAX)
        case LessThan():
            bounds = (0, value)
        case LessThanOrEqual():
            bounds = (0, value + 1)
        case _:
            return None
    return replace(
        narrowed,
        from_offset=max(narrowed.from_offset, bounds[0]),
        to_offset=min(narrowed.to_offset, bounds[1]),
    )


def _take_time(narrowed: Narrowed, wanted: Filter) -> Narrowed:
    """Limits the store times. Spark applies the filter too, so the limits may be wider."""
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

    value: Any = getattr(wanted, "value", None)
    if getattr(wanted, "attribute", ()) != (STORE_TIME,) or not isinstance(value, datetime):
        return narrowed
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    try:
        at_ms = int(moment.timestamp() * 1000)
    except (OverflowError, ValueError):
        return narrowed
    if isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual):
        narrowed = replace(narrowed, from_ms=max(at_ms, narrowed.from_ms or 0))
    if isinstance(wanted, EqualTo | LessThan | LessThanOrEqual):
        narrowed = replace(narrowed, to_ms=at_ms if narrowed.to_ms is None else min(at_ms, narrowed.to_ms))
    return narrowed


def _can_filter_tags(options: SourceOptions, values: frozenset[Any]) -> bool:
    """A pull carries one filter, and some texts that a column can be compared with are not tags."""
    # To a broker, no tags mean every message.
    return (
        bool(values)
        and not options.is_filtered
        and all(
            isinstance(tag, str) and tag.strip() == tag and tag not in ("", "*") and "||" not in tag
            for tag in values
        )
    )
