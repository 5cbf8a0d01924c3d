"""Lists of messages as files: CSV for spreadsheets and JSON for programs."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.messages.message_facts import message_facts
from metaq.client.message import Message
from metaq.console.console import console_of
from metaq.console.csv_files import csv_text
from metaq.console.pages.body_reading import BYTES_MAX, MessageRow, export_turn
from metaq.console.pages.message_search import FoundMessages, message_query, search
from metaq.errors import UnreadableBody, UsageError

EXPORTED_MAX: Final = 1_000
NOT_READ: Final = f"not read: an export reads {BYTES_MAX // 1024**2} MiB of bodies"
_COLUMNS: Final = (
    *("topic", "broker", "queue_id", "queue_offset", "id", "offset_id", "tag", "keys", "born_timestamp_ms"),
    *("store_timestamp_ms", "born_host", "store_host", "reconsume_times", "properties"),
    *("body", "body_base64", "body_error"),
)
"""The same keys as `metaq message find -o json` has."""


async def export(request: Request) -> Response:
    """The newest messages that match, as a file. The name of a file that may lack some says so."""
    name: str = request.path_params["name"]
    kind: str = request.path_params["kind"]
    if kind not in ("csv", "json"):
        raise HTTPException(404)
    async with export_turn():
        try:
            found = await search(console_of(request), message_query(request, name), EXPORTED_MAX)
        except UsageError as error:
            raise HTTPException(400, str(error)) from None
        content = await asyncio.to_thread(_content, name, kind, found)
    media_type = "text/csv; charset=utf-8" if kind == "csv" else "application/json"
    file = f"{file_name(name)}{'-partial' if _is_partial(found) else ''}.{kind}"
    return Response(content, media_type=media_type, headers=attachment(file))


def _content(name: str, kind: str, found: FoundMessages) -> bytes:
    records = (_record_of(row) for row in found.rows)
    if kind == "csv":
        return csv_text(_COLUMNS, map(_flat, records)).encode()
    document = {"topic": name, "is_partial": _is_partial(found), "messages": list(records)}
    return msgspec.json.encode(document)


def _record_of(row: MessageRow) -> dict[str, object]:
    if row.is_read:
        return record(row.message)
    return message_facts(row.message) | {"body": None, "body_base64": None, "body_error": NOT_READ}


def attachment(file: str) -> dict[str, str]:
    """Returns the headers of a file that a browser saves and never shows."""
    return {"Content-Disposition": f'attachment; filename="{file}"', "X-Content-Type-Options": "nosniff"}


def file_name(name: str) -> str:
    """Returns a name that every system accepts for a file."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:100].lstrip(".") or "messages"


def record(message: Message) -> dict[str, object]:
    """Returns a message as programs read it. A body that is not text is in base 64."""
    text = encoded = fault = None
    try:
        body = message.body
        try:
            text = body.decode()
        except UnicodeDecodeError:
            encoded = b64encode(body).decode()
    except UnreadableBody as error:
        fault = str(error)
    return message_facts(message) | {"body": text, "body_base64": encoded, "body_error": fault}


def _is_partial(found: FoundMessages) -> bool:
    is_cut = found.before or found.is_index_full or found.queues_left_out
    return bool(is_cut or found.failures or found.unread)


def _flat(row: dict[str, object]) -> dict[str, object]:
    keys, properties = row["keys"], row["properties"]
    assert isinstance(keys, list)
    return {**row, "keys": " ".join(keys), "properties": msgspec.json.encode(properties).decode()}


ROUTES = [Route("/topics/{name}/messages.{kind}", export)]
