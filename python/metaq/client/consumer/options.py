"""The options of a consumer, checked when they are given."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from metaq.client.consumer.allocation import Strategy, strategy_named
from metaq.client.consumer.offsets.positions import Position, Start
from metaq.client.consumer.pull.buffers import Limits, check_whole
from metaq.client.consumer.pull.read_nodes import ReadFrom, check_read_from
from metaq.client.consumer.retry_policy import RetryPolicy
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import check_group, check_topic
from metaq.client.producer.options import check_timeout
from metaq.client.session.routes import Queue
from metaq.errors import UsageError
from metaq.position_words import warn_of_old_word
from metaq.protocol.names import retry_topic
from metaq.suggestions import unknown_options

Mode = Literal["cluster", "broadcast"]
OnFailure = Literal["broker", "local"]
LOCAL_BYTES_MAX: Final = 1024**3
KeepOffsets = Literal["file", "memory"]
OnRebalance = Callable[[frozenset[Queue], frozenset[Queue]], Awaitable[None] | None]
"""Called with the queues gained and the queues lost. A plain function runs in a thread, as it may block."""

_DIRECTORY_VARIABLE: Final = "METAQ_CLIENT_DIRECTORY"


def client_directory() -> Path:
    """Returns the directory for broadcast offsets and locally stored messages, unless an option names one."""
    return Path(os.environ.get(_DIRECTORY_VARIABLE) or Path.home() / ".metaq" / "client")


class ConsumerKeywords(TypedDict, total=False):
    """The keyword options of `consumer` and `subscribe`. All are optional."""

    tags: str | Iterable[str] | None
    """One tag, several tags, or `"A || B"`. `tags`, `sql` and `function` exclude each other."""
    sql: str | None
    """A SQL92 expression over the properties."""
    function: str | None
    """A call of a filter function that the operator has registered."""
    mode: Mode
    """Whether members share the messages ("cluster", the default) or each gets all ("broadcast")."""
    start: Start
    """The start of a group without a committed offset: "earliest", "latest" (default) or a datetime."""
    concurrency: int
    """How many calls of the handler run at a time (default 20)."""
    ordered: bool
    """Whether the messages of a queue are processed one after the other (default False)."""
    priority: bool
    """Whether queues with a higher id come first (default False)."""
    priority_patience: int
    """After how many messages of a higher queue a lower one has its turn (default 8)."""
    strategy: str | Strategy
    """How queues are divided among members: "average" (default), "circular", "sticky" or a function."""
    retries_max: int | None
    """After how many retries a message becomes a dead letter; None (default) leaves it to the broker."""
    suspend: float
    """For how many seconds an ordered queue rests after a failure (default 1.0)."""
    pull_count: int
    """How many messages one pull asks for (default 256)."""
    buffer_count: int
    """How many unsettled messages of one queue are held at most (default 1000)."""
    buffer_bytes: int
    """How many bytes of unsettled messages are held at most in all (default 100 MiB)."""
    buffer_span: int
    """How far apart the oldest and the newest unsettled offset of a queue may be (default 2000)."""
    retry: RetryPolicy | None
    """How long failed messages wait and how often they come again; None (default) leaves it to the broker."""
    on_rebalance: OnRebalance | None
    """Called when queues are gained or lost."""
    offsets: KeepOffsets
    """The store of broadcast mode: a "file" (default), or "memory", which a restart forgets."""
    offsets_file: str | Path | None
    """The file in which broadcast mode keeps its offsets; by default each process has one of its own."""
    read_from: ReadFrom
    """Which node of a broker is read: the "master" (default), or a "replica" if there is one."""


class HandlerKeywords(ConsumerKeywords, total=False):
    """The keyword options of `consumer` besides `batch`. All are optional."""

    handler_timeout: float | None
    """After how many seconds a call of the handler counts as failed (default None: never)."""
    on_failure: OnFailure
    """Whether the "broker" (default) retries failed messages, or this machine ("local")."""
    local_after: int
    """After how many failures a message is stored locally (default 5)."""
    local_retries_max: int
    """After how many local retries a message becomes a dead letter (default 16)."""
    local_first_wait: float
    """For how many seconds the first local retry waits; the time doubles with each (default 10.0)."""
    local_directory: str | Path | None
    """The directory of locally stored messages."""
    local_bytes_max: int
    """How many bytes of messages are stored locally at most (default 1 GiB)."""


class PullerKeywords(TypedDict, total=False):
    """The keyword options of `puller`. All are optional."""

    group: str | None
    """The group whose offsets are read and committed; without one there are no committed offsets."""
    tags: str | Iterable[str] | None
    """One tag, several tags, or `"A || B"`. `tags`, `sql` and `function` exclude each other."""
    sql: str | None
    """A SQL92 expression over the properties."""
    function: str | None
    """A call of a filter function that the operator has registered."""
    start: Position
    """The start of a queue without a committed offset (default "latest")."""
    buffer_count: int
    """How many messages of one queue are read ahead at most (default 1000)."""
    buffer_bytes: int
    """How many bytes are read ahead at most in all (default 100 MiB)."""
    read_from: ReadFrom
    """Which node of a broker is read: the "master" (default), or a "replica" if there is one."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """All options of a consumer in a group, checked; see docs/python-consumers.md."""

    group: str
    subscriptions: tuple[Subscription, ...]
    mode: Mode = "cluster"
    start: Start = "latest"
    concurrency: int = 20
    batch: int | None = None
    ordered: bool = False
    priority: bool = False
    priority_patience: int = 8
    limits: Limits = field(default_factory=Limits)
    strategy: Strategy = field(default_factory=lambda: strategy_named("average"))
    retries_max: int | None = None
    """None leaves it to the group's setting at the broker, and an ordered consumer retries for ever."""
    suspend: float = 1.0
    pull_count: int = 256
    """A broker may return fewer; Apache's returns at most 32."""
    handler_timeout: float | None = None
    retry: RetryPolicy | None = None
    on_rebalance: OnRebalance | None = None
    offsets: KeepOffsets = "file"
    offsets_file: Path | None = None
    read_from: ReadFrom = "master"
    on_failure: OnFailure = "broker"
    local_after: int = 5
    local_retries_max: int = 16
    local_first_wait: float = 10.0
    local_directory: Path | None = None
    local_bytes_max: int = LOCAL_BYTES_MAX

    def __post_init__(self) -> None:
        if not self.subscriptions:
            raise ValueError("a consumer needs a topic")
        for name in ("concurrency", "pull_count", "priority_patience", "local_after", "local_bytes_max"):
            check_whole(name, getattr(self, name))
        if self.batch is not None:
            check_whole("batch", self.batch)
        for name, kind in (
            ("retries_max", int),
            ("local_retries_max", int),
            ("suspend", float),
            ("local_first_wait", float),
        ):
            if name != "retries_max" or self.retries_max is not None:
                _check_not_negative(name, getattr(self, name), kind)
        if self.handler_timeout is not None:
            check_timeout(self.handler_timeout, "handler_timeout")
        self._check_retry()
        if self.on_rebalance is not None and not callable(self.on_rebalance):
            raise ValueError(f"on_rebalance is {self.on_rebalance!r}: it must be a function")
        _check_choice("mode", self.mode, ("cluster", "broadcast"))
        _check_choice("offsets", self.offsets, ("file", "memory"))
        if self.offsets == "memory" and self.offsets_file is not None:
            raise ValueError('offsets="memory" and offsets_file exclude each other: leave one of them out')
        _check_choice("on_failure", self.on_failure, ("broker", "local"))
        check_read_from(self.read_from)
        if not isinstance(self.start, datetime):
            _check_choice("start", self.start, ("earliest", "latest", "a datetime"))
        if self.ordered and self.mode == "broadcast":
            raise ValueError("ordered needs queue locks, which broadcast mode lacks: leave one of them out")

    def _check_retry(self) -> None:
        if self.retry is None:
            return
        if not isinstance(self.retry, RetryPolicy):
            raise ValueError(f"retry is {self.retry!r}: it must be a metaq.RetryPolicy")
        if self.retries_max is not None:
            raise ValueError("retry has a retries_max of its own: leave one of the two out")
        if self.mode == "broadcast":
            raise ValueError(
                "retry needs retries of a group, which broadcast mode lacks: leave one of them out"
            )
        if self.on_failure == "local":
            raise ValueError(
                'retry and on_failure="local" exclude each other: local_first_wait and local_retries_max set '
                "the delays of local retry"
            )
        if self.ordered and self.retry.exact:
            raise ValueError("an ordered queue always waits exactly: leave out exact")
        object.__setattr__(self, "retries_max", self.retry.retries_max)

    @property
    def is_broadcast(self) -> bool:
        return self.mode == "broadcast"

    @property
    def retry_topic(self) -> str:
        return retry_topic(self.group)


def consumer_options(
    topic: str | Iterable[str],
    group: str,
    keywords: HandlerKeywords | ConsumerKeywords,
    batch: int | None = None,
) -> ConsumerOptions:
    """Checks the options of one consumer. Raises UsageError, which names the broken rule."""
    given: dict[str, Any] = dict(keywords)
    given.setdefault("batch", batch)
    if not isinstance(topic, Iterable):
        raise UsageError(f"topic is {topic!r}: it must be a name or several names")
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    for name in topics:
        check_topic(name)
    check_group(group)
    try:
        unknown = given.keys() - HandlerKeywords.__annotations__.keys() - {"batch"}
        if unknown:
            known = [*HandlerKeywords.__annotations__, "batch"]
            text, hint = unknown_options("a consumer", unknown, known)
            raise UsageError(text, hint=hint)
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
        if "start" in given:
            given["start"] = warn_of_old_word(given["start"])
        if "strategy" in given:
            given["strategy"] = strategy_named(given["strategy"])
        subscriptions = tuple(Subscription.of(name, **filters) for name in topics)
        return ConsumerOptions(group=group, subscriptions=subscriptions, limits=Limits(**limits), **given)
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def _check_not_negative(name: str, value: object, kind: type) -> None:
    allowed, says = (int, "a whole number") if kind is int else ((int, float), "a number of seconds")
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise ValueError(f"{name} is {value!r}: it must be {says}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}: it cannot be negative or infinite")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(allowed)}")
