"""Positions in a queue, as callers name them: "earliest", "latest", a time or a queue offset."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

from metaq.client.consumer.offsets.storage import earliest_offset, latest_offset, offset_at
from metaq.errors import UsageError
from metaq.position_words import warn_of_old_word

if TYPE_CHECKING:
    from metaq.client.session.routes import Queue
    from metaq.client.session.session import Session

Start = Literal["earliest", "latest"] | datetime
"""The start of a group without a committed offset: the oldest message, the next one, or a time."""

Position = int | Start
"""A queue offset, a time, or one of the two ends of the queue."""


def checked_position(position: Position) -> Position:
    """Returns the position, with the current word for an old one. Raises UsageError unless it is one."""
    position = cast("Position", warn_of_old_word(position))
    is_offset = isinstance(position, int) and not isinstance(position, bool) and position >= 0
    if not (is_offset or isinstance(position, datetime) or position in ("earliest", "latest")):
        raise UsageError(
            f"{position!r} is not a position", hint="use an offset, a datetime, 'earliest' or 'latest'"
        )
    return position


async def resolve_position(session: Session, queue: Queue, position: Position) -> int:
    """Returns the queue offset of a position; asks the broker unless it is an offset already."""
    if isinstance(position, datetime):
        return await offset_at(session, queue, int(position.timestamp() * 1000))
    if position == "earliest":
        return await earliest_offset(session, queue)
    if position == "latest":
        return await latest_offset(session, queue)
    return position
