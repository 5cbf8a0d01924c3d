"""Every error that MetaQ raises on purpose.

MetaqError
├── ConfigError        a setting is misspelt, of the wrong type or out of its limits
├── CommandError       a command cannot do what it was asked
├── FunctionError      a filter function is not as it must be (filters/declared.py)
├── WorkerLost         the process of a filter function has ended (broker/functions/process.py)
├── Refused            an answer other than success (protocol/errors.py)
│   └── ProtocolError  a request or a body that cannot be read
├── Unreachable        no answer: the peer cannot be connected to, has left or is silent
└── ClientError        what only the client raises
    ├── UsageError     a call that breaks one of the client's rules; nothing was sent
    │   ├── InvalidMessage  what is to be sent is of the wrong type, too large or badly named
    │   └── ClientClosed    the client or the producer is closed, or was not started
    ├── NoRoute        no broker has the topic, or none of its queues can be used
    ├── NoSuchGroup    no broker has the group
    ├── NoSuchMessage  no broker has the message
    ├── AlreadyExists  a topic or group exists with other settings
    ├── NotSupported   a broker cannot do what was asked
    ├── NotSent        a message was not sent, after as many tries as its time allowed
    ├── NotDurable     a message is stored, but not flushed or replicated in time
    ├── NotAllSent     some of many messages were not sent
    ├── NotDelivered   what a flush or a close found not to be sent
    ├── NoReply        nobody answered a request in time
    ├── Undecided      the end of a transaction did not reach its broker, which will ask the checker
    └── UnreadableBody a body that is compressed in a way that cannot be undone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.client.producer.results import SendResult


class MetaqError(Exception):
    """The root. `code` is the wire's response code where there is one, `hint` tells the reader what to do."""

    code: int | None = None
    retriable: bool = False
    """Whether the same call may succeed later."""

    def __init__(self, message: str, *, hint: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if code is not None:
            self.code = code


class ConfigError(MetaqError):
    """A setting is misspelt, of the wrong type or out of its limits."""


class CommandError(MetaqError):
    """A command cannot do what it was asked."""


class ClientError(MetaqError):
    """The root of what only the client raises; its text ends with the hint, as nobody prints that for it."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.hint}" if self.hint else text


class UsageError(ClientError):
    """A call of the client that breaks one of its rules; nothing was sent."""


class InvalidMessage(UsageError, ValueError):
    """What is to be sent is of the wrong type, too large or badly named."""


class ClientClosed(UsageError):
    """The client or the producer is closed, or was not started."""


class NoRoute(ClientError):
    """No broker has the topic, or none of its queues can be used for what was asked."""

    code = 17


class NoSuchGroup(ClientError):
    """No broker has the group."""

    code = 26


class NoSuchMessage(ClientError):
    """No broker has the message, or none has it any longer."""

    code = 22


class AlreadyExists(ClientError):
    """A topic or group exists with other settings than those that were given."""

    code = 18


class NotSupported(ClientError):
    """A broker cannot do what was asked: it is too old, or not one of MetaQ's."""

    code = 3


class NotSent(ClientError):
    """A message was not sent, after as many tries as its time allowed; it may be stored all the same where
    an answer was lost. The last failure is its `__cause__`."""

    retriable = True


class NotDurable(ClientError):
    """A message is stored, but its broker did not flush or replicate it in time. To send it again would
    store it twice."""

    def __init__(self, message: str, result: SendResult, *, code: int, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.result = result


class NotDelivered(ClientError):
    """What a flush or a close found not to be sent: how many, and the first of their failures."""

    def __init__(self, count: int, failures: Sequence[Exception]) -> None:
        first = f", the first because: {failures[0]}" if failures else ""
        super().__init__(f"{count} {'message was' if count == 1 else 'messages were'} not delivered{first}")
        self.count = count
        self.failures = tuple(failures)


class NotAllSent(ClientError):
    """Some of many were not sent; `outcomes` has a result or an error for each, in order."""

    def __init__(self, outcomes: Sequence[SendResult | MetaqError]) -> None:
        failures = [outcome for outcome in outcomes if isinstance(outcome, MetaqError)]
        super().__init__(f"{len(failures)} of {len(outcomes)} messages were not sent: {failures[0]}")
        self.outcomes = tuple(outcomes)
        self.code = failures[0].code
        self.retriable = all(failure.retriable for failure in failures)


class NoReply(ClientError):
    """Nobody answered a request in time; it may have been worked on all the same."""

    retriable = True


class Undecided(ClientError):
    """The end of a transaction did not reach its broker, which will ask the checker."""


class UnreadableBody(ClientError):
    """A body that is compressed in a way that cannot be undone, or grows past the limit."""
