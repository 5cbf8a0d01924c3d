"""How far each group is with one message, by its committed offsets, its retries and its traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from metaq.admin.offsets import Offsets
from metaq.admin.results import Members
from metaq.admin.traces.timelines import GroupState, TimelineEvent, TimelineGroup

_TRIES = ("returned", "retried", "resent", "dead")
NOT_RECORDED: Final = "no delivery recorded"
"""A reset or a filter may have skipped the message, or the group's consumers do not trace."""


async def group_state(
    offsets: Offsets,
    group: str,
    members: Members,
    events: Iterable[TimelineEvent],
    tag: str | None,
) -> TimelineGroup:
    """Returns how far a group is with the message of these events, which are in the order of time."""
    stored: TimelineEvent | None = None
    last_try: TimelineEvent | None = None
    last_delivery: TimelineEvent | None = None
    is_scheduled = False
    for event in events:
        if event.kind == "stored":
            stored = event
        elif event.kind == "scheduled":
            is_scheduled = True
        elif event.group == group and event.kind in _TRIES:
            last_try = event
        elif event.group == group and event.kind == "delivered":
            last_delivery = event
    committed = None if stored is None else await _committed(offsets, group, stored)

    def result(state: GroupState, reason: str | None = None) -> TimelineGroup:
        return TimelineGroup(group, state, committed, len(members.members), reason)

    if last_try is not None:
        return result(*await _after_tries(offsets, group, last_try, last_delivery))
    if members.is_broadcasting:
        return result("unknown", "its consumers broadcast and keep their offsets themselves")
    if last_delivery is not None and last_delivery.result == "success":
        return result("consumed")
    if stored is None or stored.queue_offset is None:
        return (
            result("waiting") if is_scheduled else result("unknown", "no broker has the message in the topic")
        )
    if committed is None:
        return result("unknown", "it has not committed an offset in the queue of the message")
    if committed <= stored.queue_offset:
        return result("waiting")
    if last_delivery is not None and last_delivery.result is not None:
        return result("passed", f"its last recorded delivery ended with {last_delivery.result}")
    if stored.queue is not None and last_delivery is None:
        return result(*_passed(members, stored.queue.topic, tag))
    return result("consumed")


async def _committed(offsets: Offsets, group: str, stored: TimelineEvent) -> int | None:
    if stored.queue is None:
        return None
    return (await offsets.committed(group, [stored.queue]))[stored.queue]


async def _after_tries(
    offsets: Offsets, group: str, last_try: TimelineEvent, last_delivery: TimelineEvent | None
) -> tuple[GroupState, str | None]:
    if last_try.kind == "dead":
        return "dead", last_try.reason
    if last_try.kind == "returned" or last_try.queue_offset is None:
        return "retrying", None
    is_later = (
        last_delivery is not None
        and last_delivery.at_ms is not None
        and last_try.at_ms is not None
        and last_delivery.at_ms >= last_try.at_ms
    )
    if is_later and last_delivery is not None and last_delivery.result == "success":
        return "consumed", None
    committed = await _committed(offsets, group, last_try)
    if committed is None or committed <= last_try.queue_offset:
        return "retrying", None
    if not is_later:
        return "passed", NOT_RECORDED
    if last_delivery is not None and last_delivery.result is not None:
        return "passed", f"its last recorded delivery ended with {last_delivery.result}"
    return "consumed", None


def _passed(members: Members, topic: str, tag: str | None) -> tuple[GroupState, str | None]:
    """Returns the state of a group whose offset is past the message and that has no trace of it."""
    subscription = next((one for one in members.subscriptions if one.topic == topic), None)
    if subscription is not None and subscription.expression_type != "TAG":
        return (
            "passed",
            f"{NOT_RECORDED}; its {subscription.expression_type} filter may have skipped the message",
        )
    if subscription is not None:
        tags = {word.strip() for word in subscription.expression.split("||")} - {""}
        if tags and "*" not in tags and tag not in tags:
            return "filtered", f"it consumes {subscription.expression}"
    return "passed", NOT_RECORDED
