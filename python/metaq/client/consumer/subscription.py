"""Subscriptions to topics, and the errors with which a handler settles a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self, overload

from metaq._core import tag_code
from metaq.client.clock import now_ms, seconds_of
from metaq.errors import UsageError
from metaq.protocol.bodies import ALL_TAGS, FUNCTION, SQL92, TAG, SubscriptionData

DELAY_LEVELS_S: Final = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)
"""The delays that a broker supports for retries; the first is level 1."""
LADDER_LEVEL: Final = 0
"""The broker chooses the delay: level 3 for the first retry, one level more for each further one."""
DEAD_LETTER_LEVEL: Final = -1


class Retry(Exception):
    """Raise this in a handler to get the message again: `Retry(60)`, `Retry(after=timedelta(minutes=1))`.

    `after` is in seconds, or a timedelta. A broker only supports certain delays, so it uses the next longer
    one, at most two hours. Without `after` the delay grows with every attempt. Ordered consumers and
    consumers with `on_failure="local"` wait exactly that long. Raises UsageError.
    """

    after: float | None
    """The delay in seconds."""

    @overload
    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None: ...
    @overload
    def __init__(self, after: float | timedelta, reason: str = "") -> None: ...
    def __init__(
        self,
        *positional: str | float | timedelta,
        reason: str = "",
        after: float | timedelta | None = None,
    ) -> None:
        for value in positional:
            if isinstance(value, str):
                reason = value
            else:
                after = value
        super().__init__(reason)
        self.after = retry_seconds(after)


class Reject(Exception):
    """Raise this in a handler to send the message to the group's dead letters without further retries."""


def retry_seconds(after: float | timedelta | None) -> float | None:
    """Returns the delay of a retry in seconds. Raises UsageError."""
    if after is None:
        return None
    seconds = seconds_of(after)
    if seconds is None:
        raise UsageError(f"after is {after!r}: it must be a timedelta or seconds, and it cannot be negative")
    return seconds


def delay_level(after: float | None) -> int:
    """Returns the first level that waits at least that many seconds."""
    if after is None:
        return LADDER_LEVEL
    for level, seconds in enumerate(DELAY_LEVELS_S, start=1):
        if seconds >= after:
            return level
    return len(DELAY_LEVELS_S)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and the filter on its messages."""

    topic: str
    expression: str
    kind: str
    tags: frozenset[str]
    version: int
    """The time of its creation. A pull with a newer one than the last heartbeat is out of date."""

    @classmethod
    def of(
        cls,
        topic: str,
        *,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        function: str | None = None,
    ) -> Self:
        """Makes a subscription with at most one filter. Raises ValueError for several or an empty one."""
        given = [
            name
            for name, value in (("tags", tags), ("sql", sql), ("function", function))
            if value is not None
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: use only one filter")
        version = now_ms()
        for kind, expression in ((SQL92, sql), (FUNCTION, function)):
            if expression is not None:
                _check_text(given[0], expression)
                if not expression.strip():
                    raise ValueError(f"the filter {given[0]} is empty")
                return cls(topic, expression, kind, frozenset(), version)
        wanted = frozenset(_split(tags))
        if tags is not None and not wanted:
            raise ValueError("the filter tags is empty; leave it out to get every message")
        if ALL_TAGS in wanted:
            wanted = frozenset()
        return cls(topic, " || ".join(sorted(wanted)) or ALL_TAGS, TAG, wanted, version)

    def wants(self, tag: str | None) -> bool:
        """Returns whether the tag is wanted. Brokers only compare hashes, so we compare the tags again."""
        return not self.tags or tag in self.tags

    def data(self) -> SubscriptionData:
        """Returns the subscription in the form that heartbeats carry."""
        tags = sorted(self.tags)
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            expression_type=self.kind,
            sub_version=self.version,
            tags_set=tags,
            code_set=[tag_code(tag) for tag in tags],
        )


def _split(tags: str | Iterable[str] | None) -> list[str]:
    if tags is None:
        return []
    words = tags.split("||") if isinstance(tags, str) else list(tags)
    for word in words:
        _check_text("tags", word)
    return [word.strip() for word in words if word.strip()]


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"the filter {name} is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the filter {name} contains a lone surrogate, which UTF-8 cannot encode") from None
