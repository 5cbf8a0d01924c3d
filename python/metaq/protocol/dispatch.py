"""Finds the handler of a request and turns its result into the answer.

A handler is a method of the object whose state it touches:

    @handles(GetRouteInfoByTopic)
    def get_route_info_by_topic(self, command: GetRouteInfoByTopic, request: Request) -> Response: …

It returns a `Response` (or None for plain success), raises `Refused` to answer with another code, and may be
`async`. One that answers the request itself, now or later, or hands it back, returns `RESPONDED`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

from metaq._core import FrameError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command, Fields
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.handling import never
from metaq.protocol.handling.peer_log import peer_log

_log = logging.getLogger(__name__)


class Request(Protocol):
    """A request as a handler sees it. `_core.Request` is one; tests bring their own."""

    @property
    def code(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def language(self) -> int: ...
    @property
    def oneway(self) -> bool: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def connection(self) -> int: ...
    @property
    def remote(self) -> str: ...
    def respond(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None: ...
    def retry(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; `fields` may be the typed reply header of the command."""

    code: int = 0
    remark: str | None = None
    fields: Mapping[str, str] | Fields = field(default_factory=dict)
    body: bytes = b""

    def header(self) -> Mapping[str, str]:
        return self.fields.to_fields() if isinstance(self.fields, Fields) else self.fields


RESPONDED: Final = Response()
"""A handler returns this object if it answers the request itself, now or later, or has handed it back."""

Outcome = Response | None
Handler = Callable[[Any, Request], Outcome | Awaitable[Outcome]]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def handles(*commands: type[Command]) -> Callable[[_Method], _Method]:
    """Marks a method as the handler of these commands."""

    def mark(method: _Method) -> _Method:
        cast(Any, method).handled_commands = commands
        return method

    return mark


def handled_by(kind: type) -> Iterator[tuple[type[Command], str]]:
    """The commands that a class handles, each with the name of its method."""
    for name, member in inspect.getmembers(kind):
        for command in getattr(member, "handled_commands", ()):
            yield command, name


class Unfinished:
    """The rest of the work of an asynchronous handler: it is awaited, or dropped before it begins."""

    def __init__(self, request: Request, outcome: Awaitable[Outcome], command: type[Command]) -> None:
        self._request = request
        self._outcome = outcome
        self.command = command

    def __await__(self) -> Generator[Any, None, None]:
        return self._finish().__await__()

    async def _finish(self) -> None:
        request = self._request
        try:
            response = await self._outcome
        except asyncio.CancelledError:
            _respond(request, Response(ResponseCode.SERVICE_NOT_AVAILABLE, "this server stops: ask again"))
            raise
        except Exception as error:
            response = _answer_to(error, request)
        _respond(request, response)

    def drop(self) -> None:
        """Forgets work that has not begun; safe to call afterwards."""
        if inspect.iscoroutine(self._outcome):
            self._outcome.close()


class Handlers:
    """Every handler of one server, by request code."""

    def __init__(self, *objects: object) -> None:
        self._by_code: dict[int, tuple[type[Command], Handler]] = {}
        for owner in objects:
            self.add(owner)

    def add(self, owner: object) -> None:
        """Collects the marked methods of one more object; a code has one handler."""
        for command, name in handled_by(type(owner)):
            if command.code in self._by_code:
                raise ValueError(f"{command.__name__} ({command.code}) has two handlers")
            self._by_code[command.code] = (command, getattr(owner, name))

    def commands(self) -> list[type[Command]]:
        return [command for command, _ in self._by_code.values()]

    def begin(self, request: Request) -> Unfinished | None:
        """Handles the request. Returns the rest of the work of an asynchronous handler."""
        try:
            found = self._by_code.get(request.code)
            if found is None:
                raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, never.remark(request.code))
            command, handler = found
            _check_body(command, request)
            if request.oneway and command.ends_with_connection:
                return None  # Nobody gets the answer, and there is nothing else to do.
            outcome = handler(command.parse(_fields(request)), request)
        except Exception as error:
            _respond(request, _answer_to(error, request))
            return None
        if outcome is None or isinstance(outcome, Response):
            _respond(request, outcome)
            return None
        return Unfinished(request, outcome, command)

    async def answer(self, request: Request) -> None:
        """Handles the request to its end."""
        rest = self.begin(request)
        if rest is not None:
            await rest


class Unavailable(Handlers):
    """Refuses every request with SERVICE_NOT_AVAILABLE, which clients take as a reason to ask again
    elsewhere."""

    def __init__(self, remark: str) -> None:
        super().__init__()
        self._refusal = Response(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def begin(self, request: Request) -> None:
        _respond(request, self._refusal)


def _fields(request: Request) -> dict[str, str]:
    try:
        return request.fields
    except FrameError as error:
        raise ProtocolError(f"the header of this request cannot be read: {error}") from None


def _check_body(command: type[Command], request: Request) -> None:
    if command.hot:
        return  # The data plane reads the body, in which it knows its limits.
    size, limit = len(request.body), command.body_bytes_max
    if size > limit:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the body of this request ({command.__name__}) has {size} bytes, the limit is {limit}",
        )


def _answer_to(error: Exception, request: Request) -> Response:
    if isinstance(error, Refused):
        return Response(error.code, error.remark)
    peer_log.write(
        _log,
        logging.ERROR,
        request.remote,
        "request %d from %s failed",
        request.code,
        request.remote,
        reason=(request.code, type(error)),
        exc_info=error,
    )
    return Response(ResponseCode.SYSTEM_ERROR, f"request {request.code} failed: {type(error).__name__}")


def _respond(request: Request, response: Outcome) -> None:
    if response is RESPONDED or request.oneway:
        return
    if response is None:
        request.respond()
    else:
        request.respond(
            int(response.code), remark=response.remark, fields=response.header(), body=response.body
        )
