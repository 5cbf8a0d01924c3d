"""The addresses of actions: `/actions/NAME` has the form, `…/preview` the effect, `…/apply` the change."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.access.body import BODY_BYTES_MAX
from metaq.console.access.roles import address_of, require
from metaq.console.actions.action import Action, Call, FormError, Preview
from metaq.console.actions.table import ACTIONS
from metaq.console.console import console_of
from metaq.console.live.changes import changed_cluster
from metaq.console.rendering import render, render_part
from metaq.errors import MetaqError

FIELDS_MAX: Final = 2_000
"""Fields of a form, such as the queues of a reset or the selected letters."""


async def show_form(request: Request) -> Response:
    """The form of an action; its preview, if there is nothing to choose."""
    action, call = await _call(request)
    if action.form is None:
        return await _show_preview(request, action, call, page="actions/page.html")
    try:
        choices = await action.choices(call)
    except (MetaqError, FormError) as error:
        return _refused(request, action, call, error, page="actions/page.html")
    return render(request, "actions/page.html", action=action, call=call, choices=choices, preview=None)


async def show_preview(request: Request) -> Response:
    """The effect that the action would have with the fields of the form."""
    action, call = await _call(request)
    return await _show_preview(request, action, call, page="actions/preview.html")


async def apply(request: Request) -> Response:
    """Applies an action if its preview is still true, and writes it to the audit log either way."""
    action, call = await _call(request)
    seen = call.field("fingerprint")
    try:
        preview = await action.preview(call)
    except (MetaqError, FormError) as error:
        await _record(call, action, "", "refused", str(error))
        return _refused(request, action, call, error, page="actions/preview.html")
    if preview.fingerprint != seen:
        await _record(call, action, preview.command, "changed")
        return _preview_part(request, action, call, preview, notice=call.t("actions.changed"))
    if preview.typed_name is not None and call.field("typed_name") != preview.typed_name:
        return _preview_part(
            request, action, call, preview, notice=call.t("actions.type_the_name", name=preview.typed_name)
        )
    await _record(call, action, preview.command, "begun")
    try:
        outcome = await action.apply(call, preview)
    except (MetaqError, FormError) as error:
        await _record(call, action, preview.command, "failed", str(error))
        return _refused(request, action, call, error, page="actions/preview.html")
    except BaseException as error:
        # Even a cancelled request leaves its end in the log: the change may have been made.
        await _record(call, action, preview.command, "unknown", repr(error))
        raise
    finally:
        changed_cluster(request)
    await _record(
        call, action, preview.command, "failed in part" if outcome.failed else "done", outcome.sentence
    )
    response = render_part(request, "actions/outcome.html", action=action, preview=preview, outcome=outcome)
    response.headers["HX-Trigger"] = "changed-cluster"
    return response


async def _call(request: Request) -> tuple[Action, Call]:
    action = ACTIONS.get(request.path_params["name"])
    if action is None:
        raise HTTPException(404)
    identity = require(request, action.role)
    # The middleware bounds the whole body; one field may have all of it, such as the body of a message.
    fields = (
        request.query_params
        if request.method == "GET"
        else await request.form(max_files=0, max_fields=FIELDS_MAX, max_part_size=BODY_BYTES_MAX)
    )
    form = {name: value for name, value in fields.multi_items() if isinstance(value, str)}
    selected = tuple(value for value in fields.getlist("selected") if isinstance(value, str))
    return action, Call(request, console_of(request), identity, form, selected)


async def _show_preview(request: Request, action: Action, call: Call, page: str) -> Response:
    try:
        preview = await action.preview(call)
    except (MetaqError, FormError) as error:
        return _refused(request, action, call, error, page)
    if page == "actions/page.html":
        return render(
            request, page, action=action, call=call, choices={}, preview=preview, notice="", error=""
        )
    return _preview_part(request, action, call, preview)


def _preview_part(
    request: Request, action: Action, call: Call, preview: Preview, notice: str = ""
) -> Response:
    return render_part(
        request, "actions/preview.html", action=action, call=call, preview=preview, notice=notice, error=""
    )


def _refused(request: Request, action: Action, call: Call, error: Exception, page: str) -> Response:
    hint = getattr(error, "hint", "") or ""
    show = render if page == "actions/page.html" else render_part
    return show(
        request,
        page,
        action=action,
        call=call,
        choices={},
        preview=None,
        notice="",
        error=str(error),
        hint=hint,
        reason_path=getattr(error, "path", ""),
    )


async def _record(call: Call, action: Action, command: str, result: str, detail: str = "") -> None:
    await call.console.access.audit.record(
        call.identity,
        address_of(call.request),
        command or f"({action.name})",
        action.target(call),
        result,
        detail,
    )


ROUTES = [
    Route("/actions/{name}", show_form),
    Route("/actions/{name}/preview", show_preview, methods=["POST"]),
    Route("/actions/{name}/apply", apply, methods=["POST"]),
]
