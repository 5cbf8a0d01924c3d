"""The start and end of reading: how options give them, and how ranges become tasks. It does no I/O."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, TypeAlias

from metaq.client.session.routes import Queue
from metaq.position_words import current_word

OFFSET_MAX: Final = 2**63 - 1
LATEST: Final = -1
EARLIEST: Final = -2
_ENDS: Final = {"latest": LATEST, "earliest": EARLIEST}


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first message that a queue still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """After the last message."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The offset that the group has committed; the first message of a queue without one."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every queue; −1 is latest, −2 is earliest."""

    offsets: Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The same offset in every queue, or the nearest that a queue has."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message of every queue that was stored at a time or later."""

    time: Time


@dataclass(frozen=True, slots=True)
class AtTimes:
    """A time for every queue, in milliseconds since 1970."""

    times: Mapping[Queue, int]


Position: TypeAlias = Earliest | Latest | GroupOffset | AtOffset | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True)
class Time:
    """A time, or a span before the time at which it is used."""

    milliseconds: int
    is_relative: bool = False

    def at(self, now_ms: int) -> int:
        return max(now_ms - self.milliseconds, 0) if self.is_relative else self.milliseconds


_UNITS_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 7 * 86_400_000,
}


_SHORT_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The units of the command line."""
_SPAN: Final = r"(\d{1,15})\s*([a-z]+)\b"


def _unit_ms(name: str) -> int:
    """Returns the milliseconds of a unit, or 0 if there is none of that name."""
    return _SHORT_UNITS_MS.get(name) or _UNITS_MS.get(name.removesuffix("s"), 0)


def parse_position(text: str) -> Position:
    """Reads one position for all queues, in the words of the command line: `earliest`, `latest`, a time such
    as -10m or 2026-01-31T08:00:00Z, or an offset. Raises ValueError."""
    text = current_word(text.strip().lower() if text.strip().isalpha() else text.strip())
    if text in ("earliest", "latest"):
        return Earliest() if text == "earliest" else Latest()
    if re.fullmatch(r"\d{1,18}", text):
        return AtOffset(int(text))
    return AtTime(parse_time(text))


def parse_time(text: str) -> Time:
    """Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"\d{1,18}", text):
        return Time(int(text))
    if text.startswith("-"):
        parts = re.findall(_SPAN, text[1:].lower())
        rest = re.sub(_SPAN, "", text[1:].lower())
        spans = [int(count) * _unit_ms(unit) for count, unit in parts]
        if not parts or rest.strip() or 0 in [_unit_ms(unit) for _, unit in parts]:
            raise ValueError(f"its units are {', '.join(_UNITS_MS)}, or {', '.join(_SHORT_UNITS_MS)}")
        return Time(sum(spans), is_relative=True)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError("it lies before 1970")
    return Time(milliseconds)


def parse_positions(text: str, *, lowest: int) -> dict[Queue, int]:
    """`{"topic": {"broker": {"0": 23}}}`; raises ValueError."""
    positions: dict[Queue, int] = {}
    for topic, broker, queues in _nested(text):
        for number, value in _objects(queues, f"{topic}.{broker}").items():
            if not re.fullmatch(r"\d{1,9}", number):
                raise ValueError(f"{topic}.{broker} has a queue {number!r}: it is a number from 0 on")
            if isinstance(value, str) and lowest < 0:
                value = _ENDS.get(current_word(value), value)
            if type(value) is not int or not lowest <= value <= OFFSET_MAX:
                raise ValueError(
                    f"{topic}.{broker}.{number} is {value!r}: it is a whole number from {lowest} on"
                )
            positions[Queue(topic, broker, int(number))] = value
    if not positions:
        raise ValueError("it names no queue")
    return positions


def parse_assignment(text: str) -> dict[str, dict[str, frozenset[int]]]:
    """`{"topic": {"broker": [0, 1]}}`; raises ValueError."""
    assigned: dict[str, dict[str, frozenset[int]]] = {}
    for topic, broker, numbers in _nested(text):
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic}.{broker} is not a list of queues")
        if any(type(number) is not int or not 0 <= number < 2**31 for number in numbers):
            raise ValueError(f"{topic}.{broker} has a queue that is not a number from 0 on")
        assigned.setdefault(topic, {})[broker] = frozenset(numbers)
    if not assigned:
        raise ValueError("it names no queue")
    return assigned


def _nested(text: str) -> list[tuple[str, str, Any]]:
    try:
        topics = json.loads(text, object_pairs_hook=_no_name_twice)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return [
        (topic, broker, rest)
        for topic, brokers in _objects(topics, "the whole").items()
        for broker, rest in _objects(brokers, topic).items()
    ]


def _objects(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object")
    return value


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a name twice")
    return found


def nested(values: Mapping[Queue, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the nested form of offsets, always in the same order: Spark compares them as text."""
    shape: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in sorted(values):
        shape.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.id)] = values[queue]
    return shape


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Messages of one queue; the end is not included."""

    queue: Queue
    from_offset: int
    to_offset: int

    @property
    def length(self) -> int:
        return max(self.to_offset - self.from_offset, 0)

    def __str__(self) -> str:
        name = f"{self.queue.topic}/{self.queue.broker}/{self.queue.id}"
        if not self.length:
            return f"{name} at {self.from_offset}"
        return f"{name} [{self.from_offset}, {self.to_offset})"

    def split(self, parts: int) -> list[Range]:
        """Returns parts that differ by at most one message; none is empty."""
        parts = max(min(parts, self.length), 1)
        cuts = [self.from_offset + self.length * number // parts for number in range(parts + 1)]
        return [Range(self.queue, first, last) for first, last in pairwise(cuts)]


def plan(ranges: Iterable[Range], *, partitions_min: int | None, records_max: int | None) -> list[Range]:
    """Returns the tasks: one or more for each range that is not empty. None has more than `records_max`
    messages. There are at least `partitions_min`, if there are that many messages; long ranges are split
    first."""
    whole = sorted(part for part in ranges if part.length > 0)
    parts = [-(-part.length // records_max) if records_max else 1 for part in whole]
    count = sum(parts)
    longest = [(-part.length / parts[number], number) for number, part in enumerate(whole)]
    heapq.heapify(longest)
    while longest and count < (partitions_min or 0):
        _, number = heapq.heappop(longest)
        if parts[number] < whole[number].length:
            parts[number] += 1
            count += 1
            heapq.heappush(longest, (-whole[number].length / parts[number], number))
    return [piece for part, number in zip(whole, parts, strict=True) for piece in part.split(number)]


def share(available: Mapping[Queue, int], limit: int) -> dict[Queue, int]:
    """Shares `limit` messages among the queues in proportion to what they have."""
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    queues = sorted(available)
    taken = {queue: available[queue] * limit // total for queue in queues}
    left = limit - sum(taken.values())
    # The queues that lost most by rounding get the rest.
    by_loss = sorted(queues, key=lambda queue: (-(available[queue] * limit % total), queue))
    for queue in by_loss[:left]:
        taken[queue] += 1
    return taken
