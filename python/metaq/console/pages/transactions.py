"""Open transactions: half messages whose producers have not decided."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.waiting.results import OpenTransactions
from metaq.console.console import console_of
from metaq.console.live.latest import latest_of
from metaq.console.rendering import render

SHOWN: Final = 100


async def transactions(request: Request) -> Response:
    """The oldest half messages with the checks so far."""
    admin = console_of(request).admin
    producer_group = request.query_params.get("group", "").strip()[:255]

    async def ask(_: OpenTransactions | None) -> OpenTransactions:
        return await admin.transactions.list(limit=SHOWN, producer_group=producer_group or None)

    look = await latest_of(request).ask(("transactions", producer_group), ask)
    return render(request, "transactions.html", look=look, found=look.value, producer_group=producer_group)


ROUTES = [Route("/transactions", transactions)]
