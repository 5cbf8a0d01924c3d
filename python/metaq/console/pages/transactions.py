"""Open transactions: half messages whose producers have not decided."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.console.console import console_of
from metaq.console.rendering import render

SHOWN: Final = 100


async def transactions(request: Request) -> Response:
    """The oldest half messages with the checks so far."""
    producer_group = request.query_params.get("group", "").strip()[:255]
    found = await console_of(request).admin.transactions.list(
        limit=SHOWN, producer_group=producer_group or None
    )
    return render(request, "transactions.html", found=found, producer_group=producer_group)


ROUTES = [Route("/transactions", transactions)]
