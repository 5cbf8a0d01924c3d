"""Actions on dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from metaq.console.access.roles import address_of
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.actions.jobs import Job, JobLine
from metaq.console.actions.silence import at_least, silence_warnings, silent_brokers
from metaq.console.bodies import view_of
from metaq.console.live.changes import changed_cluster
from metaq.errors import explained
from metaq.protocol.names import dead_letter_topic

RATE: Final = 100
RATE_MAX: Final = 10_000
SELECTED_MAX: Final = 200
ROWS_SHOWN: Final = 20
BODY_BYTES_MAX: Final = 1024 * 1024
"""The largest body that the form shows: a browser must be able to hold it."""
COMPARED_BYTES_MAX: Final = 16 * 1024
"""How much of the old and of the new body a preview shows."""
COUNT_MAX: Final = 2**53


class ResendLetters(Action):
    """Gives a group some of its dead letters again."""

    name = "resend-letters"
    form = "actions/resend_letters.html"

    def target(self, call: Call) -> str:
        return call.field("group")

    async def preview(self, call: Call) -> Preview:
        group, rate = call.required("group"), call.number("rate", 1, RATE_MAX) or RATE
        ids = _selected(call)
        _refuse_second(call, group)
        flags = [part for id in ids for part in ("--id", id)]
        command = call.command("dlq", "resend", group, *flags, "--rate", str(rate))
        return Preview(
            command,
            call.t("actions.resend_letters_effect", count=len(ids), group=group, rate=rate),
            columns=(call.t("common.message"),),
            rows=tuple((id,) for id in ids[:ROWS_SHOWN]),
            rows_total=len(ids),
            basis=[group, rate, list(ids)],
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group, rate = call.required("group"), call.number("rate", 1, RATE_MAX) or RATE
        ids = _selected(call)
        return _start(call, preview, group, ids, rate, len(ids))


class ResendAllLetters(Action):
    """Gives a group all its dead letters again that were not sent again yet."""

    name = "resend-all-letters"
    form = "actions/resend_all_letters.html"

    def target(self, call: Call) -> str:
        return call.field("group")

    async def preview(self, call: Call) -> Preview:
        group, rate = call.required("group"), call.number("rate", 1, RATE_MAX) or RATE
        _refuse_second(call, group)
        count = (await call.console.admin.dead_letters.counts([group]))[0]
        if count.waiting is None:
            raise FormError(count.error or call.t("common.unknown"))
        if count.waiting == 0:
            raise FormError(call.t("dead_letters.none_wait"))
        silent = silent_brokers(call, topic=dead_letter_topic(group))
        # The group may have got some of them meanwhile, but nobody has agreed to more.
        shown = max(count.waiting, call.number("shown_count", 0, COUNT_MAX) or 0)
        return Preview(
            call.command("dlq", "resend", group, "--rate", str(rate)),
            call.t(
                "actions.resend_all_letters_effect", count=at_least(shown, silent), group=group, rate=rate
            ),
            basis=[group, rate, shown, silent],
            warnings=tuple(silence_warnings(call, silent)),
            shown_count=shown,
            plan=count.waiting,
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group, rate = call.required("group"), call.number("rate", 1, RATE_MAX) or RATE
        assert isinstance(preview.plan, int)
        return _start(call, preview, group, None, rate, preview.plan)


class EditLetter(Action):
    """Gives a group one dead letter again with another body."""

    name = "edit-letter"
    form = "actions/edit_letter.html"

    def target(self, call: Call) -> str:
        return call.field("group")

    async def choices(self, call: Call) -> dict[str, object]:
        letter = await call.console.admin.dead_letters.find(call.required("group"), call.required("id"))
        body = letter.message.body
        if len(body) > BODY_BYTES_MAX:
            raise FormError(call.t("actions.body_too_large", size=len(body), most=BODY_BYTES_MAX))
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise FormError(call.t("actions.body_not_text")) from None
        return {"letter": letter, "body": text}

    async def preview(self, call: Call) -> Preview:
        group, id = call.required("group"), call.required("id")
        letter = await call.console.admin.dead_letters.find(group, id)
        body = _edited_body(call)
        stored = letter.message.body
        rows = (
            (call.t("actions.stored_body"), f"{len(stored):,} B"),
            (call.t("actions.new_body"), f"{len(body):,} B"),
        )
        return Preview(
            call.command("dlq", "resend", group, "--id", id, "--body-file", "BODY"),
            call.t("actions.edit_letter_effect", group=group),
            columns=(call.t("dead_letters.body"), call.t("common.size")),
            rows=rows,
            basis=[letter.message.offset_id, body.decode()],
            compared=(_beginning(stored), _beginning(body)),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        group = call.required("group")
        await call.console.admin.dead_letters.resend_one(group, call.required("id"), body=_edited_body(call))
        return Outcome(call.t("actions.edit_letter_done", group=group))


def _edited_body(call: Call) -> bytes:
    """Returns the body of the form. Browsers end lines with CR LF in forms; a body has what was there."""
    text = call.form.get("body", "")
    return (text if call.field("line_ends") == "crlf" else text.replace("\r\n", "\n")).encode()


def _beginning(body: bytes) -> str:
    view = view_of(body[:COMPARED_BYTES_MAX], "text")
    return view.text + ("…" if len(body) > COMPARED_BYTES_MAX else "")


def _selected(call: Call) -> tuple[str, ...]:
    ids = tuple(dict.fromkeys(call.selected))
    if not ids:
        raise FormError(call.t("actions.nothing_selected"))
    if len(ids) > SELECTED_MAX:
        raise FormError(call.t("actions.too_many_selected", count=len(ids), most=SELECTED_MAX))
    return ids


def _refuse_second(call: Call, group: str) -> None:
    """Two jobs at the same time would send letters twice. Raises FormError."""
    running = call.console.jobs.running(group)
    if running is not None:
        raise FormError(call.t("actions.resend_runs", group=group), path=f"/jobs/{running.id}")


def _start(
    call: Call, preview: Preview, group: str, ids: Sequence[str] | None, rate: int, total: int
) -> Outcome:
    async def steps() -> AsyncGenerator[JobLine, None]:
        outcomes = call.console.admin.dead_letters.resend_each(group, ids, rate=rate)
        async with aclosing(outcomes):
            async for outcome in outcomes:
                yield JobLine(outcome.id, None if outcome.error is None else explained(outcome.error))

    async def ended(job: Job) -> None:
        changed_cluster(call.request)
        result = "stopped" if job.is_cancelled else "failed" if job.error or job.failed else "done"
        detail = job.error or f"{job.done} sent, {job.failed} failed"
        identity, address = job.stopped_by or (call.identity, address_of(call.request))
        if job.stopped_by is not None:
            detail += f"; begun by {call.identity.name}"
        elif job.is_cancelled:
            detail += "; the console has stopped"
        await call.console.access.audit.record(
            identity, address, preview.command, group, f"job {result}", detail
        )

    # Another one may have begun since the preview. Nothing awaits between this and the start.
    _refuse_second(call, group)
    title = f"{call.t('actions.resend_letters')}: {group}"
    job = call.console.jobs.start(title, preview.command, total, steps(), ended, subject=group)
    return Outcome(call.t("actions.resend_letters_begun", group=group), job=job.id)


ACTIONS = (ResendLetters, ResendAllLetters, EditLetter)
