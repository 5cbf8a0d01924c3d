"""Errors between two peers.

MetaqError
├── Refused            an answer other than success: its code and remark
│   └── ProtocolError  a request or a body that cannot be read
└── Unreachable        no answer: the peer cannot be connected to, has left or is silent
"""

from __future__ import annotations

from metaq.errors import MetaqError
from metaq.protocol.codes import ResponseCode

_WORTH_ANOTHER_TRY = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    )
)


class Refused(MetaqError):
    """A handler raises it to answer with `code`; a caller gets it for such an answer."""

    code: int

    def __init__(self, code: int, remark: str, *, hint: str = "") -> None:
        super().__init__(f"{remark} (code {int(code)})", hint=hint, code=int(code))
        self.remark = remark
        self.retriable = code in _WORTH_ANOTHER_TRY


class ProtocolError(Refused):
    """The fields or the body of a command cannot be read."""

    def __init__(self, remark: str, code: int = ResponseCode.INVALID_PARAMETER) -> None:
        super().__init__(code, remark)


class Unreachable(MetaqError):
    """The peer cannot be connected to, closed the connection or did not answer in time."""

    retriable = True
