"""Limits of requests under way: slots for work, and questions that wait for another client."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import Asker
from metaq.protocol.handling.waiting_lines import Line
from metaq.settings import KIB, MIB

QUESTION_BYTES: Final = 2 * KIB
"""About the memory of one question to a client, without its body."""


FREE_PER_SLOT: Final = 4
"""A connection may have one slot for every four that are free, up to its share. So nine connections that ask
without end leave 390 of 1,024 free."""


class Kind(NamedTuple):
    """The properties of a request that decide how many slots must be free for it."""

    is_vital: bool = False
    """It has reserved slots: it keeps clients and brokers alive."""
    is_new: bool = False
    """It is the only one of its connection."""
    only_asks: bool = False
    """It changes nothing. Vital requests never count as such."""


class Held(Protocol):
    """A request that has a slot or waits for one."""

    @property
    def asker(self) -> Asker: ...
    @property
    def kind(self) -> Kind: ...


_Request = TypeVar("_Request", bound=Held)
_Key = TypeVar("_Key")

KINDS: Final = (
    Kind(is_vital=True),
    Kind(is_new=True),
    Kind(),
    Kind(is_new=True, only_asks=True),
    Kind(only_asks=True),
)
"""Each kind has its own line of waiting requests."""


class _Room:
    """A number of slots, and who has them.

    An eighth is reserved, in four steps: the first slots are for vital requests of addresses that have few,
    the next ones also for other requests of such addresses, then for vital requests of everybody, then for
    connections that have none. An address has few slots if it has less than a quarter of those that are left
    for it, or none.
    """

    def __init__(self, size: int, per_connection_max: int) -> None:
        self._size = size
        self._per_connection_max = per_connection_max
        self._taken = 0
        self._connections: Counter[int] = Counter()
        self._addresses: Counter[str] = Counter()

    @property
    def free(self) -> int:
        return self._size - self._taken

    def of_connection(self, connection: int) -> int:
        return self._connections[connection]

    def of_address(self, source: str) -> int:
        return self._addresses[source]

    def has_room(self, source: str, kind: Kind) -> bool:
        if self.free > self._reserved(2 if kind.is_vital else 3 if kind.is_new else 4):
            return True
        step = 0 if kind.is_vital else 1
        return self.free > self._reserved(step) and self._has_few(source, step)

    def take(self, asker: Asker) -> None:
        self._taken += 1
        self._connections[asker.connection] += 1
        self._addresses[asker.source] += 1

    def give_back(self, asker: Asker) -> None:
        self._taken -= 1
        _count_down(self._connections, asker.connection)
        _count_down(self._addresses, asker.source)

    def has_share(self, asker: Asker) -> bool:
        """Whether a connection has as many slots as it may have now."""
        step = 1 if self._has_few(asker.source, 1) else 4
        share = min(self._per_connection_max, self._quarter(step))
        return self.of_connection(asker.connection) >= max(1, share)

    def _has_few(self, source: str, step: int) -> bool:
        return self.of_address(source) < max(1, self._quarter(step))

    def _quarter(self, step: int) -> int:
        return (self.free - self._reserved(step)) // FREE_PER_SLOT

    def _reserved(self, step: int) -> int:
        return self._size * step // 32


def _count_down(counts: Counter[_Key], key: _Key) -> None:
    """Counters keep zeros by themselves, and connections are never numbered twice."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class Slots(Generic[_Request]):
    """Counts the requests that are worked on, in all, by address and by connection, and keeps those that wait
    for a slot.

    A connection that has its share is paused: its other requests wait where they are, and those of others are
    served. The share shrinks as slots are taken. The address that has the fewest slots gets the next one. Its
    connections take turns, because each one that has a request waiting here is paused.

    Requests that only ask have half of the slots at most. They may wait for a thread for a long time, and
    requests that change something must not wait behind them.
    """

    def __init__(self, slots_max: int, per_connection_max: int, pause: Callable[[int, bool], None]) -> None:
        """`pause` is called with a connection, and with True to pause it or False to go on."""
        self._pause = pause
        self._all = _Room(slots_max, per_connection_max)
        self._asking = _Room((slots_max + 1) // 2, per_connection_max)
        self._lines: dict[Kind, Line[_Request]] = {
            kind: Line((self._asking if kind.only_asks else self._all).of_address) for kind in KINDS
        }
        self._waiting: dict[int, dict[_Request, None]] = {}
        """Connection → its requests that wait for a slot."""
        self._arrivals = itertools.count()
        self._paused: dict[int, Asker] = {}
        """The connections that are paused, those first that were looked at longest ago."""

    @property
    def free(self) -> int:
        return self._all.free

    def kind_of(self, connection: int, *, is_vital: bool, only_asks: bool) -> Kind:
        """The kind of a request that has just come."""
        if is_vital:
            return Kind(is_vital=True)
        is_new = self._all.of_connection(connection) == 0 and connection not in self._waiting
        return Kind(is_new=is_new, only_asks=only_asks)

    def has_room(self, source: str, kind: Kind) -> bool:
        """Whether a request of this address may begin."""
        return all(room.has_room(source, kind) for room in self._rooms(kind))

    def take(self, request: Held) -> None:
        """Always succeeds: a request that comes back from a wait may exceed the limits for a moment."""
        for room in self._rooms(request.kind):
            room.take(request.asker)
        self._rank(request.asker.source)
        if self._must_wait(request.asker):
            self._hold(request.asker)

    def give_back(self, request: Held) -> None:
        for room in self._rooms(request.kind):
            room.give_back(request.asker)
        self._rank(request.asker.source)
        self._look_again(request.asker)

    def wait(self, request: _Request) -> None:
        """Keeps a request until there is a slot for it."""
        asker = request.asker
        self._lines[request.kind].add(asker.source, request, next(self._arrivals))
        self._waiting.setdefault(asker.connection, {})[request] = None
        self._hold(asker)

    def waiting(self, connection: int) -> list[_Request]:
        return list(self._waiting.get(connection, ()))

    def waiting_count(self) -> int:
        return sum(map(len, self._lines.values()))

    def drop(self, request: _Request) -> None:
        """Forgets a request that waits."""
        self._leave_line(request)
        self._look_again(request.asker)

    def begin_next(self, *, anyhow: bool = False) -> _Request | None:
        """Gives a slot to the request that is next, and returns it. None if there is no slot for those that
        wait. With `anyhow`, there is always one."""
        if not self._waiting:
            return None
        for request in self._candidates():
            if anyhow or self.has_room(request.asker.source, request.kind):
                self._leave_line(request)
                self.take(request)
                self._look_again(request.asker)
                return request
        return None

    def _candidates(self) -> list[_Request]:
        """The first request of each line, in the order in which they are next."""
        found = []
        for kind, line in self._lines.items():
            if line:
                source, request, arrival = line.first()
                rank = (not kind.is_vital, self._all.of_address(source), not kind.is_new, arrival)
                found.append((rank, request))
        return [request for _, request in sorted(found, key=lambda one: one[0])]

    def _rooms(self, kind: Kind) -> tuple[_Room, ...]:
        return (self._all, self._asking) if kind.only_asks else (self._all,)

    def _rank(self, source: str) -> None:
        for line in self._lines.values():
            line.rank(source)

    def _leave_line(self, request: _Request) -> None:
        self._lines[request.kind].remove(request.asker.source, request)
        waiting = self._waiting[request.asker.connection]
        del waiting[request]
        if not waiting:
            del self._waiting[request.asker.connection]

    def _must_wait(self, asker: Asker) -> bool:
        return (
            asker.connection in self._waiting or self._all.has_share(asker) or self._asking.has_share(asker)
        )

    def _hold(self, asker: Asker) -> None:
        if asker.connection not in self._paused:
            self._paused[asker.connection] = asker
            self._pause(asker.connection, True)

    def _look_again(self, asker: Asker) -> None:
        self._look_at(asker)
        # There may be room for others now. One at a time is enough: each goes on at the latest when it has no
        # request under way any more.
        self._look_at(next(iter(self._paused.values()), asker))

    def _look_at(self, asker: Asker) -> None:
        """Lets a connection go on if it has less than its share."""
        if asker.connection not in self._paused:
            return
        del self._paused[asker.connection]
        if self._must_wait(asker):
            self._paused[asker.connection] = asker
        else:
            self._pause(asker.connection, False)


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
