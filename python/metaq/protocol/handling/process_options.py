"""The options of a server's process that can change while it runs, whatever its role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.server_logging import LogLevels, level_control, unknown_loggers

NAMES: Final = ("log_level", "slow_request_ms")
SLOW_REQUEST_MS_MAX: Final = 2**31 - 1


class Limit(Protocol):
    """The limit of `metaq.protocol.handling.slow_requests.SlowRequests`."""

    limit_ms: int


class ProcessOptions:
    """Reads and changes them. Changes last until the next start."""

    def __init__(self, slow_requests: Limit) -> None:
        self._slow_requests = slow_requests

    def values(self) -> dict[str, str]:
        return {
            "log_level": str(level_control.levels),
            "slow_request_ms": str(self._slow_requests.limit_ms),
        }

    def change_of(self, name: str, value: str) -> Callable[[], None]:
        """Returns the change of an option in `NAMES`, checked but not applied. Raises Refused."""
        if name == "log_level":
            levels = _levels(value)
            return lambda: level_control.set(levels)
        # The length comes first: Python refuses to read a number of thousands of digits.
        is_short = len(value) <= len(str(SLOW_REQUEST_MS_MAX))
        if not is_short or not value.isdecimal() or int(value) > SLOW_REQUEST_MS_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{name} takes a number from 0 to {SLOW_REQUEST_MS_MAX}, not {value[:32]!a}",
            )
        return lambda: setattr(self._slow_requests, "limit_ms", int(value))


def _levels(value: str) -> LogLevels:
    try:
        levels = LogLevels.parse(value)
    except ValueError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"log_level={value[:128]!a} {error}") from None
    if unknown := unknown_loggers(levels):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"log_level: there is no logger {unknown[0][:128]}")
    return levels
