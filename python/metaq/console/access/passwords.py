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


class SignInBrake:
    """Slows down whoever tries many passwords, from one address or from many.

    An attempt counts as failed when it begins, so that attempts at the same time gain nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._total = 0.0
        self._total_at_s = clock()

    def begin(self, address: str) -> float:
        """Returns 0 if the attempt may go on, or else the seconds to wait; then it does not count."""
        now, key = self._clock(), _network(address)
        self._forgive(now)
        failures = self._addresses.get(key)
        if failures is not None and now - failures.last_s >= _FORGET_AFTER_S:
            del self._addresses[key]
            failures = None
        wait_s = max(self._total - _TOTAL_FAILURES_MAX + 1, 0.0)
        if failures is not None and failures.count >= _FREE_FAILURES:
            pause_s = min(2.0 ** (failures.count - _FREE_FAILURES), _WAIT_S_MAX)
            wait_s = max(wait_s, failures.last_s + pause_s - now)
        if wait_s > 0:
            return wait_s
        self._addresses[key] = _Failures(min((failures.count if failures else 0) + 1, 64), now)
        self._addresses.move_to_end(key)
        if len(self._addresses) > _ADDRESSES_MAX:
            self._addresses.popitem(last=False)
        self._total += 1
        return 0.0

    def succeeded(self, address: str) -> None:
        """Forgets the failures of an address whose attempt was right."""
        if self._addresses.pop(_network(address), None) is not None:
            self._total = max(self._total - 1, 0.0)

    def _forgive(self, now: float) -> None:
        self._total = max(self._total - (now - self._total_at_s), 0.0)
        self._total_at_s = now


def _network(address: str) -> str:
    """Returns the address, or for IPv6 its network: one machine has 2**64 addresses there."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
