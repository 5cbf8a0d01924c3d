"""Outgoing connections: of clients and the command line to servers, and of brokers to name servers."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Self

from metaq._core import Frame, FrameDecoder, FrameError, encode_frame
from metaq.credentials import Credentials
from metaq.errors import UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Response
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply
from metaq.settings import PEER_SILENCE_MS_MAX

_log = logging.getLogger(__name__)

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2
_READ_BYTES: Final = 256 * 1024
ANSWERING_MAX: Final = 4096
ANSWERING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The requests of one peer that are under way, and their bodies. Others are refused."""
UNREAD_BYTES_MAX: Final = 1024 * 1024
"""Requests are not answered at once while the peer has this number of bytes to read."""

Answered = Response | None
OnRequest = Callable[[Frame], Answered | Awaitable[Answered]]
"""Answers a request from the peer, at once or in a task of its own. None means success."""
OnRequestFrom = Callable[[str, Frame], Answered | Awaitable[Answered]]
"""Does the same for many peers; the first argument is the address of the peer."""
OnEnd = Callable[[str], None]
OnOpen = Callable[["Connection"], Awaitable[None]]
"""Awaited before a new connection is used. Its failure is logged and does not end the connection."""


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port` or `[v6]:port`. Raises ValueError, which says what is wrong."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?")
_ENDPOINT_CHARACTERS_MAX: Final = 262


def check_endpoint(address: str) -> None:
    """Raises ValueError unless this is `host:port` with a host name or an IP address. For addresses that
    others will connect to, print or put into commands."""
    if len(address) > _ENDPOINT_CHARACTERS_MAX or address != address.strip():
        raise ValueError(f"{address[:64]!r}… is longer than host:port can be, or has blanks around it")
    host, _ = split_address(address)
    if all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        return
    with contextlib.suppress(ValueError):
        if _IPV6.fullmatch(host) and ipaddress.IPv6Address(host):
            return
    raise ValueError(f"{address!r} does not begin with a host name or an IP address")


def split_addresses(addresses: str) -> tuple[str, ...]:
    """Reads `host:port`, several separated by semicolons; raises UsageError."""
    hint = "write host:port, several separated by semicolons"
    found = tuple(address.strip() for address in addresses.split(";") if address.strip())
    if not found:
        raise UsageError("no name server is given", hint=hint)
    for address in found:
        try:
            split_address(address)
        except ValueError as error:
            raise UsageError(str(error), hint=hint) from None
        # These have the form host:port, but nobody could connect to such a host.
        if "://" in address or "/" in address:
            plain = address.partition("://")[2] or address
            raise UsageError(
                f"{address!r} is a URL, but a name server is host:port",
                hint=f"write {plain.partition('/')[0]}",
            )
        if "," in address:
            parts = ";".join(part.strip() for part in address.split(","))
            raise UsageError(
                f"{address!r} has a comma", hint=f"separate name servers with semicolons: {parts}"
            )
        if any(character.isspace() for character in address):
            raise UsageError(f"{address!r} has a blank in it", hint=hint)
    return found


class Connection:
    """One socket with any number of concurrent requests, which carry a number (`opaque`)."""

    def __init__(
        self,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        on_request: OnRequest | None = None,
        on_end: OnEnd | None = None,
        binary: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self._on_end = on_end
        self._reader = reader
        self._writer = writer
        self._on_request = on_request
        self._binary = binary
        self._credentials = credentials
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._answering_bytes = 0
        self._ended: str | None = None
        self._reading = asyncio.create_task(self._read(), name=f"read {address}")

    @classmethod
    async def open(
        cls,
        address: str,
        timeout: float = 3.0,
        *,
        on_request: OnRequest | None = None,
        on_end: OnEnd | None = None,
        binary: bool = False,
        credentials: Credentials | None = None,
    ) -> Self:
        """Connects. `binary` selects the binary encoding of headers instead of JSON. With credentials,
        requests are signed. Raises Unreachable."""
        try:
            host, port = split_address(address)
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            raise Unreachable(f"{address}: no connection within {timeout:g} s") from None
        except OSError as error:
            raise Unreachable(f"{address}: {error.strerror or error}") from None
        except ValueError as error:
            # Routes come from others: host names that cannot be looked up are addresses that do not answer.
            raise Unreachable(f"{address!r} is not an address: {error}") from None
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Without this, writes to a host that vanished would be retried for a quarter of an hour.
            stream = writer.get_extra_info("socket")
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_SILENCE_MS_MAX)
        return cls(
            address,
            reader,
            writer,
            on_request=on_request,
            on_end=on_end,
            binary=binary,
            credentials=credentials,
        )

    @property
    def closed(self) -> bool:
        return self._ended is not None

    @property
    def local_address(self) -> str:
        """The address of our end, `ip:port`."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def call(self, command: Command, body: bytes = b"", timeout: float = 3.0) -> Reply:
        """Sends a request and returns the answer, whatever its code. Raises Unreachable if none comes."""
        self._require_open()
        opaque = next(self._opaques) & 0x7FFFFFFF
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = future
        try:
            async with asyncio.timeout(timeout):
                await self._write(self._frame(command, body, opaque, flag=0))
                return await future
        except TimeoutError:
            raise Unreachable(
                f"{self.address}: no answer to {type(command).__name__} within {timeout:g} s"
            ) from None
        finally:
            del self._waiting[opaque]
            # An exception that is set later would otherwise be reported as never retrieved.
            future.cancel()

    async def send_oneway(self, command: Command, body: bytes = b"") -> None:
        """Sends a request without an answer. Raises Unreachable if the connection has ended."""
        self._require_open()
        opaque = next(self._opaques) & 0x7FFFFFFF
        await self._write(self._frame(command, body, opaque, flag=FLAG_ONEWAY))

    async def close(self) -> None:
        """Closes the connection; calls that still wait raise Unreachable. Safe to call twice."""
        self._end("the connection was closed by this side")
        for task in list(self._answering):
            task.cancel()
        if asyncio.current_task() is not self._reading:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
        with contextlib.suppress(OSError):  # The peer has closed it already.
            await self._writer.wait_closed()

    def _frame(self, command: Command, body: bytes, opaque: int, flag: int) -> bytes:
        fields = command.to_fields()
        return encode_frame(
            command.code,
            opaque=opaque,
            flag=flag,
            fields=fields if self._credentials is None else self._credentials.signed(fields, body),
            body=body,
            binary=self._binary,
        )

    def _require_open(self) -> None:
        if self._ended is not None:
            raise Unreachable(f"{self.address}: {self._ended}")

    async def _write(self, frame: bytes) -> None:
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except OSError as error:
            self._end(str(error.strerror or error))
            raise Unreachable(f"{self.address}: {self._ended}") from None

    async def _read(self) -> None:
        decoder = FrameDecoder()
        reason = "the peer closed the connection"
        try:
            while data := await self._reader.read(_READ_BYTES):
                for frame in decoder.feed(data):
                    self._dispatch(frame)
        except FrameError as error:
            reason = str(error)
        except OSError as error:
            reason = str(error.strerror or error)
        finally:
            self._end(reason)

    def _dispatch(self, frame: Frame) -> None:
        if not frame.flag & FLAG_RESPONSE:
            self._answer(frame)
            return
        future = self._waiting.get(frame.opaque)
        if future is not None and not future.done():
            future.set_result(Reply(frame.code, frame.remark, frame.fields, frame.body))

    def _answer(self, frame: Frame) -> None:
        try:
            if self._is_overloaded(frame):
                answer: Answered | Awaitable[Answered] = Response(
                    ResponseCode.SYSTEM_BUSY, "this client answers too many requests already"
                )
            elif self._on_request is None:
                remark = "this client does not answer requests"
                answer = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            else:
                answer = self._on_request(frame)
        except Exception as error:
            answer = self._failed(frame, error)
        if answer is None or isinstance(answer, Response):
            # Answers would pile up here if the peer sent requests and read nothing.
            if self._writer.transport.get_write_buffer_size() <= UNREAD_BYTES_MAX:
                self._respond(frame, answer)
            return
        task = asyncio.create_task(self._answer_later(frame, answer), name=f"answer {frame.code}")
        self._answering.add(task)
        self._answering_bytes += len(frame.body)
        task.add_done_callback(partial(self._answered, len(frame.body)))

    def _is_overloaded(self, frame: Frame) -> bool:
        return (
            len(self._answering) >= ANSWERING_MAX
            or self._answering_bytes + len(frame.body) > ANSWERING_BYTES_MAX
        )

    def _answered(self, body_bytes: int, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._answering_bytes -= body_bytes

    async def _answer_later(self, frame: Frame, answer: Awaitable[Answered]) -> None:
        try:
            response = await answer
        except Exception as error:
            response = self._failed(frame, error)
        with contextlib.suppress(OSError):
            # The task counts until the peer has room for the answer.
            await self._writer.drain()
            if self._ended is None:
                self._respond(frame, response)

    def _failed(self, frame: Frame, error: Exception) -> Response:
        if isinstance(error, Refused):
            return Response(error.code, error.remark)
        _log.error("request %d from %s failed", frame.code, self.address, exc_info=error)
        return Response(ResponseCode.SYSTEM_ERROR, type(error).__name__)

    def _respond(self, frame: Frame, response: Answered) -> None:
        if frame.flag & FLAG_ONEWAY:
            return
        response = response or Response()
        self._writer.write(
            encode_frame(
                int(response.code),
                opaque=frame.opaque,
                flag=FLAG_RESPONSE,
                remark=response.remark,
                fields=response.header(),
                body=response.body,
                binary=self._binary,
            )
        )

    def _end(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unreachable(f"{self.address}: {reason}"))
        if self._on_end is not None:
            self._on_end(self.address)


class Connections:
    """One connection for each address, opened when it is first needed and reopened after it has ended."""

    def __init__(
        self,
        *,
        connect_timeout: float = 3.0,
        on_request: OnRequestFrom | None = None,
        on_open: OnOpen | None = None,
        on_end: OnEnd | None = None,
        binary: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        """`on_end` is called with the address of a connection that has ended, for whatever reason."""
        self._on_end = on_end
        self._connect_timeout = connect_timeout
        self._on_request = on_request
        self._on_open = on_open
        self._binary = binary
        self._credentials = credentials
        self._by_address: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._closed = False

    async def get(self, address: str) -> Connection:
        """Returns an open connection. Raises Unreachable."""
        lock = self._opening.setdefault(address, asyncio.Lock())
        connection = self._by_address.get(address)
        if connection is not None and not connection.closed and not lock.locked():
            return connection
        async with lock:
            return await self._get_alone(address)

    async def _get_alone(self, address: str) -> Connection:
        if self._closed:
            raise Unreachable(f"{address}: this side is closing its connections")
        connection = self._by_address.get(address)
        if connection is not None and not connection.closed:
            return connection
        on_request = None if self._on_request is None else partial(self._on_request, address)
        connection = await Connection.open(
            address,
            self._connect_timeout,
            on_request=on_request,
            on_end=self._on_end,
            binary=self._binary,
            credentials=self._credentials,
        )
        if self._closed:
            await connection.close()
            raise Unreachable(f"{address}: this side is closing its connections")
        self._by_address[address] = connection
        if self._on_open is not None:
            try:
                await self._on_open(connection)
            except Exception:
                _log.warning("the first request on the connection to %s failed", address, exc_info=True)
        return connection

    def opened(self) -> list[Connection]:
        """Returns the connections that are open now."""
        return [connection for connection in self._by_address.values() if not connection.closed]

    async def call(self, address: str, command: Command, body: bytes = b"", timeout: float = 3.0) -> Reply:
        connection = await self.get(address)
        return await connection.call(command, body, timeout)

    async def send_oneway(self, address: str, command: Command, body: bytes = b"") -> None:
        connection = await self.get(address)
        await connection.send_oneway(command, body)

    async def close(self) -> None:
        """Closes all connections and opens no more."""
        self._closed = True
        connections, self._by_address = list(self._by_address.values()), {}
        for connection in connections:
            await connection.close()
