"""Sign-in by password, and the brake on guesses."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.console.access.roles import Identity, Role

PASSWORD_LENGTH_MIN: Final = 12
PASSWORD_LENGTH_MAX: Final = 1024

_FREE_FAILURES: Final = 5
"""Wrong passwords from one address that cost no wait."""
_WAIT_S_MAX: Final = 60.0
_FORGET_AFTER_S: Final = 900.0
_ADDRESSES_MAX: Final = 10_000
_TOTAL_FAILURES_MAX: Final = 100
"""Wrong passwords from all addresses together that cost no wait. One per second is forgiven."""
_SIGN_INS_MAX: Final = 100
"""Sign-ins with one name that cost no wait."""
_SIGN_INS_PER_S: Final = 1 / 20
"""After those. Each is a session and a line of the audit log, which holds about 80,000."""


class PasswordDirectory:
    """The passwords of this console: one for operators, one for viewers. The name of a user is the role."""

    def __init__(self, passwords: Mapping[Role, str]) -> None:
        self._digests = {role: _digest(password) for role, password in passwords.items()}

    async def sign_in(self, name: str, password: str) -> Identity | None:
        digest = _digest(password[: PASSWORD_LENGTH_MAX + 1])
        found = None
        # Every digest is compared, so that the time does not say which names exist.
        for role, expected in self._digests.items():
            if hmac.compare_digest(digest, expected) and name == role.value:
                found = Identity(role.value, role)
        return found


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class _Failures:
    count: int
    last_s: float


@dataclass(slots=True)
class _Level:
    """A count that falls at a steady rate. Whoever finds it full waits."""

    full: int
    fall_per_s: float
    at_s: float
    count: float = 0.0

    def wait_s(self, now: float) -> float:
        self.count = max(self.count - (now - self.at_s) * self.fall_per_s, 0.0)
        self.at_s = now
        return max((self.count - self.full + 1) / self.fall_per_s, 0.0)


class SignInBrake:
    """Slows down whoever tries many passwords, from one address or from many, and whoever signs in often.

    An attempt counts as failed when it begins, so that attempts at the same time gain nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._total = _Level(_TOTAL_FAILURES_MAX, 1.0, clock())
        self._sign_ins: dict[str, _Level] = {}

    def begin(self, address: str) -> float:
        """Returns 0 if the attempt may go on, or else the seconds to wait; then it does not count."""
        now, key = self._clock(), _network(address)
        failures = self._addresses.get(key)
        if failures is not None and now - failures.last_s >= _FORGET_AFTER_S:
            del self._addresses[key]
            failures = None
        wait_s = self._total.wait_s(now)
        if failures is not None and failures.count >= _FREE_FAILURES:
            pause_s = min(2.0 ** (failures.count - _FREE_FAILURES), _WAIT_S_MAX)
            wait_s = max(wait_s, failures.last_s + pause_s - now)
        if wait_s > 0:
            return wait_s
        self._addresses[key] = _Failures(min((failures.count if failures else 0) + 1, 64), now)
        self._addresses.move_to_end(key)
        if len(self._addresses) > _ADDRESSES_MAX:
            self._addresses.popitem(last=False)
        self._total.count += 1
        return 0.0

    def succeed(self, address: str, name: str) -> float:
        """Takes back an attempt that was right; earlier failures stay, because one account must not hide
        guesses at another. Returns 0 if the session may begin, or else the seconds to wait."""
        now, key = self._clock(), _network(address)
        failures = self._addresses.get(key)
        if failures is not None:
            failures.count -= 1
            self._total.count = max(self._total.count - 1, 0.0)
            if failures.count <= 0:
                del self._addresses[key]
        level = self._sign_ins.setdefault(name, _Level(_SIGN_INS_MAX, _SIGN_INS_PER_S, now))
        wait_s = level.wait_s(now)
        if wait_s == 0:
            level.count += 1
        return wait_s


def _network(address: str) -> str:
    """Returns the address, or for IPv6 its network: one machine has 2**64 addresses there."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
