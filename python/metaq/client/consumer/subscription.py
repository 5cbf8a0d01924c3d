"""What a consumer wants of a topic, and what its handler may say about a message."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from metaq._core import tag_code
from metaq.protocol.bodies import SubscriptionData

ALL: Final = "*"
TAG: Final = "TAG"
SQL: Final = "SQL92"
FUNCTION: Final = "FUNCTION"

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
"""Level 1 is the first. A retry without a time begins at level 3 and climbs."""
LADDER_LEVEL: Final = 0
DEAD_LETTER_LEVEL: Final = -1


class Retry(Exception):
    """Raised by a handler: give me this message again.

    `after` is in seconds. A broker keeps retries by delay level, so the message comes after the first level
    that is not shorter, at most two hours; without it the wait grows from try to try. Consumers in order and
    those with `on_failure="local"` wait exactly so long.
    """

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        if after is not None and after < 0:
            raise ValueError(f"a message cannot be retried {-after:g} s ago")
        super().__init__(reason)
        self.after = after


class Reject(Exception):
    """Raised by a handler: nobody can handle this message, put it to the group's dead letters."""


def delay_level(after: float | None) -> int:
    """The first level that waits at least so long."""
    if after is None:
        return LADDER_LEVEL
    for level, seconds in enumerate(DELAY_LEVELS_S, start=1):
        if seconds >= after:
            return level
    return len(DELAY_LEVELS_S)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic and the filter on it."""

    topic: str
    expression: str
    kind: str
    tags: frozenset[str]
    version: int
    """When it was made; a broker takes the newest for the group's."""

    @classmethod
    def of(
        cls,
        topic: str,
        *,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        function: str | None = None,
    ) -> Self:
        """Raises ValueError for more than one filter or an empty one."""
        given = [
            name
            for name, value in (("tags", tags), ("sql", sql), ("function", function))
            if value is not None
        ]
        if len(given) > 1:
            raise ValueError(f"a subscription has one filter, not {' and '.join(given)}")
        version = time.time_ns() // 1_000_000
        for kind, expression in ((SQL, sql), (FUNCTION, function)):
            if expression is not None:
                if not expression.strip():
                    raise ValueError(f"the filter {given[0]} is empty")
                return cls(topic, expression, kind, frozenset(), version)
        wanted = frozenset(_split(tags))
        if tags is not None and not wanted:
            raise ValueError("the filter tags is empty; leave it out to get every message")
        if ALL in wanted:
            wanted = frozenset()
        return cls(topic, " || ".join(sorted(wanted)) or ALL, TAG, wanted, version)

    def wants(self, tag: str | None) -> bool:
        """A broker compares hashes only; the tags themselves are compared here."""
        return not self.tags or tag in self.tags

    def data(self) -> SubscriptionData:
        """As heartbeats carry it."""
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
    return [word.strip() for word in words if word.strip()]
