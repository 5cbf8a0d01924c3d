"""Calls to etcd's JSON gateway: endpoints, connections, authentication, and what a failure means.

The traps of the gateway, all handled here or in `etcd`:
- `false`, 0 and empty lists are left out of the JSON, and numbers of 64 bits are strings.
- Keys and values are base64.
- An error answer to a write may come from a write that was applied (see `_REFUSED`).
- A certificate's common name is ignored: only a token says who you are.
- A restarted member has forgotten the tokens that it issued.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from metaq.errors import ConfigError
from metaq.ha.register import RegisterAddress, RegisterUnavailable
from metaq.ha.registers.http_connection import Answer, HttpConnection, HttpError

_log = logging.getLogger(__name__)

KEY_ROOT: Final = "metaq/"
"""All keys of MetaQ start like this, so this is the prefix that an etcd user needs rights for."""
_ATTEMPT_TIMES_MAX: Final = 3
_IDLE_CONNECTIONS_MAX: Final = 4
_SECRET_BYTES_MAX: Final = 8192
_TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")

_INVALID_ARGUMENT, _PERMISSION_DENIED, _FAILED_PRECONDITION, _UNAUTHENTICATED = 3, 7, 9, 16
# Only these gRPC codes prove that nothing was written. ResourceExhausted does not: the write that fills the
# quota is applied and answered with it. Unavailable covers time-outs of proposals that may still commit.
_REFUSED = frozenset((_INVALID_ARGUMENT, _PERMISSION_DENIED, _UNAUTHENTICATED))
_NOT_THE_GATEWAY = frozenset((404, 405))
_NO_USER, _OLD_RIGHTS = "user name is empty", "revision in header is old"


class Header(msgspec.Struct):
    """The header of every answer. `cluster_id` has no default, so no foreign JSON passes for an answer."""

    cluster_id: Annotated[int, msgspec.Meta(ge=0)]


class Answered(msgspec.Struct, kw_only=True):
    """An answer; its subclasses have defaults for whatever the gateway leaves out."""

    header: Header


class _Token(Answered, kw_only=True):
    token: str = ""


class _ErrorBody(msgspec.Struct):
    code: int = 2
    message: str = ""
    error: str | None = None


class Unanswered(RegisterUnavailable):
    """The request may have been applied."""


class _ErrorAnswer(Exception):
    """etcd answered with an error. `token` is the one that the request had."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.token: str | None = None

    @property
    def asks_for_a_new_token(self) -> bool:
        return self.code == _UNAUTHENTICATED or _NO_USER in self.message or _OLD_RIGHTS in self.message


class _OtherCluster(Exception):
    """The endpoint belongs to another cluster. The text names both."""


class _NotTheGateway(Exception):
    """An HTTP server answered that is not etcd's gateway."""


_FAILURES = (OSError, EOFError, HttpError, TimeoutError, _ErrorAnswer, _OtherCluster, _NotTheGateway)

T = TypeVar("T", bound=Answered)
S = TypeVar("S", bound=msgspec.Struct)


def decode(body: bytes, kind: type[S]) -> S:
    """Decodes the gateway's JSON, in which numbers may be strings. Raises HttpError."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise HttpError(f"its answer is not etcd's: {error}") from None


class _Credentials(Protocol):
    who: str

    async def token(self, gateway: Gateway, connection: HttpConnection) -> str: ...


class Gateway:
    """Sends requests to one endpoint as long as it answers, and then to the next."""

    def __init__(self, address: RegisterAddress) -> None:
        """Reads the certificates and checks that secrets can be read. Raises ConfigError."""
        self._endpoints = address.endpoints
        self._timeout_s = address.timeout_ms / 1000
        self._tls = _tls_context(address) if address.tls else None
        self._credentials = _credentials(address)
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._current = 0
        self._idle: list[HttpConnection] = []
        self._streaming: set[HttpConnection] = set()
        self._failing = False
        self.cluster_id: int | None = None
        self.closed = False
        if address.sends_secrets_in_clear:
            _log.warning("the register's password or token crosses the network in clear; use etcds://")

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    async def call(self, path: str, body: bytes, kind: type[T], *, repeatable: bool) -> T:
        """Returns the answer of the first endpoint that gives one.

        A request that is not repeatable is sent once; Unanswered means that it may have been applied.
        Otherwise raises RegisterUnavailable.
        """
        failures: dict[str, str] = {}
        is_late = True
        clock = asyncio.get_running_loop().time
        deadline = clock() + _ATTEMPT_TIMES_MAX * self._timeout_s
        new_tokens_left = 2
        # One more than there are endpoints, because the first connection may be a stale one.
        attempts_left = len(self._endpoints) + 1
        while attempts_left and clock() < deadline:
            self._require_open()
            number, sent, connection = self._current, False, None
            try:
                async with asyncio.timeout(min(self._timeout_s, deadline - clock())):
                    connection = await self._connect(number)
                    sent = True
                    answer = await self._exchange(connection, path, body, kind)
                self._put_back(number, connection)
                self._recovered()
                return answer
            except _FAILURES as error:
                name, reason = self._name(number), self._describe(error)
                failures[name] = reason
                is_late = is_late and isinstance(error, TimeoutError) and not error.args
                if isinstance(error, _ErrorAnswer):
                    if connection is not None:
                        self._put_back(number, connection)
                    if error.asks_for_a_new_token and self._credentials is not None and new_tokens_left:
                        new_tokens_left -= 1
                        self._forget(error.token)
                        continue
                    if error.code in _REFUSED:
                        raise RegisterUnavailable(f"register {name}: {reason}", retriable=False) from None
                elif connection is not None:
                    connection.close()
                self._leave(number, reason)
                if sent and not repeatable and not isinstance(error, _NotTheGateway):
                    raise Unanswered(f"register {name}: {reason}") from None
                attempts_left -= 1
            except BaseException:
                # The call was cancelled, and an answer may be under way.
                if connection is not None:
                    connection.close()
                raise
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        unavailable = RegisterUnavailable(f"the register is unavailable: {reasons}")
        unavailable.is_late = is_late
        raise unavailable

    async def stream(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yields the lines of an endless answer. Raises RegisterUnavailable when it ends or fails."""
        self._require_open()
        number, connection = self._current, None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connect(number)
            self._streaming.add(connection)
            # Without the last header, a member that lost its cluster would stay silent for ever.
            headers = {**self._headers(), "Grpc-Metadata-Hasleader": "true"}
            lines = connection.stream(path, body, headers)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    yield line
            raise EOFError("it ended the stream")
        except _FAILURES as error:
            if isinstance(error, _ErrorAnswer) and error.asks_for_a_new_token:
                self._forget(error.token)
            else:
                self._leave(number, self._describe(error))
            raise RegisterUnavailable(f"register {self._name(number)}: {self._describe(error)}") from None
        finally:
            if connection is not None:
                self._streaming.discard(connection)
                connection.close()

    def leave_current(self, reason: str) -> None:
        """Makes the next request go to another endpoint."""
        self._leave(self._current, reason)

    def close(self) -> None:
        self.closed = True
        for connection in (*self._idle, *self._streaming):
            connection.close()
        self._idle.clear()

    async def _connect(self, number: int) -> HttpConnection:
        """Returns a connection to the endpoint, with a token, after it proved to be of the same cluster."""
        kept = self._take_idle()
        connection = kept or await HttpConnection.open(*self._endpoints[number], self._tls)
        try:
            await self._authenticate(connection)
            if kept is None:
                await self._identify(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _authenticate(self, connection: HttpConnection) -> None:
        if self._credentials is None:
            return
        async with self._authenticating:
            if self._token is None:
                self._token = await self._credentials.token(self, connection)

    async def _identify(self, connection: HttpConnection) -> None:
        """Makes sure that a swap never goes to another cluster: endpoints may be mixed up."""
        body = msgspec.json.encode({"key": KEY_ROOT.encode(), "serializable": True, "keys_only": True})
        await self._exchange(connection, "/v3/kv/range", body, Answered)

    async def _exchange(
        self, connection: HttpConnection, path: str, body: bytes, kind: type[T], *, token: bool = True
    ) -> T:
        used = self._token
        answer = await connection.post(path, body, self._headers() if token else {})
        if not answer.keep_alive:
            connection.close()
        if answer.status != 200:
            error = _error(answer)
            if isinstance(error, _ErrorAnswer):
                error.token = used
            raise error
        decoded = decode(answer.body, kind)
        expected = self.cluster_id
        if expected is not None and decoded.header.cluster_id != expected:
            raise _OtherCluster(
                f"it belongs to the etcd cluster {decoded.header.cluster_id:x}, not to {expected:x}"
            )
        self.cluster_id = decoded.header.cluster_id
        return decoded

    def _forget(self, token: str | None) -> None:
        """Drops a token that etcd refused, unless another call has got a new one already."""
        if self._token == token:
            self._token = None

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _put_back(self, number: int, connection: HttpConnection) -> None:
        room = len(self._idle) < _IDLE_CONNECTIONS_MAX
        if number == self._current and room and connection.usable and not self.closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _leave(self, number: int, reason: str) -> None:
        # Another call may have left it already.
        if number != self._current:
            return
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self._current = (number + 1) % len(self._endpoints)
        if not self._failing and not self.closed:
            self._failing = True
            _log.warning("register %s: %s; trying %s", self._name(number), reason, self._name(self._current))

    def _recovered(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("register: %s answers", self._name(self._current))

    def _require_open(self) -> None:
        if self.closed:
            raise RegisterUnavailable("the register was closed", retriable=False)

    def _name(self, number: int) -> str:
        host, port = self._endpoints[number]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _describe(self, error: BaseException) -> str:
        reason = self._reason(error)
        # A register that has answered before has the right scheme.
        if self.cluster_id is None:
            left = isinstance(error, EOFError | HttpError | ConnectionResetError | ConnectionAbortedError)
            if self._tls is None and left:
                return f"{reason}; an etcd with TLS needs etcds://"
            foreign = isinstance(error, ssl.SSLError) and "CERTIFICATE" not in (error.reason or "")
            if self._tls is not None and (left or foreign):
                return f"{reason}; an etcd without TLS needs etcd://"
        return reason

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not error.args:
            return f"no answer within {self._timeout_s * 1000:.0f} ms (timeout_ms)"
        if isinstance(error, ssl.SSLCertVerificationError):
            cause = error.verify_message
            return f"its certificate is not accepted: {cause}; check ca_file and the host's name"
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
            return f"etcd refuses this client's certificate ({error.reason}); check cert_file and key_file"
        if isinstance(error, ssl.SSLError):
            return f"TLS failed: {error.reason or error}"
        if isinstance(error, _ErrorAnswer):
            return self._describe_answer(error)
        if isinstance(error, OSError):
            # A failed look-up of a name has a negative number.
            if error.errno is not None and error.errno > 0:
                return os.strerror(error.errno)
            # asyncio gives no text if the peer leaves during the TLS handshake.
            return str(error.strerror or error) or "it closed the connection"
        return str(error)

    def _describe_answer(self, error: _ErrorAnswer) -> str:
        who = self._credentials.who if self._credentials is not None else ""
        if error.code == _PERMISSION_DENIED:
            return f"etcd denies {who or 'access'}: {error}; grant readwrite on the prefix {KEY_ROOT}"
        if _NO_USER in error.message:
            return f"etcd wants a user: {error}; add user= and password_file= to the register's address"
        if error.code in _REFUSED and who:
            return f"etcd refuses {who}: {error}"
        return f"etcd answered: {error}"


class _Password:
    """Gets a token for a user and a password. The file is read anew, so a changed password is found."""

    def __init__(self, user: str, file: str) -> None:
        self._user = user
        self._file = file
        self.who = f"user {user!r}"
        _read_secret("password_file", file)

    async def token(self, gateway: Gateway, connection: HttpConnection) -> str:
        try:
            password = _read_secret("password_file", self._file)
        except ConfigError as error:
            raise OSError(str(error)) from None
        body = msgspec.json.encode({"name": self._user, "password": password})
        try:
            answer = await gateway._exchange(connection, "/v3/auth/authenticate", body, _Token, token=False)
        except _ErrorAnswer as error:
            if error.code == _FAILED_PRECONDITION and "not enabled" in error.message:
                # An operator gives brokers their user first and then enables authentication.
                _log.info("register: etcd does not use authentication, so %s is not needed", self.who)
                return ""
            raise
        if not _TOKEN.fullmatch(answer.token):
            raise HttpError("its token is empty or malformed")
        return answer.token


class _TokenFile:
    """Reads a token that somebody else renews."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.who = f"the token in {file}"
        _read_secret("token_file", file)

    async def token(self, gateway: Gateway, connection: HttpConnection) -> str:
        try:
            token = _read_secret("token_file", self._file)
        except ConfigError as error:
            raise OSError(str(error)) from None
        if not _TOKEN.fullmatch(token):
            raise OSError(f"token_file: {self._file} does not hold a token of printable characters")
        return token


def _credentials(address: RegisterAddress) -> _Credentials | None:
    if address.user:
        return _Password(address.user, address.password_file)
    return _TokenFile(address.token_file) if address.token_file else None


def _read_secret(option: str, file: str) -> str:
    """Reads one line. Raises ConfigError, which names the option and the file."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_SECRET_BYTES_MAX + 1)
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"register: {option}: cannot read {file}: {reason}") from None
    if not secret or len(content) > _SECRET_BYTES_MAX:
        raise ConfigError(f"register: {option}: {file} must hold 1 to {_SECRET_BYTES_MAX} bytes")
    return secret


def _tls_context(address: RegisterAddress) -> ssl.SSLContext:
    option, file = "ca_file", address.ca_file
    try:
        context = ssl.create_default_context(cafile=address.ca_file or None)
        if address.cert_file:
            option, file = "cert_file and key_file", f"{address.cert_file}, {address.key_file}"
            # Without a callback, OpenSSL would ask for a passphrase on the terminal.
            context.load_cert_chain(address.cert_file, address.key_file, password=lambda: b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"register: {option}: cannot load {file}: {reason}",
            hint="the files must be PEM, and the key without a passphrase",
        ) from None
    return context


def _error(answer: Answer) -> Exception:
    """Returns the exception for an answer whose status is not 200."""
    with contextlib.suppress(HttpError):
        body = decode(answer.body, _ErrorBody)
        if message := body.message or body.error:
            return _ErrorAnswer(body.code, message[:300])
    text = answer.body[:100].decode("latin-1").strip()
    if answer.status in _NOT_THE_GATEWAY:
        return _NotTheGateway(f"HTTP status {answer.status}: this is not the gateway of etcd 3.4 or newer")
    return HttpError(f"it answered with HTTP status {answer.status}: {text!r}")
