"""Actions that move a consumer group: reset it to a position, or clone the position of another group.

The end of a busy queue moves all the time. So the plan that a person has seen is kept, and applying it checks
that the queues still hold the planned offsets; then exactly that plan is applied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from metaq.admin.positions import Position
from metaq.admin.results import Reset
from metaq.client.session.routes import Queue
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.actions.groups import group_path
from metaq.console.live.latest import latest_of
from metaq.console.rendering import utc_offset_min
from metaq.protocol.names import RETRY_PREFIX

PLANS_MAX: Final = 100
ROWS_MAX: Final = 200
"""Queues that a preview shows."""
TOPICS_MAX: Final = 50
"""Topics that one clone copies."""
OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Planned:
    preview: Preview
    plans: tuple[Reset, ...]


class _Move(Action):
    """An action that plans before it moves a group."""

    def __init__(self) -> None:
        self._planned: OrderedDict[str, _Planned] = OrderedDict()

    def _keep(self, preview: Preview, plans: Sequence[Reset]) -> Preview:
        self._planned[preview.fingerprint] = _Planned(preview, tuple(plans))
        while len(self._planned) > PLANS_MAX:
            self._planned.popitem(last=False)
        return preview

    async def _seen(self, call: Call, command: str) -> Preview | None:
        """Returns the preview that the person has seen, if its plan can still be applied."""
        planned = self._planned.get(call.field("fingerprint"))
        if planned is None or planned.preview.command != command:
            return None
        wanted = {change.queue: change.queue_offset for plan in planned.plans for change in plan.queues}
        bounds = await call.console.admin.offsets.bounds(wanted)
        held = all(bounds[queue].first <= offset <= bounds[queue].end for queue, offset in wanted.items())
        return planned.preview if held else None

    async def _apply(self, call: Call, preview: Preview) -> int:
        """Applies the plan of a preview. Returns the number of queues."""
        plans = self._planned[preview.fingerprint].plans
        for plan in plans:
            await call.console.admin.groups.apply(plan)
        latest_of(call.request).forget()
        return sum(len(plan.queues) for plan in plans)


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
        return {"topics": topics, "topic": topic, "queues": [_label(queue) for queue in queues]}

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
        return self._keep(_described(call, command, "reset_group", group, [plan], topic=topic), [plan])

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
        return {"topics": await _committed_topics(call, call.required("group"))}

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
        topics = [topic] if topic else await _committed_topics(call, source)
        if len(topics) > TOPICS_MAX:
            raise FormError(call.t("actions.clone_group_many", n=len(topics), most=TOPICS_MAX))
        groups = call.console.admin.groups
        plans = [await groups.clone(source, target, name, dry_run=True) for name in topics]
        if not any(plan.queues for plan in plans):
            raise FormError(call.t("actions.clone_group_nothing", group=source))
        return self._keep(_described(call, command, "clone_group", target, plans, source=source), plans)

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        source, target = call.required("group"), call.required("target")
        await call.console.admin.groups.create_like(source, target)
        moved = await self._apply(call, preview)
        sentence = call.t("actions.clone_group_done", source=source, group=target, queues=moved)
        return Outcome(sentence, path=f"{group_path(target)}/queues")


async def _committed_topics(call: Call, group: str) -> list[str]:
    progress = await call.console.admin.groups.progress(group, times_of=())
    topics = {one.queue.topic for one in progress.queues}
    return sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX))


def _described(
    call: Call, command: str, words: str, group: str, plans: Sequence[Reset], **fields: object
) -> Preview:
    changes = [(plan.topic, change) for plan in plans for change in plan.queues]
    differences = [
        None if change.committed_offset is None else change.queue_offset - change.committed_offset
        for _, change in changes
    ]
    rows = [
        (
            f"{topic} {_label(change.queue)}" if len(plans) > 1 else _label(change.queue),
            call.t("actions.no_offset")
            if change.committed_offset is None
            else f"{change.committed_offset:,}",
            f"{change.queue_offset:,}",
            call.t("common.unknown") if difference is None else f"{difference:+,}" if difference else "0",
        )
        for (topic, change), difference in zip(changes, differences, strict=True)
    ]
    table = call.console.live.groups.value
    row = table.rows.get(group) if table is not None else None
    members = row.figures.members if row is not None else None
    return Preview(
        command,
        call.t(
            f"actions.{words}_effect",
            group=group,
            queues=len(changes),
            skipped=f"{sum(one for one in differences if one and one > 0):,}",
            again=f"{-sum(one for one in differences if one and one < 0):,}",
            **fields,
        ),
        columns=tuple(call.t(f"actions.column_{name}") for name in ("queue", "from", "to", "difference")),
        rows=tuple(rows[:ROWS_MAX]),
        rows_total=len(rows),
        basis=[[topic, _label(change.queue), change.queue_offset] for topic, change in changes],
        warnings=(call.t("actions.move_running", n=members),) if members else (),
    )


def _position(call: Call) -> tuple[Position, str]:
    """Returns the position that was chosen, and how the command line writes it. Raises FormError."""
    kind = call.field("position", "earliest")
    if kind == "latest":
        return "latest", "latest"
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
            moment = moment.replace(tzinfo=timezone(timedelta(minutes=utc_offset_min(call.request))))
        return moment, moment.isoformat()
    return "earliest", "earliest"


def _label(queue: Queue) -> str:
    return f"{queue.broker}:{queue.id}"


def _queue(call: Call, topic: str, label: str) -> Queue:
    broker, _, number = label.rpartition(":")
    if not broker or not (number.isascii() and number.isdecimal()):
        raise FormError(call.t("actions.no_queue", queue=label))
    return Queue(topic, broker, int(number))


ACTIONS = (ResetGroup, CloneGroup)
