"""The timeline of one message, on asyncio: from the traces of clients and the messages that brokers store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.groups.consumer_groups import ConsumerGroups
from metaq.admin.messages.stored_messages import LIMIT, query
from metaq.admin.offsets import Offsets
from metaq.admin.results import BrokerFailure
from metaq.admin.topics import Topics
from metaq.admin.traces.group_states import NOT_RECORDED, group_state
from metaq.admin.traces.timeline_events import (
    WAITING_TOPICS,
    Traced,
    born_event,
    clock_difference_ms,
    ordered,
    stored_events,
    traced_events,
    with_clients,
)
from metaq.admin.traces.timelines import Timeline, TimelineEvent, TimelineGroup
from metaq.client.compression import COMPRESSED
from metaq.client.message import Message, inflate
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute, NoSuchMessage, UnreadableBody, UsageError
from metaq.protocol.commands.offsets import GetEarliestMessageStoreTime, StoreTime
from metaq.protocol.errors import Refused
from metaq.protocol.names import (
    RETRY_PREFIX,
    TRACE_TOPIC,
    dead_letter_topic,
    group_fault,
    is_system_group,
    retry_topic,
    topic_fault,
)
from metaq.protocol.properties import REAL_TOPIC, TRACE_ON
from metaq.protocol.trace_entries import (
    TIME_MS_MAX,
    TYPES,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    select,
)

TRACEPARENT: Final = "traceparent"
"""The property that carries a context of OpenTelemetry."""
TRACED_GROUPS_MAX: Final = 100
"""Groups that only traces name and that are looked at."""


TRACE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bodies of trace messages that one timeline reads, decompressed. Anybody can send messages with any id
as their key, and a compressed body of some hundred bytes may have millions of entries."""
BODY_BYTES_MAX: Final = 512 * 1024
"""The largest body that is read. By default, clients send 128,000 bytes at most."""
ENTRIES_MAX: Final = 10_000
"""The entries that one timeline reads."""


@dataclass(slots=True)
class _Found:
    """The facts that are known so far."""

    id: str
    topic: str | None
    traced: list[Traced] = field(default_factory=list)
    stored: list[Message] = field(default_factory=list)
    """In the topic of the message."""
    copies: list[Message] = field(default_factory=list)
    """In other topics."""
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    failures: dict[str, BrokerFailure] = field(default_factory=dict)

    @property
    def first(self) -> Message | None:
        return next(iter((*self.stored, *self.copies)), None)

    @property
    def pub(self) -> PubTrace | None:
        return next((one.entry for one in self.traced if isinstance(one.entry, PubTrace)), None)


class Traces:
    """Tells what happened to one message. Nothing is consumed by it."""

    def __init__(self, calls: Calls, offsets: Offsets, topics: Topics, groups: ConsumerGroups) -> None:
        self._calls = calls
        self._offsets = offsets
        self._topics = topics
        self._groups = groups

    async def timeline(
        self, id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC
    ) -> Timeline:
        """Joins the traces of a message and the copies that brokers store into a timeline.

        `id` is the id that its producer got. Without `topic`, the trace of its producer must name the topic.
        `notes` say what is not known. Raises NoSuchMessage and NoRoute.
        """
        if not id.strip():
            raise UsageError("the id is empty", hint="use the id that the producer got")
        found = _Found(id, topic)
        has_traces = await self._read_traces(found, trace_topic)
        if found.topic is None:
            found.topic = _traced_topic(found.traced)
        groups: tuple[str, ...] = ()
        if found.topic is not None:
            groups = await self._read_store(found, is_given=topic is not None)
        if not found.traced and found.first is None:
            raise _missing(found, trace_topic)
        if found.topic is None:
            found.notes.append("the topic is not known, so no broker was asked: name the topic")
        if has_traces and not found.traced:
            if found.failures:
                found.notes.append("the brokers that answered have no traces")
            else:
                found.notes.append(_why_untraced(found.first, await self._kept_since_ms(trace_topic)))
        return await self._joined(found, groups)

    # Questions

    async def _query(self, found: _Found, topic: str, *, is_id: bool) -> tuple[Message, ...]:
        messages, failures = await query(self._calls, topic, found.id, is_id=is_id)
        found.failures.update({failure.broker: failure for failure in failures})
        return messages

    async def _read_traces(self, found: _Found, trace_topic: str) -> bool:
        """Returns whether the trace topic exists."""
        try:
            messages = await self._query(found, trace_topic, is_id=False)
        except NoRoute as error:
            if error.retriable:
                raise
            found.notes.append(f"there are no traces: the topic {trace_topic} does not exist")
            return False
        if len(messages) >= LIMIT:
            found.notes.append(f"only the newest {LIMIT} trace messages were read")
        read = await asyncio.to_thread(read_traces, messages, found.id)
        found.traced += read.traced
        found.skipped += read.skipped
        if found.skipped:
            found.notes.append(f"{found.skipped} trace entries could not be read")
        if read.unread:
            found.notes.append(
                f"{read.unread} of {len(messages)} trace messages were not read to their end: a timeline"
                f" reads {ENTRIES_MAX:,} entries and {TRACE_BYTES_MAX >> 20} MiB"
            )
        return True

    async def _read_store(self, found: _Found, *, is_given: bool) -> tuple[str, ...]:
        """Finds the message and its copies. Returns the groups that consume the topic."""
        assert found.topic is not None
        try:
            found.stored = list(await self._query(found, found.topic, is_id=True))
            consuming = await self._topics.groups(found.topic)
        except (NoRoute, Refused) as error:
            if is_given or error.retriable:
                raise
            found.notes.append(f"the topic that the trace names cannot be read: {error}")
            return ()
        traced = _consumer_groups(found.traced)
        if len(traced) > TRACED_GROUPS_MAX:
            found.notes.append(f"the traces name {len(traced)} groups; {TRACED_GROUPS_MAX} were looked at")
        groups = sorted({*consuming, *traced[:TRACED_GROUPS_MAX]})
        groups = [group for group in groups if not is_system_group(group)]
        topics = [name for group in groups for name in (retry_topic(group), dead_letter_topic(group))]
        copies = await in_parallel((*WAITING_TOPICS, *topics), lambda name: self._copies(found, name))
        found.copies = [message for messages in copies.values() for message in messages]
        return tuple(groups)

    async def _copies(self, found: _Found, topic: str) -> list[Message]:
        try:
            copies = await self._query(found, topic, is_id=True)
        except NoRoute as error:
            if error.retriable:
                raise
            return []
        except Refused as error:
            found.notes.append(f"{topic} cannot be read: {error}")
            return []
        if topic not in WAITING_TOPICS:
            return list(copies)
        # The same id may have been used in another topic.
        goals = ((copy, copy.system_properties.get(REAL_TOPIC, "")) for copy in copies)
        return [copy for copy, goal in goals if goal == found.topic or goal.startswith(RETRY_PREFIX)]

    async def _kept_since_ms(self, trace_topic: str) -> int | None:
        """Returns how old the oldest trace is; None if no trace was deleted yet."""
        queues = (await self._calls.route(trace_topic)).readable
        bounds = await self._offsets.bounds(queues)

        async def oldest_ms(queue: Queue) -> int:
            command = GetEarliestMessageStoreTime(topic=queue.topic, queue_id=queue.id)
            reply = await self._calls.ask(queue.broker, command, any_node=True)
            return reply.header(StoreTime).timestamp

        shortened = [queue for queue in queues if bounds[queue].first > 0]
        return max((await in_parallel(shortened, oldest_ms)).values(), default=None)

    # Joining

    async def _joined(self, found: _Found, groups: Sequence[str]) -> Timeline:
        pub, first = found.pub, found.first
        members = await in_parallel(groups, self._groups.members)
        for one in members.values():
            found.failures.update({failure.broker: failure for failure in one.failures})
        events = [*traced_events(found.traced), *stored_events((*found.stored, *found.copies))]
        if pub is None and first is not None:
            events.append(born_event(first))
        if any(event.kind == "recalled" and event.source == "trace" for event in events):
            events = [event for event in events if event.kind != "recalled" or event.source == "trace"]
        timeline = ordered(with_clients(events, members))
        if not found.stored and any(_is_end(event) for event in timeline):
            groups = ()  # Nobody will get it.
        tag = first.tag if first is not None else pub.tag if pub is not None else None
        states = await in_parallel(
            groups, lambda group: group_state(self._offsets, group, members[group], timeline, tag)
        )
        found.notes += _unknowns(found, timeline, states.values())
        keys = first.keys if first is not None else tuple(((pub and pub.keys) or "").split())
        return Timeline(
            id=found.id,
            topic=found.topic,
            tag=tag,
            keys=keys,
            type=TYPES[pub.type] if pub is not None and 0 <= pub.type < len(TYPES) else None,
            body_bytes=pub.body_bytes if pub is not None else None,
            traceparent=first.properties.get(TRACEPARENT) if first is not None else None,
            events=timeline,
            groups=tuple(states.values()),
            notes=tuple(found.notes),
            skipped_entries=found.skipped,
            failures=tuple(found.failures[broker] for broker in sorted(found.failures)),
        )


@dataclass(slots=True)
class ReadTraces:
    """The entries of trace messages about one message."""

    traced: list[Traced] = field(default_factory=list)
    skipped: int = 0
    """Bodies and entries that could not be read."""
    unread: int = 0
    """Messages that were not read, or only in part, because of the limits."""
    bytes: int = 0
    """The bytes that were read. A body that is too large counts with its limit."""


def read_traces(messages: Sequence[Message], id: str) -> ReadTraces:
    """Reads trace messages within the limits of one timeline."""
    read = ReadTraces()
    looked_at = 0
    for message in messages:
        bytes_max = min(TRACE_BYTES_MAX - read.bytes, BODY_BYTES_MAX)
        stored, system_flag = message.stored_body
        is_compressed = bool(system_flag & COMPRESSED)
        if bytes_max <= 0 or looked_at >= ENTRIES_MAX or (len(stored) > bytes_max and not is_compressed):
            read.unread += 1
            continue
        try:
            body = inflate(stored, system_flag, bytes_max)
        except UnreadableBody:
            # It is damaged, or too large.
            read.skipped += 1
            read.bytes += bytes_max
            continue
        read.bytes += len(body)
        found = select(body, id, ENTRIES_MAX - looked_at)
        looked_at += found.looked_at
        read.skipped += found.skipped
        read.unread += not found.is_whole
        read.traced += [Traced(entry, message.born_host) for entry in found.entries]
    return read


def _why_untraced(message: Message | None, kept_since_ms: int | None) -> str:
    if message is not None and message.system_properties.get(TRACE_ON) == "false":
        return "there are no traces: the broker asks clients not to trace its messages"
    if message is not None and kept_since_ms is not None and message.born_at < kept_since_ms:
        since_s = min(kept_since_ms, TIME_MS_MAX) / 1000
        since = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"there are no traces: they are kept since {since}, and the message is older"
    return "there are no traces: neither the producer nor a consumer recorded one"


def _is_end(event: TimelineEvent) -> bool:
    return event.kind == "rolled-back" or (event.kind == "recalled" and event.result != "failed")


def _consumer_groups(traced: Iterable[Traced]) -> list[str]:
    """Returns the groups of consumers that traces name; anybody can write traces, with any name."""
    groups = (one.entry.group for one in traced if isinstance(one.entry, SubBeforeTrace | SubAfterTrace))
    return list(dict.fromkeys(group for group in groups if group is not None and group_fault(group) is None))


def _traced_topic(traced: Iterable[Traced]) -> str | None:
    for one in traced:
        if isinstance(one.entry, PubTrace | EndTransactionTrace | RecallTrace):
            topic = one.entry.topic
            if topic is not None and topic_fault(topic) is None:
                return topic
    return None


def _missing(found: _Found, trace_topic: str) -> NoSuchMessage:
    if found.topic is None:
        hint = "name its topic to ask the brokers; without tracing only they know it"
        return NoSuchMessage(f"{trace_topic} has no trace of a message with the id {found.id}", hint=hint)
    hint = "its retention may have passed, or it was sent to another topic"
    return NoSuchMessage(f"neither {found.topic} nor {trace_topic} has a message {found.id}", hint=hint)


def _unknowns(
    found: _Found,
    events: Iterable[TimelineEvent],
    groups: Iterable[TimelineGroup],
) -> list[str]:
    """Returns what the events do not tell."""
    events = list(events)
    notes = []
    kinds = {event.kind for event in events}
    if found.topic is not None and not found.stored and not kinds & {"scheduled", "rolled-back", "recalled"}:
        notes.append(
            f"no broker has the message in {found.topic}: its retention has passed, or its transaction is "
            "not committed"
        )
    if found.traced and found.pub is None:
        notes.append("the send has no trace: its producer recorded none")
    traced = {event.group for event in events if event.kind == "delivered"}
    for group in groups:
        if found.traced and group.group not in traced and group.state in ("retrying", "dead"):
            notes.append(f"group {group.group}: no delivery is recorded, only the copies that brokers store")
        if group.reason not in (None, NOT_RECORDED) and group.state != "dead":
            notes.append(f"group {group.group}: {group.reason}")
    if any(event.kind == "delivered" and event.result is None for event in events):
        notes.append("a delivery has no result: its handler runs, or its client ended without a trace")
    if (difference_ms := clock_difference_ms(events)) > 0:
        notes.append(
            f"the clocks of the machines differ by at least {difference_ms} ms, so the order may be wrong"
        )
    notes += [
        f"broker {failure.broker} did not answer: {failure.reason}" for failure in found.failures.values()
    ]
    return notes
