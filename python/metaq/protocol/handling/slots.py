"""Limits of requests under way: slots for work, and questions that wait for another client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import KIB, MIB

QUESTION_BYTES: Final = 2 * KIB
"""About the memory of one question to a client, without its body."""


FREE_PER_SLOT: Final = 4
"""A connection may have one slot for every four that are free, up to its share. So nine connections that ask
without end leave 390 of 1,024 free."""


class Slots:
    """Counts the requests that are worked on, in all and by connection.

    A connection that has its share is paused: its other requests wait where they are, and those of others are
    served. The share shrinks as slots are taken. An eighth of all slots is reserved: half of it for requests
    that keep clients and brokers alive, and half for them and for connections that have none.
    """

    def __init__(self, slots_max: int, per_connection_max: int, pause: Callable[[int, bool], None]) -> None:
        """`pause` is called with a connection, and with True to pause it or False to go on."""
        self._slots_max = slots_max
        self._per_connection_max = per_connection_max
        self._pause = pause
        self._taken = 0
        self._of: dict[int, int] = {}
        """Connection → its requests under way and those that wait for a slot."""
        self._paused: dict[int, None] = {}
        """The connections that are paused, those first that were looked at longest ago."""
        self._reserved = slots_max // 8
        self._reserved_for_life = slots_max // 16

    @property
    def free(self) -> int:
        return self._slots_max - self._taken

    def has_room(self, *, is_new: bool = False, is_vital: bool = False) -> bool:
        """Whether a request may begin: any, the only one of its connection, or one with reserved slots."""
        if is_vital:
            return self.free > 0
        return self.free > (self._reserved_for_life if is_new else self._reserved)

    def of(self, connection: int) -> int:
        return self._of.get(connection, 0)

    def take(self, connection: int) -> None:
        """Always succeeds: a request that comes back from a wait may exceed the limits for a moment."""
        self._taken += 1
        self.wait(connection)

    def wait(self, connection: int) -> None:
        """Counts a request that waits for a slot."""
        count = self._of[connection] = self._of.get(connection, 0) + 1
        if count >= self._share() and connection not in self._paused:
            self._paused[connection] = None
            self._pause(connection, True)

    def give_back(self, connection: int) -> None:
        self._taken -= 1
        self.end_wait(connection)

    def end_wait(self, connection: int) -> None:
        """Takes back `wait`, whether the request gets a slot or is dropped."""
        left = self._of[connection] = self._of[connection] - 1
        if left == 0:
            del self._of[connection]
        self._look_at(connection)
        # There may be room for others now. One at a time is enough: each goes on at the latest when it has no
        # request under way any more.
        self._look_at(next(iter(self._paused), connection))

    def _look_at(self, connection: int) -> None:
        """Lets a connection go on if it has less than its share."""
        if connection not in self._paused:
            return
        del self._paused[connection]
        if self.of(connection) < self._share():
            self._pause(connection, False)
        else:
            self._paused[connection] = None

    def _share(self) -> int:
        return max(1, min(self._per_connection_max, (self.free - self._reserved) // FREE_PER_SLOT))


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """How many requests may wait for answers of other clients, and how many bytes they may hold."""

    count_max: int = 10_000
    bytes_max: int = 64 * MIB
    per_connection_max: int = 256
    bytes_per_connection_max: int = 16 * MIB
    per_client_max: int = 2_000
    """To one client, whoever asks."""

    @property
    def per_address_max(self) -> int:
        """One machine leaves room for others."""
        return max(self.count_max // 2, 1)

    @property
    def bytes_per_address_max(self) -> int:
        return max(self.bytes_max // 2, 1)

    def check_client(self, waiting: int) -> None:
        """Raises Refused if that many questions to one client are too many for one more."""
        if waiting >= self.per_client_max:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {waiting} requests wait for the answer of this client already, the limit is "
                "questions_per_client_max: try again later",
            )


@dataclass(frozen=True, slots=True)
class _Held:
    """Requests that wait, and the bytes that they hold."""

    count: int = 0
    size_bytes: int = 0

    def plus(self, count: int, size_bytes: int) -> _Held:
        return _Held(self.count + count, self.size_bytes + size_bytes)

    def exceeds(self, bytes_max: int, more_bytes: int) -> bool:
        """Whether one more request has too many bytes. If none waits, it may be as large as it is."""
        return bool(self.count) and self.size_bytes + more_bytes > bytes_max


_NOTHING = _Held()


class Questions:
    """Counts the requests that wait for the answer of another client. They hold no slot, because nobody knows
    how long that client takes; so they have limits of their own."""

    def __init__(self, limits: QuestionLimits) -> None:
        self._limits = limits
        self._all = _Held()
        self._of: dict[int, _Held] = {}
        """By connection."""
        self._of_address: dict[str, _Held] = {}

    def __len__(self) -> int:
        return self._all.count

    def add(self, connection: int, address: str, size_bytes: int) -> None:
        """Raises Refused past a limit."""
        of_connection = self._of.get(connection, _NOTHING)
        of_address = self._of_address.get(address, _NOTHING)
        self._check(of_connection, address, of_address, size_bytes)
        self._of[connection] = of_connection.plus(1, size_bytes)
        self._of_address[address] = of_address.plus(1, size_bytes)
        self._all = self._all.plus(1, size_bytes)

    def _check(self, of_connection: _Held, address: str, of_address: _Held, size_bytes: int) -> None:
        limits = self._limits
        fault = None
        if of_connection.count >= limits.per_connection_max:
            fault = f"{of_connection.count} requests of this connection wait", "questions_per_connection_max"
        elif of_connection.exceeds(limits.bytes_per_connection_max, size_bytes):
            what = f"{of_connection.size_bytes} bytes of this connection wait"
            fault = what, "questions_bytes_per_connection_max"
        elif of_address.count >= limits.per_address_max:
            fault = f"{of_address.count} requests from {address} wait", "half of questions_max"
        elif of_address.exceeds(limits.bytes_per_address_max, size_bytes):
            fault = f"{of_address.size_bytes} bytes from {address} wait", "half of questions_bytes_max"
        elif self._all.count >= limits.count_max:
            fault = f"{self._all.count} requests wait", "questions_max"
        elif self._all.exceeds(limits.bytes_max, size_bytes):
            fault = f"{self._all.size_bytes} bytes wait", "questions_bytes_max"
        if fault is not None:
            what, setting = fault
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {what} for answers of other clients, the limit is {setting}: try again later",
            )

    def remove(self, connection: int, address: str, size_bytes: int) -> None:
        self._all = self._all.plus(-1, -size_bytes)
        of_connection = self._of[connection] = self._of[connection].plus(-1, -size_bytes)
        of_address = self._of_address[address] = self._of_address[address].plus(-1, -size_bytes)
        if not of_connection.count:
            del self._of[connection]
        if not of_address.count:
            del self._of_address[address]
