"""Decides where requests of operators about waiting messages may come from.

RocketMQ has no such requests. They name messages and transactions of all clients and end them without the
handle or the producer group that protects them otherwise. Until there is access control, the address of the
peer has to do.
"""

from __future__ import annotations

from typing import Final

from metaq.protocol.commands.waiting import (
    DecideTransaction,
    GetDelayedFigures,
    ListDelayedMessages,
    ListTransactions,
    RecallDelayedMessage,
)
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.operator_requests import OperatorRequests, OperatorSources

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


class OperatorGate(OperatorRequests):
    """Passes requests on to the handlers of a role, except operators' requests from elsewhere."""

    server = "broker"
    what = "requests about delayed messages and open transactions"

    def __init__(self, handlers: Handlers, sources: OperatorSources) -> None:
        super().__init__(handlers, sources, CODES)
