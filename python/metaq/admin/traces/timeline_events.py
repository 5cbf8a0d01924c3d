"""Joins trace entries and stored messages into the events of a timeline. Nothing here asks a server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from metaq.admin.results import Members
from metaq.admin.traces.timelines import EVENT_ORDER, EventKind, TimelineEvent
from metaq.client.message import Message
from metaq.protocol.names import DEAD_LETTER_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, group_of
from metaq.protocol.properties import (
    DEAD_LETTER_ERROR,
    DEAD_LETTER_REASON,
    DELIVER_MS,
    PRODUCER_GROUP,
    REAL_TOPIC,
    RESENT_LETTER,
    TIMER_DELETES,
    TIMER_DUE_MS,
    TIMER_ROLLS,
)
from metaq.protocol.trace_entries import (
    RESULTS,
    TIME_MS_MAX,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceEntry,
)

WAITING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Brokers keep delayed messages and those of later tries in these topics, also after they were due."""
_DECISIONS: Final[dict[str, EventKind]] = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled-back"}
_PROCESS_ID: Final = re.compile(r"@([0-9]+)#")


@dataclass(frozen=True, slots=True)
class Traced:
    """A trace entry and the address that sent it."""

    entry: TraceEntry
    address: str


def ordered(events: Iterable[TimelineEvent]) -> tuple[TimelineEvent, ...]:
    """Sorts events by time; those without a time come last."""
    return tuple(
        sorted(
            events,
            key=lambda event: (event.at_ms is None, event.at_ms or 0, EVENT_ORDER.index(event.kind)),
        )
    )


def clock_difference_ms(events: Iterable[TimelineEvent]) -> int:
    """Returns how much too early the earliest delivery is: no handler gets a message before it is stored."""
    stored: dict[tuple[str | None, int], int] = {}
    delivered: list[tuple[tuple[str | None, int], int]] = []
    for event in events:
        if event.at_ms is None:
            continue
        if event.kind == "stored":
            stored.setdefault((None, 0), event.at_ms)
        elif event.kind == "retried":
            stored.setdefault((event.group, event.retries or 0), event.at_ms)
        elif event.kind == "delivered" and event.retries is not None:
            delivered.append(((event.group if event.retries else None, event.retries), event.at_ms))
    return max((stored[which] - at_ms for which, at_ms in delivered if which in stored), default=0)


# Traces


def traced_events(traced: Iterable[Traced]) -> list[TimelineEvent]:
    """Returns the events that clients have traced. The two entries of a delivery are joined."""
    events: list[TimelineEvent] = []
    before: dict[str, tuple[SubBeforeTrace, str]] = {}
    after: dict[str, tuple[SubAfterTrace, str]] = {}
    for entry, address in dict.fromkeys((one.entry, one.address) for one in traced):
        if isinstance(entry, SubBeforeTrace):
            before[entry.request_id] = entry, address
        elif isinstance(entry, SubAfterTrace):
            after[entry.request_id] = entry, address
        else:
            events.append(_sent(entry, address))
    for request_id in dict.fromkeys((*before, *after)):
        events.append(_delivered(request_id, before.get(request_id), after.get(request_id)))
    return events


def _sent(entry: PubTrace | EndTransactionTrace | RecallTrace, address: str) -> TimelineEvent:
    if isinstance(entry, PubTrace):
        return TimelineEvent(
            "born",
            entry.at_ms,
            "trace",
            group=entry.group,
            address=entry.client_host or address,
            offset_id=entry.offset_id,
            duration_ms=entry.cost_ms,
            result="success" if entry.is_success else "failed",
        )
    if isinstance(entry, EndTransactionTrace):
        kind = _DECISIONS.get(entry.state, "undecided")
        reason = "the broker asked" if entry.is_from_check else None
        return TimelineEvent(kind, entry.at_ms, "trace", group=entry.group, address=address, reason=reason)
    result = "success" if entry.is_success else "failed"
    return TimelineEvent("recalled", entry.at_ms, "trace", group=entry.group, address=address, result=result)


def _delivered(
    request_id: str, before: tuple[SubBeforeTrace, str] | None, after: tuple[SubAfterTrace, str] | None
) -> TimelineEvent:
    event = TimelineEvent("delivered", None, "trace", request_id=request_id)
    if after is not None:
        end, address = after
        at_ms = None if end.at_ms is None else max(end.at_ms - end.cost_ms, 0)
        event = replace(
            event,
            at_ms=at_ms,
            group=end.group,
            address=address,
            duration_ms=end.cost_ms,
            result=_result(end),
        )
    if before is not None:
        begin, address = before
        event = replace(event, at_ms=begin.at_ms, group=begin.group, address=address, retries=begin.retries)
    return event


def _result(end: SubAfterTrace) -> str:
    if end.is_success:
        return "success"
    # Clients that do not tell how a handler failed leave 0, which is success.
    return RESULTS[end.code] if end.code is not None and 0 < end.code < len(RESULTS) else "failed"


def with_clients(events: Iterable[TimelineEvent], members: Mapping[str, Members]) -> Iterable[TimelineEvent]:
    """Adds the ids of the clients that are still connected.

    A client of MetaQ traces through the connection that it consumes with. A Java client has another
    connection for it, but the request id has its address and process id, which its default client id has too.
    """
    for event in events:
        group = members.get(event.group or "")
        if event.kind == "delivered" and group is not None:
            process = _process(event.request_id or "")
            ids = [
                member.client_id
                for member in group.members
                if member.address == event.address or (process and _process_of(member.client_id) == process)
            ]
            yield replace(event, client_id=ids[0]) if len(ids) == 1 else event
        else:
            yield event


def _process(unique_id: str) -> tuple[str, int] | None:
    """Returns the address and the lower half of the process id that made a unique id."""
    try:
        content = bytes.fromhex(unique_id)
        head = content[:-10]
        return str(ip_address(head[:-2])), int.from_bytes(head[-2:], "big")
    except ValueError:
        return None


def _process_of(client_id: str) -> tuple[str, int] | None:
    found = _PROCESS_ID.search(client_id)
    if found is None or len(found[1]) > 10:
        return None
    return client_id[: found.start()], int(found[1]) & 0xFFFF


# Stored messages


def born_event(message: Message) -> TimelineEvent:
    """Returns the birth of a message that its producer did not trace."""
    group = message.system_properties.get(PRODUCER_GROUP)
    # Its producer may have written any number.
    born_ms = message.born_at if 0 <= message.born_at <= TIME_MS_MAX else None
    return TimelineEvent("born", born_ms, "store", group=group, address=message.born_host)


def stored_events(messages: Iterable[Message]) -> list[TimelineEvent]:
    """Returns the events of copies of a message: in its topic, in delay topics, in retry topics and among
    dead letters."""
    events: list[TimelineEvent] = []
    for message in messages:
        properties = message.system_properties
        if TIMER_DELETES in properties:
            events.append(_copy("recalled", message))
        elif message.topic in WAITING_TOPICS:
            if properties.get(TIMER_ROLLS, "0") != "0":
                continue  # A message that waits for days is stored again and again.
            group = group_of(properties.get(REAL_TOPIC, ""))
            kind: EventKind = "scheduled" if group is None else "returned"
            events.append(_copy(kind, message, group=group, due_ms=_due_ms(message)))
        elif (group := group_of(message.topic)) is None:
            events.append(_copy("stored", message))
        elif message.topic.startswith(DEAD_LETTER_PREFIX):
            reason, error = properties.get(DEAD_LETTER_REASON), properties.get(DEAD_LETTER_ERROR)
            events.append(_copy("dead", message, group=group, reason=reason, error_type=error))
        else:
            kind = "resent" if RESENT_LETTER in properties else "retried"
            events.append(_copy(kind, message, group=group))
    return events


def _copy(
    kind: EventKind,
    message: Message,
    *,
    group: str | None = None,
    due_ms: int | None = None,
    reason: str | None = None,
    error_type: str | None = None,
) -> TimelineEvent:
    return TimelineEvent(
        kind,
        message.stored_at,
        "store",
        group=group,
        address=message.store_host,
        queue=message.queue,
        queue_offset=message.queue_offset,
        offset_id=message.offset_id,
        retries=message.reconsume_times if group is not None else None,
        due_ms=due_ms,
        reason=reason,
        error_type=error_type,
    )


def _due_ms(message: Message) -> int | None:
    """Returns when a waiting message is due. The delay of a level is a setting of the broker."""
    for name in (TIMER_DUE_MS, DELIVER_MS):
        text = message.system_properties.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 15 and int(text) <= TIME_MS_MAX:
            return int(text)
    return None
