"""Filters of a query that queues and brokers can apply, so that rows they exclude are never read.

Only exact filters are taken. Filters on times are not exact: a broker's clock may have been set back between
two messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from metaq.client.session.routes import Queue
from metaq.spark.source.offsets import OFFSET_MAX, Range
from metaq.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_QUEUE_COLUMNS = {"topic": "topic", "brokerName": "broker", "queueId": "id"}


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The part of a subscription that the filters of a query leave."""

    allowed: tuple[tuple[str, frozenset[Any]], ...] = ()
    """Attributes of queues and the values that they may have."""
    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    tags: frozenset[str] | None = field(default=None)

    def wants(self, queue: Queue) -> bool:
        return all(getattr(queue, attribute) in values for attribute, values in self.allowed)

    def cut(self, part: Range) -> Range:
        first, last = max(part.from_offset, self.from_offset), min(part.to_offset, self.to_offset)
        return Range(part.queue, first, max(first, last))

    def filtered(self, options: SourceOptions) -> SourceOptions:
        return options if self.tags is None else replace(options, tags=" || ".join(sorted(self.tags)))


def narrow(options: SourceOptions, filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """Returns the narrowed subscription, and the filters that Spark must apply itself."""
    narrowed, left = Narrowed(), []
    for wanted in filters:
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
