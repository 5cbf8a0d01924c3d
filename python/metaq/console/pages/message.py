"""One message: its timeline, its body in several forms, its properties and its copies."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.client.message import Message
from metaq.console.bodies import FORMS, BodyView, view_of
from metaq.console.console import Console, console_of
from metaq.console.pages.message_export import attachment, file_name
from metaq.console.pages.message_search import silent_brokers
from metaq.console.rendering import render, render_part
from metaq.errors import MetaqError, NoRoute, NoSuchMessage, UnreadableBody, UsageError
from metaq.protocol.errors import Refused


@dataclass(frozen=True, slots=True)
class StoredCopies:
    """All that a topic has of a message, and the one to show."""

    shown: Message
    copies: tuple[Message, ...]
    """All messages with the id, the oldest first."""


async def find_copies(console: Console, id: str, topic: str, copy: str) -> StoredCopies:
    """Finds a message by its id, or by its offset id. `copy` is the offset id of the one to show. Raises
    NoSuchMessage and NoRoute."""
    copies: tuple[Message, ...] = ()
    error: MetaqError = NoSuchMessage(f"no broker has a message with the id {id}")
    if topic:
        try:
            copies = await console.admin.messages.by_id(topic, id)
        except NoSuchMessage as missing:
            error = missing
    shown = next((one for one in copies if one.offset_id == copy.upper()), None)
    if shown is None and copies and not copy:
        shown = copies[0]
    if shown is None:
        with suppress(NoSuchMessage, UsageError):
            shown = await console.admin.messages.by_offset_id(copy or id)
    if shown is None and not topic:
        return await _find_by_trace(console, id, error)
    if shown is None:
        raise error
    if shown.offset_id not in {one.offset_id for one in copies}:
        copies = (shown, *copies)
    return StoredCopies(shown, copies)


async def _find_by_trace(console: Console, id: str, error: MetaqError) -> StoredCopies:
    """Without a topic, only a trace of the producer says where the message is."""
    with suppress(NoSuchMessage, NoRoute, Refused):
        timeline = await console.admin.traces.timeline(id)
        if timeline.topic is not None:
            copies = await console.admin.messages.by_id(timeline.topic, id)
            return StoredCopies(copies[0], copies)
    raise error


async def message(request: Request) -> Response:
    """The page of a message, or the drawer. The timeline follows on its own, because it asks every group."""
    console, id, topic, copy = _address(request)
    try:
        found = await find_copies(console, id, topic, copy)
    except (NoSuchMessage, NoRoute) as error:
        if error.retriable:
            raise
        silent = silent_brokers(console, topic)
        return render(request, "message_missing.html", 404, id=id, topic=topic, error=error, silent=silent)
    view, fault = _view(found.shown, request.query_params.get("view"))
    return render(
        request,
        "message.html",
        id=id,
        message=found.shown,
        copies=found.copies,
        view=view,
        body_fault=fault,
        forms=FORMS,
        silent=silent_brokers(console, found.shown.topic),
    )


async def body(request: Request) -> Response:
    """The body in the form that a reader has chosen."""
    console, id, topic, copy = _address(request)
    found = await _found_or_404(console, id, topic, copy)
    view, fault = _view(found.shown, request.query_params.get("view"))
    return render_part(
        request, "messages/body.html", id=id, message=found.shown, view=view, body_fault=fault, forms=FORMS
    )


async def raw(request: Request) -> Response:
    """The bytes of the body, as a file."""
    console, id, topic, copy = _address(request)
    found = await _found_or_404(console, id, topic, copy)
    try:
        content = found.shown.body
    except UnreadableBody as error:
        raise HTTPException(422, str(error)) from None
    headers = attachment(f"{file_name(id)}.bin")
    return Response(content, media_type="application/octet-stream", headers=headers)


async def timeline(request: Request) -> Response:
    """Everything that happened to the message."""
    console, id, topic, _ = _address(request)
    try:
        found = await console.admin.traces.timeline(id, topic or None)
    except MetaqError as error:
        return render_part(request, "messages/timeline.html", timeline=None, error=error)
    return render_part(request, "messages/timeline.html", timeline=found, error=None)


async def _found_or_404(console: Console, id: str, topic: str, copy: str) -> StoredCopies:
    try:
        return await find_copies(console, id, topic, copy)
    except (NoSuchMessage, NoRoute) as error:
        if error.retriable:
            raise
        raise HTTPException(404, str(error)) from None


def _address(request: Request) -> tuple[Console, str, str, str]:
    parameters = request.query_params
    id: str = request.path_params["id"]
    return console_of(request), id, parameters.get("topic", ""), parameters.get("copy", "")


def _view(message: Message, wanted: str | None) -> tuple[BodyView | None, str]:
    """Returns the body in a form, or why it cannot be read."""
    try:
        return view_of(message.body, wanted), ""
    except UnreadableBody as error:
        return None, str(error)


ROUTES = [
    Route("/messages/{id}", message),
    Route("/messages/{id}/body", body),
    Route("/messages/{id}/raw", raw),
    Route("/messages/{id}/timeline", timeline),
]
