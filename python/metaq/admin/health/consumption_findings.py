"""Judges how groups consume: backlogs, missing consumers, dead letters and conflicting subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any, Final

from metaq.admin.health.results import Finding, FindingFields
from metaq.admin.health.state import BrokerState, ClusterState
from metaq.counts import counted, some
from metaq.protocol.commands.health import Backlog, backlog_weight

NO_CONSUMER_MS_MIN: Final = 60_000
"""A restart of all consumers of a group takes less."""
SLOW_MS_MIN: Final = 600_000
SMALL_MAX: Final = 1_000
"""Messages of a backlog that is small, as many as it has in ten minutes if it grows."""
EXPIRING_RATIO: Final = 0.8
"""Messages that wait for this part of the retention time are about to be lost."""


def of_consumption(state: ClusterState) -> Iterator[Finding]:
    """Yields a finding for each group and topic that needs attention."""
    masters = [broker for broker in state.brokers if broker.error is None and broker.is_master]
    yield from _of_stuck(state)
    yield from _of_backlogs(masters, state.now_ms)
    yield from _of_dead_letters(masters)
    seen = set()
    for broker in masters:
        for conflict in broker.report.conflicts if broker.report is not None else ():
            if (conflict.group, conflict.topic) not in seen:
                seen.add((conflict.group, conflict.topic))
                filters = ", ".join(f"`{text}`" for text in conflict.wanted)
                text = (
                    f"The consumers of {conflict.group} subscribe to {conflict.topic} in different ways "
                    f"({filters}), so they lose messages."
                )
                yield _of_group(
                    "subscription-conflict", conflict.group, text, topic=conflict.topic, filters=filters
                )
    for broker in masters:
        if broker.report is not None and not broker.report.is_complete:
            text = f"{broker.label} has more groups that need attention than it lists here."
            fields = {"broker": broker.label}
            yield Finding("info", "groups-unknown", broker.name, text, "metaq group list", fields=fields)


def _of_group(kind: str, group: str, text: str, since_ms: int | None = None, **fields: str | int) -> Finding:
    command = f"metaq group show {quote(group)}"
    return Finding("warning", kind, group, text, command, since_ms, {"group": group, **fields})


def _of_stuck(state: ClusterState) -> Iterator[Finding]:
    """Yields a finding for each member that holds messages and commits nothing; the most messages first."""
    for stuck in state.stuck:
        who = stuck.client_id or "A member"
        held = "messages" if stuck.messages is None else counted(stuck.messages, "message")
        held_ms = max(state.now_ms - stuck.since_ms, 0)
        topics = some(stuck.topics, 2)
        text = (
            f"{who} holds {held} of {topics} for {stuck.group} and has committed nothing for "
            f"{counted(held_ms // 60_000, 'minute')}."
        )
        fields: dict[str, str | int] = {
            "group": stuck.group,
            "member": who,
            "topic": topics,
            "held_ms": held_ms,
        }
        if stuck.messages is not None:
            fields["messages"] = stuck.messages
        command = f"metaq group show {quote(stuck.group)} --stacks"
        kind = "member-stuck" if stuck.messages is not None else "member-stuck-at-first"
        yield Finding("warning", kind, stuck.group, text, command, stuck.since_ms, fields)


def _of_backlogs(masters: list[BrokerState], now_ms: int) -> Iterator[Finding]:
    """Yields a finding for each backlog that needs attention: the ones that matter most first, by their size
    and growth. Small ones of groups without consumers are one finding together."""
    worst: dict[tuple[str, str], tuple[Backlog, int | None]] = {}
    for broker in masters:
        retention_ms = broker.report.retention_ms if broker.report is not None else None
        for backlog in broker.backlogs:
            key = (backlog.group, backlog.topic)
            known = worst.get(key)
            worst[key] = (_joined(known[0], backlog) if known else backlog, retention_ms)
    abandoned: list[Backlog] = []
    for backlog, retention_ms in sorted(worst.values(), key=lambda found: _weight(found[0]), reverse=True):
        finding = _of_backlog(backlog, retention_ms, now_ms)
        if finding is None:
            continue
        if finding.kind in ("no-consumers", "backlog-expires") and _is_abandoned(backlog):
            abandoned.append(backlog)
        else:
            yield finding
    if len(abandoned) == 1:
        [backlog] = abandoned
        finding = _of_backlog(backlog, None, now_ms)
        if finding is not None:
            yield finding
    elif abandoned:
        yield _of_abandoned(abandoned)


def _weight(backlog: Backlog) -> tuple[float, int]:
    return backlog_weight(backlog.messages, backlog.grows_per_second), backlog.waiting_ms or 0


def _is_abandoned(backlog: Backlog) -> bool:
    """Whether nobody consumes for the group, and its backlog is small and hardly grows."""
    return backlog.members == 0 and backlog_weight(backlog.messages, backlog.grows_per_second) < SMALL_MAX


def _of_abandoned(backlogs: list[Backlog]) -> Finding:
    groups = list(dict.fromkeys(backlog.group for backlog in backlogs))
    messages = sum(backlog.messages for backlog in backlogs)
    text = (
        f"{counted(len(groups), 'group')} without consumers {'has' if len(groups) == 1 else 'have'} small "
        f"backlogs of {counted(messages, 'message')} in all: {some(groups, 3)}."
    )
    fields: FindingFields = {"groups": len(groups), "messages": messages, "names": some(groups, 3)}
    return Finding("info", "groups-abandoned", groups[0], text, "metaq group list", fields=fields)


def _joined(one: Backlog, other: Backlog) -> Backlog:
    """The backlog on two brokers together. Consumers connect to all brokers."""
    waits = [wait for wait in (one.waiting_ms, other.waiting_ms) if wait is not None]
    members = [count for count in (one.members, other.members) if count is not None]
    return Backlog(
        one.group,
        one.topic,
        one.messages + other.messages,
        max(waits, default=None),
        max(members, default=None),
        None
        if one.grows_per_second is None or other.grows_per_second is None
        else one.grows_per_second + other.grows_per_second,
    )


def _of_backlog(backlog: Backlog, retention_ms: int | None, now_ms: int) -> Finding | None:
    waiting_ms = backlog.waiting_ms
    fields: dict[str, Any] = {"topic": backlog.topic, "messages": backlog.messages}
    if waiting_ms is None:
        if backlog.members == 0:
            text = f"{_waits(backlog)}, and no consumer is connected."
            return _of_group("no-consumers", backlog.group, text, **fields)
        return None
    since_ms = now_ms - waiting_ms
    if retention_ms and waiting_ms >= retention_ms * EXPIRING_RATIO:
        text = f"{_waits(backlog)} and will soon be deleted, unread, because of their age."
        return _of_group("backlog-expires", backlog.group, text, since_ms, **fields)
    if backlog.members == 0 and waiting_ms >= NO_CONSUMER_MS_MIN:
        text = f"{_waits(backlog)}, and no consumer is connected."
        return _of_group("no-consumers", backlog.group, text, since_ms, **fields)
    if waiting_ms >= SLOW_MS_MIN:
        text = f"{_waits(backlog)}, the oldest for {waiting_ms / 60_000:,.0f} minutes."
        return _of_group("consumers-behind", backlog.group, text, since_ms, waiting_ms=waiting_ms, **fields)
    return None


def _waits(backlog: Backlog) -> str:
    messages = "1 message waits" if backlog.messages == 1 else f"{backlog.messages:,} messages wait"
    return f"{messages} for {backlog.group} in {backlog.topic}"


def _of_dead_letters(masters: list[BrokerState]) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    oldest: dict[str, int] = {}
    for broker in masters:
        for letters in broker.dead_letters:
            counts[letters.group] = counts.get(letters.group, 0) + letters.messages
            if letters.oldest_ms is not None:
                oldest[letters.group] = min(oldest.get(letters.group, letters.oldest_ms), letters.oldest_ms)
    for group, count in sorted(counts.items(), key=lambda item: -item[1]):
        letters_text = counted(count, "dead letter")
        yield Finding(
            "warning",
            "dead-letters",
            group,
            f"{group} has {letters_text} that {'was' if count == 1 else 'were'} not sent again.",
            f"metaq dlq list {quote(group)}",
            oldest.get(group),
            {"group": group, "messages": count},
        )
