"""Decides where requests of operators may come from.

They change what belongs to others. Until there is access control, the address of the peer has to do.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from metaq.protocol.codes import ResponseCode
from metaq.protocol.dispatch import Handlers, Request, Unfinished
from metaq.protocol.handling.local_peers import is_local

OperatorSources = Literal["local", "any", "none"]


def is_welcome(sources: OperatorSources, remote: str) -> bool:
    """Whether an operator's request may come from this peer."""
    return sources == "any" or (sources == "local" and is_local(remote))


class OperatorRequests(Handlers):
    """Passes requests on to other handlers, except operators' requests from elsewhere."""

    server = "server"
    what = "requests of operators"
    option = "operator_requests"

    def __init__(self, handlers: Handlers, sources: OperatorSources, codes: Collection[int]) -> None:
        super().__init__()
        self._handlers = handlers
        self._sources = sources
        self._codes = codes

    def begin(self, request: Request) -> Unfinished | None:
        if request.code not in self._codes or is_welcome(self._sources, request.remote):
            return self._handlers.begin(request)
        if not request.oneway:
            request.respond(ResponseCode.NO_PERMISSION, remark=self.refusal(request.remote))
        return None

    def refusal(self, remote: str) -> str:
        if self._sources == "none":
            return f"this {self.server} takes no {self.what} ({self.option})"
        return (
            f"this {self.server} takes {self.what} only from its own machine, and {remote} is another one; "
            f"to allow all addresses, start the {self.server} with {self.option}=any"
        )
