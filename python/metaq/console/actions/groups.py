"""Actions on consumer groups: create, change, limit and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.admin.limits import Rate
from metaq.admin.results import GroupSettings
from metaq.config.kinds import Bytes, Kind, Number, write_bytes
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.actions.silence import at_least, silence_warnings, silent_brokers
from metaq.console.rendering import segment
from metaq.protocol.attributes import BYTES_MAX, MESSAGES_MAX

RETRIES_MAX: Final = 1_000
SWITCHES: Final = {
    "enabled": ("--enabled", "--disabled"),
    "broadcast_allowed": ("--broadcast", "--no-broadcast"),
    "ordered": ("--order", "--no-order"),
}
"""The flags of settings that are on or off."""


class CreateGroup(Action):
    """Creates a group on every broker of the cluster."""

    name = "create-group"
    form = "actions/create_group.html"

    def target(self, call: Call) -> str:
        return call.field("group")

    async def preview(self, call: Call) -> Preview:
        group, retries = _new_group(call)
        command = call.command("group", "create", group, "--retries", str(retries))
        sentence = call.t("actions.create_group_effect", group=group, retries=retries)
        return Preview(command, sentence, basis=[group, retries])

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group, retries = _new_group(call)
        await call.console.admin.groups.create(group, retries_max=retries)
        return Outcome(call.t("actions.create_group_done", group=group), path=group_path(group))


def _new_group(call: Call) -> tuple[str, int]:
    retries = call.number("retries", 0, RETRIES_MAX)
    return call.required("group"), 16 if retries is None else retries


class ChangeGroup(Action):
    """Changes settings of a group on every broker that has it."""

    name = "change-group"
    form = "actions/change_group.html"

    async def choices(self, call: Call) -> dict[str, object]:
        settings = await call.console.admin.groups.settings(call.required("group"))
        return {"current": settings[0], "retries_max": RETRIES_MAX}

    def target(self, call: Call) -> str:
        return call.field("group")

    async def preview(self, call: Call) -> Preview:
        group = call.required("group")
        before = await call.console.admin.groups.settings(group)
        changes = _changes(call, before)
        rows = [
            (
                one.broker,
                call.t(f"actions.field_{name}"),
                _shown(call, getattr(one, name)),
                _shown(call, value),
            )
            for one in before
            for name, value in changes.items()
            if getattr(one, name) != value
        ]
        silent = silent_brokers(call, group=group)
        warnings = silence_warnings(call, silent)
        if changes.get("enabled") is False:
            warnings.append(call.t("actions.change_group_stops"))
        return Preview(
            call.command("group", "update", group, *_flags(changes)),
            call.t("actions.change_group_effect", group=group),
            columns=_change_columns(call),
            rows=tuple(rows),
            basis=[group, rows, silent],
            warnings=tuple(warnings),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group = call.required("group")
        groups = call.console.admin.groups
        changes = _changes(call, await groups.settings(group))
        enabled, retries = changes.get("enabled"), changes.get("retries_max")
        broadcast, ordered = changes.get("broadcast_allowed"), changes.get("ordered")
        done = await groups.change(
            group,
            retries_max=None if retries is None else int(retries),
            enabled=None if enabled is None else bool(enabled),
            broadcast_allowed=None if broadcast is None else bool(broadcast),
            ordered=None if ordered is None else bool(ordered),
        )
        brokers = ", ".join(one.broker for one in done)
        sentence = call.t("actions.change_group_done", group=group, brokers=brokers)
        return Outcome(sentence, path=f"{group_path(group)}/settings")


def _changes(call: Call, before: tuple[GroupSettings, ...]) -> dict[str, bool | int]:
    """Returns the settings that a broker does not have yet. Raises FormError if there are none."""
    wanted: dict[str, bool | int | None] = {"retries_max": call.number("retries_max", 0, RETRIES_MAX)}
    wanted |= {name: {"yes": True, "no": False}.get(call.field(name)) for name in SWITCHES}
    changes = {
        name: value
        for name, value in wanted.items()
        if value is not None and any(getattr(one, name) != value for one in before)
    }
    if not changes:
        raise FormError(call.t("actions.nothing_changes"))
    return changes


def _flags(changes: Mapping[str, bool | int]) -> list[str]:
    flags: list[str] = []
    for name, value in changes.items():
        if name in SWITCHES:
            flags.append(SWITCHES[name][0 if value else 1])
        else:
            flags += ["--retries", str(value)]
    return flags


def _shown(call: Call, value: bool | int) -> str:
    return call.t("groups.yes" if value else "groups.no") if isinstance(value, bool) else str(value)


def _change_columns(call: Call) -> tuple[str, ...]:
    return (
        call.t("common.broker"),
        *(call.t(f"actions.column_{name}") for name in ("setting", "before", "after")),
    )


class LimitGroup(Action):
    """Limits how much each broker gives to a group."""

    name = "limit-group"
    form = "actions/limit_group.html"

    async def choices(self, call: Call) -> dict[str, object]:
        limits = (await call.console.admin.groups.limits(call.required("group")))[0]
        size = limits.bytes_per_second
        return {
            "limits": limits,
            "bytes": "" if size is None else write_bytes(size),
            "messages_max": MESSAGES_MAX,
        }

    def target(self, call: Call) -> str:
        return call.field("group")

    async def preview(self, call: Call) -> Preview:
        group = call.required("group")
        limits = await call.console.admin.groups.limits(group)
        fields = ("messages_per_second", "bytes_per_second")
        wanted = {field: _rate(call, field) for field in fields}
        rows = [
            (
                one.broker,
                call.t(f"actions.field_{field}"),
                _limit(call, field, getattr(one, field)),
                _limit(call, field, wanted[field]),
            )
            for one in limits
            for field in fields
            if getattr(one, field) != wanted[field]
        ]
        if not rows:
            raise FormError(call.t("actions.nothing_changes"))
        words = [
            word
            for field in fields
            if any(getattr(one, field) != wanted[field] for one in limits)
            for word in (f"--{field.replace('_', '-')}", str(wanted[field] or "none"))
        ]
        silent = silent_brokers(call, group=group)
        return Preview(
            call.command("group", "limit", group, *words),
            call.t("actions.limit_group_effect", group=group),
            columns=_change_columns(call),
            rows=tuple(rows),
            basis=[group, rows, silent],
            warnings=tuple(silence_warnings(call, silent)),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group = call.required("group")
        await call.console.admin.groups.limit(
            group,
            messages_per_second=_or_none(_rate(call, "messages_per_second")),
            bytes_per_second=_or_none(_rate(call, "bytes_per_second")),
        )
        return Outcome(call.t("actions.limit_group_done", group=group), path=f"{group_path(group)}/settings")


def _rate(call: Call, field: str) -> int | None:
    """Returns the rate; None means no limit. Raises FormError."""
    text = call.field(field)
    if not text:
        return None
    kind: Kind = Bytes(1, BYTES_MAX) if field == "bytes_per_second" else Number(1, MESSAGES_MAX)
    try:
        value = kind.parse(text)
    except ValueError as error:
        raise FormError(f"{call.t(f'actions.field_{field}')}: {error}") from error
    assert isinstance(value, int)
    return value


def _or_none(rate: int | None) -> Rate:
    return "none" if rate is None else rate


def _limit(call: Call, field: str, value: int | None) -> str:
    if value is None:
        return call.t("groups.no_limit")
    return write_bytes(value) if field == "bytes_per_second" else f"{value:,}"


class DeleteGroup(Action):
    """Deletes a group with its committed offsets."""

    name = "delete-group"

    def target(self, call: Call) -> str:
        return call.field("group")

    async def preview(self, call: Call) -> Preview:
        group = call.required("group")
        groups = call.console.admin.groups
        brokers = [one.broker for one in await groups.settings(group)]
        progress = await groups.progress(group, times_of=())
        connected = await groups.members(group)
        members = [one.client_id for one in connected.members]
        silent = silent_brokers(call, (*progress.failures, *connected.failures), group=group)
        offsets: dict[str, list[int]] = {}
        for queue in progress.queues:
            offsets.setdefault(queue.queue.topic, []).append(queue.lag)
        rows = [
            (topic, at_least(len(lags), silent), at_least(sum(lags), silent))
            for topic, lags in sorted(offsets.items())
        ]
        warnings = silence_warnings(call, silent)
        if members:
            names = ", ".join(members[:5]) + (" …" if len(members) > 5 else "")
            warnings.append(call.t("actions.delete_group_members", n=len(members), members=names))
        return Preview(
            call.command("group", "delete", group, *(["--force"] if members else []), "--yes"),
            call.t("actions.delete_group_effect", group=group, brokers=", ".join(brokers)),
            columns=(call.t("common.topic"), call.t("actions.column_offsets"), call.t("common.lag")),
            rows=tuple(rows),
            basis=[group, brokers, sorted(offsets), bool(members), silent],
            typed_name=group,
            warnings=tuple(warnings),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group = call.required("group")
        brokers = await call.console.admin.groups.delete(group)
        return Outcome(
            call.t("actions.delete_group_done", group=group, brokers=", ".join(brokers)), path="/groups"
        )


def group_path(group: str) -> str:
    """Returns the address of the page of a group."""
    return f"/groups/{segment(group)}"


ACTIONS = (CreateGroup, ChangeGroup, LimitGroup, DeleteGroup)
