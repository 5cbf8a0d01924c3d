"""Decides where requests of operators about waiting messages may come from.

RocketMQ has no such requests. They name messages and transactions of all clients and end them without the
handle or the producer group that protects them otherwise. Until there is access control, the address of the
peer has to do.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from metaq.broker.options import OperatorSources
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.waiting import (
    DecideTransaction,
    GetDelayedFigures,
    ListDelayedMessages,
    ListTransactions,
    RecallDelayedMessage,
)
from metaq.protocol.dispatch import Handlers, Request
from metaq.protocol.handling.local_peers import is_local

CODES: Final = frozenset(
    command.code
    for command in (
        GetDelayedFigures,
        ListDelayedMessages,
        RecallDelayedMessage,
        ListTransactions,
        DecideTransaction,
    )
)


class OperatorGate(Handlers):
    """Passes requests on to the handlers of a role, except operators' requests from elsewhere."""

    def __init__(self, handlers: Handlers, sources: OperatorSources) -> None:
        super().__init__()
        self._handlers = handlers
        self._sources = sources

    def begin(self, request: Request) -> Awaitable[None] | None:
        if request.code not in CODES or self._is_welcome(request.remote):
            return self._handlers.begin(request)
        if not request.oneway:
            request.respond(ResponseCode.NO_PERMISSION, remark=self._refusal(request.remote))
        return None

    def _is_welcome(self, remote: str) -> bool:
        return self._sources == "any" or (self._sources == "local" and is_local(remote))

    def _refusal(self, remote: str) -> str:
        what = "requests about delayed messages and open transactions"
        if self._sources == "none":
            return f"this broker takes no {what} (operator_requests)"
        return (
            f"this broker takes {what} only from its own machine, and {remote} is another one; "
            "to allow all addresses, start the broker with operator_requests=any"
        )
