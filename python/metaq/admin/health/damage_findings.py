"""Findings about damage in the store of a broker: which messages are concerned, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from metaq.admin.health.results import Finding
from metaq.admin.health.state import BrokerState
from metaq.protocol.commands.health import BrokerReport, DamagedMessage, ScrubReport

QUEUES_NAMED_MAX: Final = 5
"""Queues that a finding names; the report has all."""


def of_damage(broker: BrokerState, report: BrokerReport, since_ms: int | None) -> Iterator[Finding]:
    """Yields what an operator should know about damaged records. Sums begin at `since_ms`."""
    if report.scrub is not None:
        yield from _of_scrub(broker, report.scrub)
    if not report.damaged_records:
        return
    where = places_text(report.damaged)
    named = f": {where}" if where else ""
    text = f"{broker.label} found {report.damaged_records:,} damaged records in its store{named}."
    fields: dict[str, str | int] = {
        "broker": broker.label,
        "records": report.damaged_records,
        "where": where or "-",
    }
    yield Finding(
        "warning", "damaged-records", broker.name, text, "metaq cluster support-bundle", since_ms, fields
    )


def _of_scrub(broker: BrokerState, scrub: ScrubReport) -> Iterator[Finding]:
    status = "metaq cluster status"
    if scrub.differs_at is not None:
        text = (
            f"{broker.label} has other bytes than its master at {scrub.differs_at} of its log, although both "
            "verify."
        )
        fields: dict[str, str | int] = {"broker": broker.label, "at": scrub.differs_at}
        yield Finding("critical", "log-differs", broker.name, text, status, fields=fields)
    if scrub.fault is not None:
        reason = scrub.fault.rstrip(".")
        text = f"{broker.label} cannot read a part of its log: {reason}."
        fields = {"broker": broker.label, "reason": reason}
        yield Finding("critical", "log-unreadable", broker.name, text, status, fields=fields)
    if scrub.unrepaired:
        parts = "1 damaged part" if scrub.unrepaired == 1 else f"{scrub.unrepaired} damaged parts"
        text = f"{broker.label} has {parts} in its log."
        fields = {"broker": broker.label, "parts": scrub.unrepaired}
        yield Finding("warning", "log-damaged", broker.name, text, status, fields=fields)


def places_text(messages: Sequence[DamagedMessage]) -> str:
    """Returns the damaged messages as text, such as `topic t, queue 0, offsets 3-5 (left out)`."""
    ordered = sorted(messages, key=lambda message: (*_queue(message), message.queue_offset))
    queues = [(queue, list(found)) for queue, found in groupby(ordered, key=_queue)]
    texts = [
        f"topic {topic}, queue {queue_id}, offsets {_ranges([one.queue_offset for one in found])} "
        f"({'left out' if is_skipped else 'readers wait'})"
        for (topic, queue_id, is_skipped), found in queues[:QUEUES_NAMED_MAX]
    ]
    if len(queues) > QUEUES_NAMED_MAX:
        texts.append(f"and {len(queues) - QUEUES_NAMED_MAX} more queues")
    return "; ".join(texts)


def _queue(message: DamagedMessage) -> tuple[str, int, bool]:
    return message.topic, message.queue_id, message.is_skipped


def _ranges(offsets: Sequence[int]) -> str:
    """Returns ascending offsets as text, such as `3-5, 9`."""
    ranges: list[list[int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
