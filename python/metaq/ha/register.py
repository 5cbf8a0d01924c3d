"""The interface of a register, and the address that `--register` takes."""

from __future__ import annotations

import enum
import ipaddress
import re
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from metaq.errors import ConfigError, MetaqError

TIMEOUT_MS_DEFAULT: Final = 1000
TIMEOUT_MS_MIN: Final = 100
# A call tries at most three times, and a wrong register must be reported within 10 s.
TIMEOUT_MS_MAX: Final = 3000
ENDPOINTS_MAX: Final = 16

_EXAMPLE: Final = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"
_EXAMPLE_TLS: Final = (
    "etcds://etcd-1:2379,etcd-2:2379/?ca_file=/etc/metaq/ca.pem&user=metaq&password_file=/etc/metaq/password"
)
_TLS_OPTIONS: Final = ("ca_file", "cert_file", "key_file")
_OPTIONS: Final = (*_TLS_OPTIONS, "user", "password_file", "token_file", "timeout_ms")


class RegisterUnavailable(MetaqError):
    """The register did not answer, or not in a way that can be trusted. Nothing was changed."""

    retriable = True
    is_late: bool = False
    """It was reached, or may have been, but has not answered in time: it may only be busy."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in the register and the revision of its last change."""

    value: bytes
    revision: int


class Outcome(enum.Enum):
    """The outcome of a compare-and-swap."""

    DONE = "done"
    CONFLICT = "conflict"
    """Somebody else changed the key first."""
    UNKNOWN = "unknown"
    """No answer came. Read the key before you decide anything."""


class Register(Protocol):
    """A few small values that change only by compare-and-swap."""

    async def cluster_id(self) -> str:
        """Returns the identity of the register's own cluster. Raises RegisterUnavailable."""
        ...

    async def get(self, key: str) -> Stored | None:
        """Returns the newest value: every swap that ended before this call is seen.

        Raises RegisterUnavailable.
        """
        ...

    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> Outcome:
        """Sets the value if the key's revision is the expected one; 0 means that the key must not exist.

        After UNKNOWN the swap was applied, was not applied, or **will be applied later**. A read that shows
        the expected revision does not exclude the last case. Only a change of the key does: swap again with
        the same expected revision, and at most one of the two swaps is ever applied.

        Raises RegisterUnavailable if the swap was certainly not applied and never will be.
        """
        ...

    async def list(self, prefix: str) -> dict[str, Stored]:
        """Returns the keys that start with the prefix, as fresh as `get`. Raises RegisterUnavailable."""
        ...

    def watch(self, prefix: str) -> AsyncIterator[None]:
        """Yields when a key with the prefix may have changed: at once, and then after each change.

        Changes may share one hint, hints may come without a change, and while the register is unavailable
        none come at all. So poll as well. The iterator ends when the register is closed.
        """
        ...

    async def close(self) -> None:
        """Closes all connections. Later calls raise RegisterUnavailable. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class RegisterAddress:
    """Says where the register is and how to reach it. No field holds a secret."""

    endpoints: tuple[tuple[str, int], ...]
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    """Limit of one attempt at one endpoint."""

    @property
    def sends_secrets_in_clear(self) -> bool:
        """Whether a password or token leaves this machine without TLS."""
        secret = bool(self.password_file or self.token_file)
        return secret and not self.tls and not all(_is_loopback(host) for host, _ in self.endpoints)


def parse_register(text: str) -> RegisterAddress:
    """Reads the value of `--register`. Raises ConfigError, which shows an address that is right."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme not in ("etcd", "etcds"):
        given = f"{scheme}://" if separator else "nothing like that"
        raise _wrong(f"it must start with etcd:// or etcds:// (with TLS), not with {given}")
    tls = scheme == "etcds"
    place, _, query = rest.partition("?")
    hosts, _, path = place.partition("/")
    # The text before an '@' may hold a password, which no error may repeat.
    if "@" in rest.partition("=")[0]:
        raise _wrong("it must not contain a user or a password; use user= and password_file=", tls=True)
    if path:
        raise _wrong(
            f"it must not have a path (/{path}); brokers find their keys by the cluster's name", tls=tls
        )
    options = _options(query, tls)
    return RegisterAddress(
        endpoints=_endpoints(hosts, tls),
        tls=tls,
        ca_file=options.get("ca_file", ""),
        cert_file=options.get("cert_file", ""),
        key_file=options.get("key_file", ""),
        user=options.get("user", ""),
        password_file=options.get("password_file", ""),
        token_file=options.get("token_file", ""),
        timeout_ms=_timeout_ms(options.get("timeout_ms"), tls),
    )


def open_register(text: str) -> Register:
    """Returns the register at the address. It connects when it is first used. Raises ConfigError."""
    # Whoever needs only the interface does not load a client.
    from metaq.ha.registers.etcd import EtcdRegister

    return EtcdRegister(parse_register(text))


def _endpoints(hosts: str, tls: bool) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for endpoint in hosts.split(","):
        matched = re.fullmatch(r"(\[[0-9a-fA-F:.%a-z]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", endpoint.strip())
        if matched is None or not 0 < int(matched[2]) <= 65535:
            raise _wrong(f"{endpoint.strip()!r} is not of the form host:port", tls=tls)
        address = (matched[1].strip("[]"), int(matched[2]))
        if address in found:
            raise _wrong(f"{endpoint.strip()} is given twice", tls=tls)
        found.append(address)
    if len(found) > ENDPOINTS_MAX:
        raise _wrong(f"it has {len(found)} endpoints; at most {ENDPOINTS_MAX} are allowed", tls=tls)
    return tuple(found)


def _options(query: str, tls: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    try:
        pairs = urllib.parse.parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except ValueError:
        raise _wrong("its options must be of the form name=value, joined by '&'", tls=tls) from None
    for name, value in pairs:
        if name not in _OPTIONS:
            raise _wrong(f"{name!r} is not an option; the options are {', '.join(_OPTIONS)}", tls=tls)
        if name in options:
            raise _wrong(f"{name} is given twice", tls=tls)
        if not value:
            raise _wrong(f"{name} is empty", tls=tls)
        if name in _TLS_OPTIONS and not tls:
            raise _wrong(f"{name} needs TLS; start the address with etcds://", tls=True)
        options[name] = value
    for one, other in (("cert_file", "key_file"), ("user", "password_file")):
        if (one in options) != (other in options):
            raise _wrong(f"{one} and {other} must be given together", tls=tls)
    if "token_file" in options and "user" in options:
        raise _wrong("give either token_file, or user and password_file, not both", tls=tls)
    return options


def _timeout_ms(text: str | None, tls: bool) -> int:
    if text is None:
        return TIMEOUT_MS_DEFAULT
    if not re.fullmatch(r"[0-9]{1,6}", text) or not TIMEOUT_MS_MIN <= int(text) <= TIMEOUT_MS_MAX:
        raise _wrong(
            f"timeout_ms must be a number from {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}, not {text!r}", tls=tls
        )
    return int(text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wrong(reason: str, *, tls: bool = False) -> ConfigError:
    example = _EXAMPLE_TLS if tls else _EXAMPLE
    return ConfigError(f"the register's address is wrong: {reason}; for example {example}", hint=example)
