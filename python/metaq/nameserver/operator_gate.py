"""Decides where requests may come from that change what belongs to all."""

from __future__ import annotations

from typing import Final

from metaq.protocol.commands.routes import (
    AddWritePermissionOfBroker,
    DeleteKeyValue,
    PutKeyValue,
    UpdateNameServerConfig,
    WipeWritePermissionOfBroker,
)
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.operator_requests import OperatorRequests, OperatorSources

CODES: Final = frozenset(
    command.code
    for command in (
        PutKeyValue,
        DeleteKeyValue,
        WipeWritePermissionOfBroker,
        AddWritePermissionOfBroker,
        UpdateNameServerConfig,
    )
)


class OperatorGate(OperatorRequests):
    """Passes requests on to the handlers of a name server, except operators' requests from elsewhere."""

    server = "name server"
    what = "changes of values, switches and write permissions"
    option = "nameserver_operator_requests"

    def __init__(self, handlers: Handlers, sources: OperatorSources) -> None:
        super().__init__(handlers, sources, CODES)
