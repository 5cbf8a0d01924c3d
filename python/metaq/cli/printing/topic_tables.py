"""Topics, as commands print them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from metaq.admin import READ, WRITE, Topic, TopicFigures, TopicSettings
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import UNKNOWN, attributes_text, moment, rate, size, span
from metaq.cli.printing.output import Column, print_json, print_one, print_rows, say
from metaq.config.kinds import write_bytes
from metaq.counts import counted, some
from metaq.protocol.attributes import SEND_BYTES, SEND_MESSAGES


def list_columns() -> list[Column]:
    now_ms = time.time() * 1000

    def age(stored_ms: int | None) -> str:
        return UNKNOWN if stored_ms is None else span(max(now_ms - stored_ms, 0))

    return [
        Column("topic"),
        Column("queue_count", "queues", right=True),
        Column("messages", right=True),
        Column("size_bytes", "size", size, right=True, is_optional=True),
        Column("in_per_second", "in", rate, right=True),
        Column("out_per_second", "out", rate, right=True),
        Column("first_stored_ms", "oldest", age, right=True),
        Column("brokers", is_optional=True),
    ]


def list_row(topic: TopicFigures) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "kind": topic.kind,
        "queue_count": max(topic.read_queues, topic.write_queues),
        "messages": topic.messages,
        "size_bytes": topic.size_bytes,
        "in_per_second": topic.messages_in_per_second,
        "out_per_second": topic.messages_out_per_second,
        "first_stored_ms": topic.first_stored_ms,
        "last_stored_ms": topic.last_stored_ms,
        "brokers": list(topic.brokers),
    }


def settings_rows(settings: Sequence[TopicSettings]) -> list[dict[str, Any]]:
    return [
        {
            "broker": on_broker.broker,
            "read_queues": on_broker.read_queues,
            "write_queues": on_broker.write_queues,
            "permission": on_broker.permission,
            "ordered": on_broker.ordered,
            "messages_per_second": on_broker.limits.messages_per_second,
            "bytes_per_second": on_broker.limits.bytes_per_second,
            "attributes": dict(on_broker.attributes),
        }
        for on_broker in settings
    ]


def print_settings(output: Format, topic: str, settings: Sequence[TopicSettings]) -> None:
    """Prints the settings of a topic on each broker."""
    if output is Format.json:
        print_json({"topic": topic, "settings": settings_rows(settings)})
    else:
        print_rows(output, settings_rows(settings), _SETTINGS, empty="")


def print_topic(output: Format, topic: Topic, figures: TopicFigures, groups: Sequence[str]) -> None:
    """Prints everything that `metaq topic show` knows."""
    queues = [
        {
            "broker": state.queue.broker,
            "queue": state.queue.id,
            "min_offset": state.first_offset,
            "max_offset": state.end_offset,
            "messages": state.messages,
            "last_stored_ms": state.last_stored_ms,
        }
        for state in topic.queues
    ]
    if output is not Format.table:
        record = list_row(figures)
        record |= {"settings": settings_rows(topic.settings), "groups": list(groups), "queues": queues}
        print_one(output, record, "")
        return
    for line in _summary(topic, figures, groups):
        say(line)
    say()
    print_rows(output, settings_rows(topic.settings), _SETTINGS, empty="")
    print_rows(output, queues, _QUEUES, empty="It has no queues.")


def _summary(topic: Topic, figures: TopicFigures, groups: Sequence[str]) -> list[str]:
    kind = "" if figures.kind == "normal" else f" ({figures.kind} topic)"
    holds = f"{counted(topic.messages, 'message')} in {counted(len(topic.queues), 'queue')}"
    lines = [f"{topic.name}{kind}: {holds} on {', '.join(figures.brokers)}"]
    if figures.first_stored_ms is not None:
        age = span(max(time.time() * 1000 - figures.first_stored_ms, 0))
        lines.append(f"oldest message stored {age} ago, newest at {moment(figures.last_stored_ms)}")
    into, out = rate(figures.messages_in_per_second), rate(figures.messages_out_per_second)
    lines.append(f"in {into}, out {out} over the last minute")
    lines.append(f"consumed by {some(groups, 10)}" if groups else "no group consumes it")
    return lines


def _permission(value: int) -> str:
    words = [word for bit, word in ((READ, "read"), (WRITE, "write")) if value & bit]
    return " ".join(words) or "none"


def _other_attributes(attributes: dict[str, str]) -> str:
    return attributes_text(attributes, (SEND_MESSAGES, SEND_BYTES)) or UNKNOWN


def _per_second(messages: int | None) -> str:
    return "none" if messages is None else f"{messages:,}/s"


def _bytes_per_second(size: int | None) -> str:
    return "none" if size is None else f"{write_bytes(size)}/s"


_SETTINGS = (
    Column("broker"),
    Column("read_queues", "read", right=True),
    Column("write_queues", "write", right=True),
    Column("permission", show=_permission),
    Column("ordered"),
    Column("messages_per_second", "limit", _per_second, right=True),
    Column("bytes_per_second", "bytes", _bytes_per_second, right=True),
    Column("attributes", show=_other_attributes, is_optional=True),
)
_QUEUES = (
    Column("broker"),
    Column("queue", right=True),
    Column("min_offset", "min", right=True),
    Column("max_offset", "max", right=True),
    Column("messages", right=True),
    Column("last_stored_ms", "last stored", moment),
)
