"""Commands that clients and tools know and this broker does not offer yet."""

from __future__ import annotations

from typing import NoReturn

from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Request, handles
from metaq.protocol.errors import Refused
from metaq.protocol.messages import EndTransaction


class NotYet:
    """Answers them by name, so that nobody takes silence or a vague error for a fault of theirs."""

    @handles(EndTransaction)
    def refuse(self, command: Command, request: Request) -> NoReturn:
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"{type(command).__name__} ({command.code}) is not offered by this version of MetaQ yet",
        )
