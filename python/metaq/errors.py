"""Every error that MetaQ raises on purpose.

MetaqError
├── ConfigError        a setting is misspelt, of the wrong type or out of its limits
├── CommandError       a command cannot do what it was asked
├── FunctionError      a filter function is not as it must be (filters/declared.py)
├── WorkerLost         the process of a filter function has ended (broker/functions/process.py)
├── Refused            an answer other than success (protocol/errors.py)
│   └── ProtocolError  a request or a body that cannot be read
└── Unreachable        no answer: the peer cannot be connected to, has left or is silent
"""

from __future__ import annotations


class MetaqError(Exception):
    """The root. `code` is the wire's response code where there is one, `hint` tells the reader what to do."""

    code: int | None = None
    retriable: bool = False

    def __init__(self, message: str, *, hint: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if code is not None:
            self.code = code


class ConfigError(MetaqError):
    """A setting is misspelt, of the wrong type or out of its limits."""


class CommandError(MetaqError):
    """A command cannot do what it was asked."""
