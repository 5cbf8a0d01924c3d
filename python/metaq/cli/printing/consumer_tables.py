"""Consumer groups, as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from metaq.admin import Group, GroupFigures, GroupSettings, Progress, RunningMembers, SubscriptionConflict
from metaq.admin.groups.stacks import for_people
from metaq.admin.kinds import group_kind
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import UNKNOWN, attributes_text, rate, span
from metaq.cli.printing.limit_tables import print_limits, rows_of
from metaq.cli.printing.output import Column, note, print_json, print_one, print_rows, say
from metaq.counts import counted
from metaq.protocol.attributes import CONSUME_BYTES, CONSUME_MESSAGES

Record = dict[str, Any]

LIST_COLUMNS = (
    Column("group"),
    Column("lag", right=True),
    Column("lag_ms", "behind", span, right=True),
    Column("member_count", "members", right=True),
    Column("out_per_second", "rate", rate, right=True),
    Column("brokers", is_optional=True),
)


def worst_first(groups: Iterable[GroupFigures]) -> list[GroupFigures]:
    """Sorts by the time that messages have been waiting, then by their number."""

    def badness(group: GroupFigures) -> tuple[int, int, str]:
        return -(-1 if group.lag_ms is None else group.lag_ms), -(group.lag or 0), group.name

    return sorted(groups, key=badness)


def list_row(group: GroupFigures) -> Record:
    return {
        "group": group.name,
        "kind": group.kind,
        "lag": group.lag,
        "lag_ms": group.lag_ms,
        "member_count": group.members,
        "out_per_second": group.messages_out_per_second,
        "brokers": list(group.brokers),
    }


def settings_rows(settings: Sequence[GroupSettings]) -> list[Record]:
    return [
        {
            "broker": on_broker.broker,
            "enabled": on_broker.enabled,
            "broadcast": on_broker.broadcast_allowed,
            "ordered": on_broker.ordered,
            "retries": on_broker.retries_max,
            "retry_queues": on_broker.retry_queues,
            "attributes": dict(on_broker.attributes),
        }
        for on_broker in settings
    ]


def print_settings(output: Format, group: str, settings: Sequence[GroupSettings]) -> None:
    """Prints the settings of a group on each broker."""
    if output is Format.json:
        print_json({"group": group, "settings": settings_rows(settings)})
    else:
        print_rows(output, settings_rows(settings), _SETTINGS, empty="")


def print_group(output: Format, group: Group, running: RunningMembers) -> None:
    """Prints everything that `metaq group show` knows."""
    limits = [settings.limits for settings in group.settings]
    members = _members(group, running)
    subscriptions = [
        {"topic": entry.topic, "filter": entry.expression, "type": entry.expression_type}
        for entry in group.members.subscriptions
    ]
    queues = _queues(group.progress, running)
    if output is not Format.table:
        record = {
            "group": group.name,
            "kind": group_kind(group.name),
            "lag": group.progress.lag if queues else None,
            "lag_ms": group.progress.lag_ms,
            "member_count": len(group.members.members),
            "brokers": sorted(settings.broker for settings in group.settings),
            "broadcasting": group.members.is_broadcasting if members else None,
            "settings": settings_rows(group.settings),
            "members": members,
            "subscriptions": subscriptions,
            "conflicts": [
                {"topic": conflict.topic, "filters": dict(conflict.expressions)}
                for conflict in running.conflicts
            ],
            "queues": queues,
            "limits": rows_of(limits),
        }
        print_one(output, record, "")
        return
    say(_summary(group))
    say()
    print_rows(output, settings_rows(group.settings), _SETTINGS, empty="")
    numbers = {member["client_id"]: number for number, member in enumerate(members, 1)}
    if members:
        rows = [{**member, "number": f"#{numbers[member['client_id']]}"} for member in members]
        print_rows(output, rows, _MEMBERS, empty="")
        print_rows(output, subscriptions, _SUBSCRIPTIONS, empty="It subscribes to nothing.\n")
    for conflict in running.conflicts:
        say(_conflict(conflict))
    if queues:
        rows = [
            {**queue, "owner": [f"#{numbers[owner]}" for owner in queue["owners"] if owner in numbers]}
            for queue in queues
        ]
        print_rows(output, rows, _QUEUES, empty="")
    for member in running.members:
        if member.stack:
            say(f"Stacks of {member.client_id}:\n\n{for_people(member.stack, group.name)}\n")
        if member.error is not None:
            note(f"{member.client_id} does not report its queues: {member.error}")
    print_limits("group", group.name, limits, output)


def _summary(group: Group) -> str:
    members = len(group.members.members)
    who = counted(members, "member") if members else "no members"
    mode = " in broadcast mode" if group.members.is_broadcasting and members else ""
    if not group.progress.queues:
        return f"{group.name}: {who}{mode}; it has committed nothing"
    behind = f"{counted(group.progress.lag, 'message')} behind"
    waiting = group.progress.lag_ms
    time_lag = f", the oldest for {span(waiting)}" if waiting and group.progress.lag else ""
    return f"{group.name}: {who}{mode}; {behind}{time_lag}"


def _conflict(conflict: SubscriptionConflict) -> str:
    lines = [f"CONFLICT: the members subscribe to {conflict.topic} in different ways:"]
    for client_id, expression in sorted(conflict.expressions.items()):
        lines.append(f"  {client_id}: {'not subscribed' if expression is None else expression}")
    lines.append("All members of a group must have the same subscriptions, or some get no messages.\n")
    return "\n".join(lines)


def _members(group: Group, running: RunningMembers) -> list[Record]:
    reports = {member.client_id: member for member in running.members}
    rows = []
    for member in group.members.members:
        report = reports.get(member.client_id)
        is_known = report is not None and report.error is None
        rows.append(
            {
                "client_id": member.client_id,
                "address": member.address,
                "language": member.language,
                "version": member.version,
                "brokers": list(member.brokers),
                "started_ms": report.started_ms if report else None,
                "queues": [
                    {"topic": queue.topic, "broker": queue.broker, "queue": queue.id}
                    for queue in report.queues
                ]
                if report is not None and is_known
                else None,
                "subscriptions": {entry.topic: entry.expression for entry in report.subscriptions}
                if report is not None and is_known
                else None,
                "stack": report.stack if report else None,
                "error": report.error if report else None,
            }
        )
    return rows


def _queues(progress: Progress, running: RunningMembers) -> list[Record]:
    owners: dict[object, list[str]] = {}
    for member in running.members:
        for queue in member.queues:
            owners.setdefault(queue, []).append(member.client_id)
    return [
        {
            "topic": found.queue.topic,
            "broker": found.queue.broker,
            "queue": found.queue.id,
            "committed": found.committed_offset,
            "max_offset": found.end_offset,
            "lag": found.lag,
            "lag_ms": found.lag_ms if found.lag else None,
            "owners": owners.get(found.queue, []),
        }
        for found in progress.queues
    ]


def _number_of(queues: list[Record] | None) -> str:
    return UNKNOWN if queues is None else str(len(queues))


def _other_attributes(attributes: dict[str, str]) -> str:
    return attributes_text(attributes, (CONSUME_MESSAGES, CONSUME_BYTES)) or UNKNOWN


_SETTINGS = (
    Column("broker"),
    Column("enabled"),
    Column("broadcast"),
    Column("ordered"),
    Column("retries", right=True),
    Column("retry_queues", right=True),
    Column("attributes", show=_other_attributes, is_optional=True),
)
_MEMBERS = (
    Column("number", "#"),
    Column("client_id", "member"),
    Column("address"),
    Column("language", is_optional=True),
    Column("version", is_optional=True),
    Column("queues", show=_number_of, right=True),
)
_SUBSCRIPTIONS = (Column("topic"), Column("filter"), Column("type", is_optional=True))
_QUEUES = (
    Column("topic"),
    Column("broker"),
    Column("queue", right=True),
    Column("committed", right=True),
    Column("max_offset", "max", right=True),
    Column("lag", right=True),
    Column("lag_ms", "behind", span, right=True),
    Column("owner"),
)
