"""Answers that list: counted while a handler collects them, and refused before they grow too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.errors import Refused
from metaq.work_pools import let_event_loop_run

STEP_LINES: Final = 32
"""Lines after which other threads run, and after which work that nobody waits for ends."""

_Item = TypeVar("_Item")


class Encodable(Protocol):
    """A body of `metaq.protocol.bodies`."""

    def encode(self) -> bytes: ...


class BoundedAnswer:
    """Counts the lines and the bytes of one answer. For work on a thread of a pool."""

    def __init__(self, command: type[Command]) -> None:
        """Takes the limits that the command declares."""
        self._name = command.__name__
        self._max = command.answer_max or AnswerMax()
        self.lines = 0
        """The lines that were collected, those that the handler is about to collect included."""
        self.size_bytes = 0
        self._until_step = STEP_LINES

    def add(self, size_bytes: int = 0, lines: int = 1) -> None:
        """Counts lines that a handler is about to collect, and about how many bytes they have in all. Raises
        Refused past a limit, and GivenUp if nobody waits for the answer."""
        lines_max, bytes_max = self._max.lines, self._max.size_bytes
        if self.lines + lines > lines_max:
            raise self._refused(f"{self.lines + lines} lines", f"{lines_max} lines")
        if self.size_bytes + size_bytes > bytes_max:
            raise self._refused(f"{self.size_bytes + size_bytes} bytes", f"{bytes_max} bytes")
        self.lines += lines
        self.size_bytes += size_bytes
        self._step()

    def counted(self, items: Iterable[_Item], size_bytes: int = 0) -> Iterator[_Item]:
        """Yields the items, each of them one line with that many bytes."""
        for item in items:
            self.add(size_bytes)
            yield item

    def stepwise(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yields items whose lines are counted already, or that are looked at for one line."""
        for item in items:
            self._step()
            yield item

    def encoded(self, body: Encodable) -> bytes:
        """Encodes the answer. Raises Refused if it has more bytes than were expected."""
        let_event_loop_run()
        content = body.encode()
        if len(content) > self._max.size_bytes:
            raise self._refused(f"{len(content)} bytes", f"{self._max.size_bytes} bytes")
        return content

    def _step(self) -> None:
        self._until_step -= 1
        if self._until_step <= 0:
            self._until_step = STEP_LINES
            let_event_loop_run()

    def _refused(self, size: str, limit: str) -> Refused:
        instead = f": {self._max.instead}" if self._max.instead else ""
        return Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the answer to {self._name} would have {size} or more, the limit is {limit}; "
            f"{self.lines} lines were counted{instead}",
        )


def listed_once(text: str, separator: str) -> list[str]:
    """The names of a list in a header, in their order. A name that is repeated counts once."""
    return list(dict.fromkeys(name for name in text.split(separator) if name))
