"""metaq message trace: what happened to one message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output
from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq.admin import Timeline, TimelineEvent

WIDTH = 80
_TIME_COLUMNS = 11
_EVENT_COLUMNS = 12


def trace(
    id: Annotated[str, typer.Argument(help="Id that the producer got.", metavar="ID", show_default=False)],
    topic: Annotated[
        str | None,
        typer.Option(
            help="Topic of the message. Give it if the producer does not trace.", show_default=False
        ),
    ] = None,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="Topic that clients write traces to.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    otlp: Annotated[
        Path | None,
        typer.Option(
            "--otlp",
            help="Also write OpenTelemetry spans to this file, as one line of OTLP JSON.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Print what happened to one message: born, stored, delivered, retried, dead."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        timeline = admin.traces.timeline(id, topic, trace_topic=trace_topic)
    if otlp is not None:
        _write_spans(timeline, otlp)
    print_one(output, document(timeline), lines(timeline))


def _write_spans(timeline: Timeline, file: Path) -> None:
    import msgspec

    from metaq.admin import spans
    from metaq.cli.work.replaced_file import replaced_file

    try:
        with replaced_file(file) as opened:
            opened.write(msgspec.json.encode(spans(timeline)) + b"\n")
    except OSError as error:
        raise CommandError(f"--otlp: {file} cannot be written: {error.strerror}") from None


def lines(timeline: Timeline) -> list[str]:
    """Returns a timeline for people: one line for each event, with the time since the first."""
    from metaq.cli.printing.formats import moment

    first_ms = next((event.at_ms for event in timeline.events if event.at_ms is not None), None)
    since = "" if first_ms is None else f", {moment(first_ms)}"
    head = f"topic {timeline.topic or 'unknown'}{_labels(timeline)}{since}"
    found = [*_folded("", timeline.id), *_folded("", head), ""]
    for event in timeline.events:
        time = "?" if event.at_ms is None or first_ms is None else _relative(event.at_ms - first_ms)
        head = f"{time:>{_TIME_COLUMNS - 2}}  {event.kind:<{_EVENT_COLUMNS}}"
        found += _folded(head, ", ".join(_details(event)))
    if timeline.groups:
        found += ["", "groups"]
        for group in timeline.groups:
            members = "" if group.members is None else f", {_plural(group.members, 'member')} connected"
            why = f"; {group.reason}" if group.state == "passed" and group.reason else ""
            found += _folded("  ", f"{group.group}: {group.state}{why}{members}")
    if timeline.notes:
        found += ["", "not known"]
        for note in timeline.notes:
            found += _folded("  ", note)
    return found


def _labels(timeline: Timeline) -> str:
    tag = f", tag {timeline.tag}" if timeline.tag else ""
    keys = f", keys {' '.join(timeline.keys)}" if timeline.keys else ""
    return tag + keys


def _folded(head: str, text: str) -> list[str]:
    """Returns lines of at most 80 columns. Names that come from messages cannot move the cursor."""
    from textwrap import wrap

    from metaq.cli.printing.formats import printable

    folded = wrap(printable(text), WIDTH - len(head)) or [""]
    return [(head + folded[0]).rstrip(), *(" " * len(head) + line for line in folded[1:])]


def _details(event: TimelineEvent) -> list[str]:
    from metaq.cli.printing.formats import moment

    parts = []
    if event.group is not None:
        parts.append(event.group)
    if event.client_id is not None:
        parts.append(f"client {event.client_id}")
    if event.kind in ("delivered", "born") and event.address is not None:
        parts.append(f"at {event.address}")
    if event.kind == "delivered" and event.retries is not None:
        parts.append(f"try {event.retries + 1}")
    elif event.retries:
        parts.append(f"retry {event.retries}")
    if event.kind not in ("delivered", "returned", "scheduled") and event.queue is not None:
        parts.append(f"{event.queue.broker} queue {event.queue.id} offset {event.queue_offset}")
    if event.due_ms is not None:
        parts.append(f"due {moment(event.due_ms)}")
    if event.duration_ms is not None:
        parts.append(f"took {event.duration_ms} ms")
    if event.kind == "delivered":
        parts.append(event.result or "no result")
    elif event.result is not None:
        parts.append(event.result)
    if event.error_type is not None:
        parts.append(event.error_type)
    if event.reason is not None:
        parts.append(event.reason)
    return parts


def _relative(milliseconds: int) -> str:
    if abs(milliseconds) < 10_000:
        return f"{milliseconds:+} ms"
    seconds = milliseconds / 1000
    if abs(seconds) < 600:
        return f"{seconds:+.1f} s"
    return f"{seconds / 60:+.0f} min" if abs(seconds) < 36_000 else f"{seconds / 3600:+.0f} h"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def document(timeline: Timeline) -> dict[str, object]:
    """Returns a timeline as programs read it. Unknown values are null."""
    from dataclasses import asdict

    fields = asdict(timeline)
    for event, shown in zip(timeline.events, fields["events"], strict=True):
        queue = event.queue
        del shown["queue"]
        shown["topic"] = None if queue is None else queue.topic
        shown["broker"] = None if queue is None else queue.broker
        shown["queue_id"] = None if queue is None else queue.id
    return fields
