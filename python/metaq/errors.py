"""All errors that MetaQ raises on purpose.

MetaqError
├── ConfigError        a setting is misspelt, has the wrong type or is out of its limits
├── CommandError       a command cannot do its work
├── FunctionError      a filter function breaks a rule (filters/declared.py)
├── WorkerLost         the process of a filter function has ended (broker/functions/process.py)
├── RegisterUnavailable  the register of masters did not answer (ha/register.py)
├── LinkRefused        the peer on a replication link is not the right one (ha/handshake.py)
├── Refused            the peer answered with an error code (protocol/errors.py)
│   └── ProtocolError  a request or a body is malformed
├── Unreachable        the peer cannot be reached, closed the connection or does not answer
└── ClientError        raised only by the client
    ├── UsageError     a call breaks a rule of the client; nothing was sent
    │   ├── InvalidMessage  a message has the wrong type, is too large or is badly named
    │   └── ClientClosed    the client or the producer is closed or was not started
    ├── NoRoute        no broker has the topic, or none of its queues can be used
    ├── NoSuchGroup    no broker has the group
    ├── NoSuchMessage  no broker has the message
    ├── AlreadyExists  a topic or group exists with other settings
    ├── NotSupported   a broker cannot do what was asked
    ├── NotSent        a message was not sent, after all attempts
    ├── NotDurable     a message is stored, but was not flushed or replicated in time
    ├── NotAllSent     some of many messages were not sent
    ├── NotDelivered   a flush or a close found messages that were not sent
    ├── NoReply        nobody replied to a request in time
    ├── Undecided      the end of a transaction did not reach its broker, which will ask the checker
    ├── HandlerTimeout a call of a handler took longer than its handler_timeout
    ├── UnreadableBody a body cannot be decompressed
    └── UnusableFile   a file of the client cannot be opened, locked, read or written

Every error has three attributes, with defaults on its class:

code       the response code of the wire, or None
retriable  whether the same call may succeed later
hint       what the reader can do about it, or an empty text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.client.producer.results import SendResult


class MetaqError(Exception):
    """The base class of all errors of MetaQ."""

    code: int | None = None
    """The response code of the wire, or None."""
    retriable: bool = False
    """Whether the same call may succeed later."""
    hint: str = ""
    """Advice for the reader, or an empty text."""

    def __init__(
        self, message: str, *, hint: str = "", code: int | None = None, retriable: bool | None = None
    ) -> None:
        super().__init__(message)
        if hint:
            self.hint = hint
        if code is not None:
            self.code = code
        if retriable is not None:
            self.retriable = retriable


class ConfigError(MetaqError):
    """A setting is misspelt, has the wrong type or is out of its limits."""


class CommandError(MetaqError):
    """A command cannot do its work."""


class ClientError(MetaqError):
    """The base class of errors that only the client raises. Their text includes the hint."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.hint}" if self.hint else text


class UsageError(ClientError):
    """A call breaks a rule of the client. Nothing was sent."""


class InvalidMessage(UsageError, ValueError):
    """A message has the wrong type, is too large or is badly named."""


class ClientClosed(UsageError):
    """The client or the producer is closed, or it was not started."""


class NoRoute(ClientError):
    """No broker has the topic, or none of its queues can be used."""

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
    """A message was not sent, after as many attempts as its timeout allowed.

    It may be stored anyway, if only an answer was lost. The last failure is the `__cause__`.
    """

    retriable = True


class NotDurable(ClientError):
    """A message is stored, but its broker did not flush or replicate it in time.

    If you send it again, it is stored twice. `result` says where it is stored.
    """

    def __init__(self, message: str, result: SendResult, *, code: int, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.result = result


class NotDelivered(ClientError):
    """A flush or a close found messages that were not sent.

    `count` is their number, and `failures` holds the first errors.
    """

    def __init__(self, count: int, failures: Sequence[Exception]) -> None:
        first = f", the first because: {failures[0]}" if failures else ""
        super().__init__(f"{count} {'message was' if count == 1 else 'messages were'} not delivered{first}")
        self.count = count
        self.failures = tuple(failures)


class NotAllSent(ClientError):
    """Some of many messages were not sent. `outcomes` holds a result or an error for each, in order."""

    def __init__(self, outcomes: Sequence[SendResult | MetaqError]) -> None:
        failures = [outcome for outcome in outcomes if isinstance(outcome, MetaqError)]
        super().__init__(
            f"{len(failures)} of {len(outcomes)} messages were not sent: {failures[0]}",
            code=failures[0].code,
            retriable=all(failure.retriable for failure in failures),
        )
        self.outcomes = tuple(outcomes)


class NoReply(ClientError):
    """Nobody replied to a request in time. A consumer may have processed it anyway."""

    retriable = True


class Undecided(ClientError):
    """The end of a transaction did not reach its broker, which will ask the checker."""


class HandlerTimeout(ClientError, TimeoutError):
    """A call of a handler took longer than its `handler_timeout`. Its messages are retried."""

    retriable = True


class UnreadableBody(ClientError):
    """A body cannot be decompressed, or grows past the limit."""


class UnusableFile(ClientError):
    """A file of the client, for broadcast offsets or local retries, cannot be opened, locked or read."""


def explained(error: MetaqError) -> str:
    """Returns the text of an error with its hint, which only client errors include by themselves."""
    text = str(error)
    return f"{text}; {error.hint}" if error.hint and error.hint not in text else text
