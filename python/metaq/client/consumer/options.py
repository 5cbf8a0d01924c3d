"""The settings of a consumer, checked where they are given."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from metaq.client.consumer.allocation import Strategy, strategy_named
from metaq.client.consumer.buffers import Limits
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import check_group, check_topic
from metaq.client.session.routes import Queue
from metaq.errors import UsageError
from metaq.protocol.names import RETRY_PREFIX

Mode = Literal["cluster", "broadcast"]
Start = Literal["first", "last"] | datetime
"""Where a group begins that has no offset yet: the oldest message, the next to come, or since a time."""
OnFailure = Literal["broker", "local"]
OnRebalance = Callable[[frozenset[Queue], frozenset[Queue]], Awaitable[None] | None]
"""Called with the queues gained and the queues lost; a plain function in a thread, as it may block."""

_DIRECTORY_VARIABLE: Final = "METAQ_CLIENT_DIRECTORY"


def client_directory() -> Path:
    """Where consumers keep broadcast offsets and parked messages unless told otherwise."""
    return Path(os.environ.get(_DIRECTORY_VARIABLE) or Path.home() / ".metaq" / "client")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Everything a consumer in a group is told; see docs/python-consumers.md."""

    group: str
    subscriptions: tuple[Subscription, ...]
    mode: Mode = "cluster"
    start: Start = "last"
    concurrency: int = 20
    batch: int | None = None
    """How many messages a handler gets at most at once, as a list; None gives it one, as such."""
    ordered: bool = False
    priority: bool = False
    priority_patience: int = 8
    limits: Limits = field(default_factory=Limits)
    strategy: Strategy = field(default_factory=lambda: strategy_named("average"))
    retries_max: int | None = None
    """None leaves it to the group's setting at the broker, and lets a consumer in order retry for ever."""
    suspend: float = 1.0
    """Seconds that a queue rests after a failure in order."""
    pull_count: int = 256
    """A broker may give less: Apache's 32 at most."""
    on_rebalance: OnRebalance | None = None
    offsets_file: Path | None = None
    on_failure: OnFailure = "broker"
    local_after: int = 5
    local_retries_max: int = 16
    local_first_wait: float = 10.0
    local_directory: Path | None = None

    def __post_init__(self) -> None:
        if not self.subscriptions:
            raise ValueError("a consumer needs a topic")
        for name in ("concurrency", "batch", "pull_count", "priority_patience", "local_after"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        for name in ("retries_max", "suspend", "local_retries_max", "local_first_wait"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}: it cannot be negative")
        _one_of("mode", self.mode, ("cluster", "broadcast"))
        _one_of("on_failure", self.on_failure, ("broker", "local"))
        if not isinstance(self.start, datetime):
            _one_of("start", self.start, ("first", "last", "a datetime"))
        if self.ordered and self.mode == "broadcast":
            raise ValueError("ordered needs queue locks, which broadcast mode has not: leave one of them out")

    @property
    def is_broadcast(self) -> bool:
        return self.mode == "broadcast"

    @property
    def retry_topic(self) -> str:
        return RETRY_PREFIX + self.group


class ConsumerKeywords(TypedDict, total=False):
    """The keywords that `consumer` and `subscribe` share, all of which may be left out."""

    tags: str | Iterable[str] | None
    """One tag, several, or `"A || B"`; this, `sql` and `function` exclude each other."""
    sql: str | None
    function: str | None
    """The call of a filter function that the operator has registered."""
    mode: Mode
    start: Start
    concurrency: int
    ordered: bool
    priority: bool
    priority_patience: int
    strategy: str | Strategy
    retries_max: int | None
    suspend: float
    pull_count: int
    buffer_count: int
    buffer_bytes: int
    buffer_span: int
    on_rebalance: OnRebalance | None
    offsets_file: str | Path | None


class HandlerKeywords(ConsumerKeywords, total=False):
    """What `consumer` takes besides."""

    batch: int | None
    on_failure: OnFailure
    local_after: int
    local_retries_max: int
    local_first_wait: float
    local_directory: str | Path | None


def consumer_options(
    topic: str | Iterable[str], group: str, keywords: HandlerKeywords | ConsumerKeywords
) -> ConsumerOptions:
    """Raises UsageError, naming the rule that is broken."""
    given: dict[str, Any] = dict(keywords)
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    for name in topics:
        check_topic(name)
    check_group(group)
    try:
        unknown = given.keys() - HandlerKeywords.__annotations__.keys()
        if unknown:
            raise ValueError(f"a consumer has no option {', '.join(sorted(unknown))}")
        filters = {name: given.pop(name, None) for name in ("tags", "sql", "function")}
        limits = {
            limit: given.pop(name)
            for name, limit in (
                ("buffer_count", "count_max"),
                ("buffer_bytes", "bytes_max"),
                ("buffer_span", "span_max"),
            )
            if name in given
        }
        for name in ("offsets_file", "local_directory"):
            if given.get(name) is not None:
                given[name] = Path(given[name])
        if "strategy" in given:
            given["strategy"] = strategy_named(given["strategy"])
        subscriptions = tuple(Subscription.of(name, **filters) for name in topics)
        return ConsumerOptions(group=group, subscriptions=subscriptions, limits=Limits(**limits), **given)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: it is one of {', '.join(allowed)}")
