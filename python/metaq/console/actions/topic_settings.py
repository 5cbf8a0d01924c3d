"""Changes of a topic's settings and limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from metaq.admin import Rate
from metaq.admin.results import Limits, TopicSettings
from metaq.config.kinds import Bytes, Kind, Number
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.actions.silence import silence_warnings, silent_brokers
from metaq.console.figures import size
from metaq.console.rendering import segment
from metaq.protocol.attributes import BYTES_MAX, MESSAGES_MAX
from metaq.protocol.bodies import READ, WRITE

QUEUES_MAX: Final = 1024
PERMISSIONS: Final = (READ | WRITE, READ, WRITE, 0)


class UpdateTopic(Action):
    """Changes queues, permission and order of a topic; empty fields change nothing."""

    name = "update-topic"
    form = "actions/update_topic.html"

    def target(self, call: Call) -> str:
        return call.field("topic")

    async def choices(self, call: Call) -> dict[str, object]:
        shown = await call.console.admin.topics.show(call.required("topic"))
        return {"settings": shown.settings, "permissions": PERMISSIONS}

    async def preview(self, call: Call) -> Preview:
        topic, queues, write_queues, permission, ordered = _update(call)
        if all(value is None for value in (queues, write_queues, permission, ordered)):
            raise FormError(call.t("actions.nothing_to_change"))
        shown = await call.console.admin.topics.show(topic)
        rows, warnings = [], []
        for one in shown.settings:
            after = (
                one.read_queues if queues is None else queues,
                _given(write_queues, queues, one.write_queues),
                one.permission if permission is None else permission,
                one.ordered if ordered is None else ordered,
            )
            rows.append((one.broker, *_changes(call, one, after)))
        loses = queues is not None and any(queues < one.read_queues for one in shown.settings)
        if loses:
            warnings.append(call.t("actions.update_topic_loses"))
        if permission is not None and not permission & WRITE:
            warnings.append(call.t("actions.update_topic_no_write"))
        if permission is not None and not permission & READ:
            warnings.append(call.t("actions.update_topic_no_read"))
        silent = silent_brokers(call, shown.failures, topic=topic)
        warnings += silence_warnings(call, silent)
        return Preview(
            call.command(*_update_words(topic, queues, write_queues, permission, ordered)),
            call.t("actions.update_topic_effect", topic=topic),
            columns=tuple(
                call.t(key)
                for key in (
                    *("common.broker", "topic.read_queues", "topic.write_queues"),
                    *("topic.permission", "topic.ordered"),
                )
            ),
            rows=tuple(rows),
            basis=[topic, [_facts(one) for one in shown.settings], silent],
            typed_name=topic if loses else None,
            warnings=tuple(warnings),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        topic, queues, write_queues, permission, ordered = _update(call)
        await call.console.admin.topics.change(
            topic, queues=queues, write_queues=write_queues, permission=permission, ordered=ordered
        )
        return Outcome(
            call.t("actions.update_topic_done", topic=topic), path=f"/topics/{segment(topic)}/settings"
        )


class LimitTopic(Action):
    """Limits how much each broker accepts for a topic; empty fields change nothing."""

    name = "limit-topic"
    form = "actions/limit_topic.html"

    def target(self, call: Call) -> str:
        return call.field("topic")

    async def choices(self, call: Call) -> dict[str, object]:
        return {"limits": await call.console.admin.topics.limits(call.required("topic"))}

    async def preview(self, call: Call) -> Preview:
        topic, messages, volume = _limits(call)
        if messages is None and volume is None:
            raise FormError(call.t("actions.nothing_to_change"))
        shown = await call.console.admin.topics.show(topic)
        current = [one.limits for one in shown.settings]
        silent = silent_brokers(call, shown.failures, topic=topic)
        words = ["topic", "limit", topic]
        words += () if messages is None else ("--messages-per-second", str(messages))
        words += () if volume is None else ("--bytes-per-second", str(volume))
        return Preview(
            call.command(*words),
            call.t("actions.limit_topic_effect", topic=topic),
            columns=tuple(
                call.t(key) for key in ("common.broker", "topic.limit_messages", "topic.limit_bytes")
            ),
            rows=tuple(_limit_row(call, one, messages, volume) for one in current),
            basis=[
                topic,
                [[one.broker, one.messages_per_second, one.bytes_per_second] for one in current],
                silent,
            ],
            warnings=tuple(silence_warnings(call, silent)),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        topic, messages, volume = _limits(call)
        await call.console.admin.topics.limit(topic, messages_per_second=messages, bytes_per_second=volume)
        return Outcome(
            call.t("actions.limit_topic_done", topic=topic), path=f"/topics/{segment(topic)}/settings"
        )


# Fields


def _update(call: Call) -> tuple[str, int | None, int | None, int | None, bool | None]:
    ordered = {"yes": True, "no": False}.get(call.field("ordered"))
    return (
        call.required("topic"),
        call.number("queues", 1, QUEUES_MAX),
        call.number("write_queues", 0, QUEUES_MAX),
        call.number("permission", 0, READ | WRITE),
        ordered,
    )


def _update_words(
    topic: str, queues: int | None, write_queues: int | None, permission: int | None, ordered: bool | None
) -> Iterable[str]:
    words = ["topic", "update", topic]
    for flag, value in (
        ("--queues", queues),
        ("--write-queues", write_queues),
        ("--permission", permission),
    ):
        words += () if value is None else (flag, str(value))
    if ordered is not None:
        words.append("--order" if ordered else "--no-order")
    return (*words, "--yes")


def _given(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _facts(one: TopicSettings) -> list[object]:
    return [one.broker, one.read_queues, one.write_queues, one.permission, one.ordered]


def permission_word(permission: int) -> str:
    """Returns the key of the word for a permission."""
    kinds = {READ | WRITE: "both", READ: "read", WRITE: "write"}
    return f"topic.permission_{kinds.get(permission & (READ | WRITE), 'none')}"


def _changes(call: Call, one: TopicSettings, after: tuple[int, int, int, bool]) -> tuple[str, ...]:
    def answer(value: bool) -> str:
        return call.t("topic.yes" if value else "topic.no")

    return (
        _arrow(str(one.read_queues), str(after[0])),
        _arrow(str(one.write_queues), str(after[1])),
        _arrow(call.t(permission_word(one.permission)), call.t(permission_word(after[2]))),
        _arrow(answer(one.ordered), answer(after[3])),
    )


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _limits(call: Call) -> tuple[str, Rate, Rate]:
    return (
        call.required("topic"),
        _rate(call, "messages", Number(1, MESSAGES_MAX)),
        _rate(call, "bytes", Bytes(1, BYTES_MAX)),
    )


def _rate(call: Call, name: str, kind: Kind) -> Rate:
    text = call.field(f"{name}_per_second")
    if not text:
        return None
    if text.lower() == "none":
        return "none"
    try:
        value = kind.parse(text)
    except ValueError as error:
        raise FormError(f"{call.t(f'topic.rate_{name}')}: {error}") from None
    assert isinstance(value, int)
    return value


def _limit_row(call: Call, one: Limits, messages: Rate, volume: Rate) -> tuple[str, ...]:
    no_limit = call.t("topic.no_limit")

    def shown(current: int | None, wanted: Rate, is_size: bool) -> str:
        after = current if wanted is None else None if wanted == "none" else wanted
        texts = [
            no_limit if value is None else f"{size(value)}/s" if is_size else f"{value:,}/s"
            for value in (current, after)
        ]
        return _arrow(*texts)

    return (
        one.broker,
        shown(one.messages_per_second, messages, False),
        shown(one.bytes_per_second, volume, True),
    )


ACTIONS = (UpdateTopic, LimitTopic)
