"""Actions that move a consumer group: reset it to a position, or clone the position of another group.

The end of a busy queue moves all the time. So the plan that a person has seen is kept, and applying it checks
that it still means the same: the queues hold the planned offsets, and the group moves in the direction that
was shown. Then exactly that plan is applied.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Final

from metaq.admin.positions import Position
from metaq.admin.results import BrokerFailure, QueueReset, Reset
from metaq.client.session.routes import Queue
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.actions.groups import group_path
from metaq.console.actions.silence import silence_warnings, silent_brokers
from metaq.console.rendering import utc_offset_min
from metaq.protocol.names import RETRY_PREFIX

PLANS_MAX: Final = 100
PLAN_AGE_S_MAX: Final = 180.0
"""An older plan is made anew, because the numbers of messages in its preview are no longer true."""
ROWS_MAX: Final = 200
"""Queues that a preview shows."""
TOPICS_MAX: Final = 50
"""Topics that one clone copies."""
OFFSET_MAX: Final = 2**63 - 1
QUEUE_DIGITS_MAX: Final = 6


class _Move(Action):
    """An action that plans before it moves a group.

    An action exists once per process, and so do the plans: the newest 100 previews of all people, by their
    fingerprints. A preview carries its plan, so that `apply` needs nothing of this. If a plan is not here
    any more, a new one is made, and a person sees it unless it has the same offsets and directions.
    """

    def __init__(self) -> None:
        self._seen_previews: OrderedDict[str, tuple[float, Preview]] = OrderedDict()

    def _keep(self, preview: Preview) -> Preview:
        self._seen_previews[preview.fingerprint] = time.monotonic(), preview
        self._seen_previews.move_to_end(preview.fingerprint)
        while len(self._seen_previews) > PLANS_MAX:
            self._seen_previews.popitem(last=False)
        return preview

    async def _seen(self, call: Call, command: str) -> Preview | None:
        """Returns the preview that the person has seen, if its plan still means the same."""
        made_s, preview = self._seen_previews.get(call.field("fingerprint"), (0.0, None))
        if preview is None or preview.command != command or time.monotonic() - made_s > PLAN_AGE_S_MAX:
            return None
        for plan in _plans(preview):
            queues = [change.queue for change in plan.queues]
            bounds = await call.console.admin.offsets.bounds(queues)
            committed = await call.console.admin.offsets.committed(plan.group, queues)
            for change in plan.queues:
                held = bounds[change.queue]
                now = replace(change, committed_offset=committed[change.queue])
                if not held.first <= change.queue_offset <= held.end or _direction(now) != _direction(change):
                    return None
        return preview

    async def _apply(self, call: Call, preview: Preview) -> int:
        """Applies the plan of a preview. Returns the number of queues."""
        plans = _plans(preview)
        for plan in plans:
            await call.console.admin.groups.apply(plan)
        return sum(len(plan.queues) for plan in plans)


def _plans(preview: Preview) -> tuple[Reset, ...]:
    assert isinstance(preview.plan, tuple)
    return preview.plan


def _direction(change: QueueReset) -> int | None:
    """Returns 1 if messages are skipped, -1 if they come again, and None if nobody knows."""
    if change.committed_offset is None:
        return None
    return (change.queue_offset > change.committed_offset) - (change.queue_offset < change.committed_offset)


class ResetGroup(_Move):
    """Moves a group to a position in a topic."""

    name = "reset-group"
    form = "actions/reset_group.html"

    async def choices(self, call: Call) -> dict[str, object]:
        group = call.required("group")
        groups = call.console.admin.groups
        progress = await groups.progress(group, times_of=())
        waiting: dict[str, int] = {}
        for one in progress.queues:
            waiting[one.queue.topic] = waiting.get(one.queue.topic, 0) + one.lag
        for subscription in (await groups.members(group)).subscriptions:
            waiting.setdefault(subscription.topic, 0)
        topics = sorted(waiting, key=lambda topic: (topic.startswith(RETRY_PREFIX), -waiting[topic], topic))
        given = call.field("topic")
        if given and given not in topics:
            topics.append(given)
        topic = given or (topics[0] if topics else "")
        queues = (await call.console.admin.topics.route(topic)).readable if topic else ()
        return {
            "topics": topics,
            "topic": topic,
            "queues": [_label(queue) for queue in queues],
            "zone": str(_zone(call)),
        }

    def target(self, call: Call) -> str:
        return f"{call.field('group')} / {call.field('topic')}"

    async def preview(self, call: Call) -> Preview:
        group, topic = call.required("group"), call.required("topic")
        position, text = _position(call)
        queues = sorted(_queue(call, topic, label) for label in set(call.selected))
        only = [word for queue in queues for word in ("--queue", _label(queue))]
        command = call.command("group", "reset", group, topic, "--to", text, *only, "--yes")
        seen = await self._seen(call, command)
        if seen is not None:
            return seen
        plan = await call.console.admin.groups.reset(
            group, topic, position, queues=queues or None, dry_run=True
        )
        return self._keep(_described(call, command, "reset_group", group, [plan], topic=topic))

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group, topic = call.required("group"), call.required("topic")
        moved = await self._apply(call, preview)
        sentence = call.t("actions.reset_group_done", group=group, topic=topic, queues=moved)
        return Outcome(sentence, path=f"{group_path(group)}/queues")


class CloneGroup(_Move):
    """Moves another group to where this one is."""

    name = "clone-group"
    form = "actions/clone_group.html"

    async def choices(self, call: Call) -> dict[str, object]:
        return {"topics": (await _committed_topics(call, call.required("group")))[0]}

    def target(self, call: Call) -> str:
        return f"{call.field('group')} → {call.field('target')}"

    async def preview(self, call: Call) -> Preview:
        source, target, topic = call.required("group"), call.required("target"), call.field("topic")
        if source == target:
            raise FormError(call.t("actions.clone_group_same"))
        only = ("--topic", topic) if topic else ()
        command = call.command("group", "clone", source, target, *only, "--yes")
        seen = await self._seen(call, command)
        if seen is not None:
            return seen
        topics, failures = ([topic], ()) if topic else await _committed_topics(call, source)
        if len(topics) > TOPICS_MAX:
            raise FormError(call.t("actions.clone_group_many", n=len(topics), most=TOPICS_MAX))
        groups = call.console.admin.groups
        plans = [await groups.clone(source, target, name, dry_run=True) for name in topics]
        if not any(plan.queues for plan in plans):
            raise FormError(call.t("actions.clone_group_nothing", group=source))
        silent = silent_brokers(call, failures, group=source)
        return self._keep(_described(call, command, "clone_group", target, plans, silent, source=source))

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        source, target = call.required("group"), call.required("target")
        await call.console.admin.groups.create_like(source, target)
        moved = await self._apply(call, preview)
        sentence = call.t("actions.clone_group_done", source=source, group=target, queues=moved)
        return Outcome(sentence, path=f"{group_path(target)}/queues")


async def _committed_topics(call: Call, group: str) -> tuple[list[str], tuple[BrokerFailure, ...]]:
    """Returns the topics of a group, and the brokers that may know more of them."""
    progress = await call.console.admin.groups.progress(group, times_of=())
    topics = {one.queue.topic for one in progress.queues}
    return sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX)), progress.failures


def _described(
    call: Call,
    command: str,
    words: str,
    group: str,
    plans: Sequence[Reset],
    silent: Sequence[str] = (),
    **fields: object,
) -> Preview:
    changes = [(plan.topic, change) for plan in plans for change in plan.queues]
    table = call.console.live.groups.value
    row = table.rows.get(group) if table is not None else None
    members = row.figures.members if row is not None else None
    brokers = sorted(
        {*silent, *(broker for plan in plans for broker in silent_brokers(call, topic=plan.topic))}
    )
    sentence = call.t(f"actions.{words}_effect", group=group, queues=len(changes), **fields)
    return Preview(
        command,
        f"{sentence} {_effect(call, [change for _, change in changes])}",
        columns=tuple(call.t(f"actions.column_{name}") for name in ("queue", "from", "to", "difference")),
        rows=tuple(_row(call, topic if len(plans) > 1 else "", one) for topic, one in changes[:ROWS_MAX]),
        rows_total=len(changes),
        basis=[
            brokers,
            [[topic, _label(one.queue), one.queue_offset, _direction(one)] for topic, one in changes],
        ],
        warnings=(
            *silence_warnings(call, brokers),
            *((call.t("actions.move_running", n=members),) if members else ()),
        ),
        loses_messages=any(_direction(one) == 1 for _, one in changes),
        plan=tuple(plans),
    )


def _effect(call: Call, changes: Sequence[QueueReset]) -> str:
    """Returns how many messages are skipped, and how many come again."""
    known = [(one.committed_offset, one.queue_offset) for one in changes if one.committed_offset is not None]
    skipped = sum(max(after - before, 0) for before, after in known)
    again = sum(max(before - after, 0) for before, after in known)
    sentences = [
        call.t("actions.move_skips", n=f"{skipped:,}") if skipped else call.t("actions.move_skips_none"),
        call.t("actions.move_again", n=f"{again:,}") if again else call.t("actions.move_again_none"),
    ]
    if len(known) < len(changes):
        sentences.append(call.t("actions.move_unknown", n=len(changes) - len(known)))
    return " ".join(sentences)


def _row(call: Call, topic: str, change: QueueReset) -> tuple[str, ...]:
    label = f"{topic} {_label(change.queue)}".strip()
    if change.committed_offset is None:
        return label, call.t("actions.no_offset"), f"{change.queue_offset:,}", call.t("common.unknown")
    difference = change.queue_offset - change.committed_offset
    return (
        label,
        f"{change.committed_offset:,}",
        f"{change.queue_offset:,}",
        f"{difference:+,}" if difference else "0",
    )


def _position(call: Call) -> tuple[Position, str]:
    """Returns the position that was chosen, and how the command line writes it. Raises FormError."""
    kind = call.required("position")
    if kind == "latest":
        return "latest", "latest"
    if kind == "earliest":
        return "earliest", "earliest"
    if kind == "offset":
        offset = call.number("offset", 0, OFFSET_MAX)
        if offset is None:
            raise FormError(call.t("actions.required", field=call.t("actions.field_offset")))
        return offset, str(offset)
    if kind == "time":
        text = call.required("time")
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise FormError(call.t("actions.no_time", text=text)) from error
        if moment.tzinfo is None:
            # The field of the browser has the reader's local time.
            moment = moment.replace(tzinfo=_zone(call))
        return moment, moment.isoformat()
    raise FormError(call.t("actions.required", field=call.t("actions.field_position")))


def _zone(call: Call) -> timezone:
    return timezone(timedelta(minutes=utc_offset_min(call.request)))


def _label(queue: Queue) -> str:
    return f"{queue.broker}:{queue.id}"


def _queue(call: Call, topic: str, label: str) -> Queue:
    broker, _, number = label.rpartition(":")
    is_number = number.isascii() and number.isdecimal() and len(number) <= QUEUE_DIGITS_MAX
    if not broker or not is_number:
        raise FormError(call.t("actions.no_queue", queue=label))
    return Queue(topic, broker, int(number))


ACTIONS = (ResetGroup, CloneGroup)
