"""The stacks of a member for people: its busy handlers first, equal stacks once, idle threads folded.

A Python client writes `thread NAME` or `task NAME` before each stack, and the innermost frame last. A Java
client writes `NAME TID: 7 STATE: RUNNABLE`, and the innermost frame first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Final

from metaq.counts import counted

NAMES_SHOWN: Final = 8
_JAVA_TAIL: Final = re.compile(r"[0-9]{1,20} STATE: ([A-Z_]{1,40}) *")
_LINE_MAX: Final = 2_000
_PYTHON_FRAME: Final = re.compile(r'  (?:File "([^"]*)", line \d+, in (\S+)|(\S.*):\d+ (\S+)$)')
_OUR_CLIENT: Final = "/metaq/client/"
_CALLS_HANDLER: Final = ("call", "call_here")
"""Functions of the client's `handler_threads.py` that call the user's handler."""
_WAITING_FILES: Final = ("threading.py", "queue.py", "selectors.py", "thread.py", "socketserver.py")
_WAITING_FRAMES: Final = (
    ".park",
    "Object.wait",
    ".epollWait",
    ".poll",
    "Thread.sleep",
    "selectNow",
    ".accept",
)


@dataclass(frozen=True, slots=True)
class _Stack:
    name: str
    is_task: bool
    java_state: str
    frames: tuple[str, ...]
    """Lines, as the client wrote them."""

    def is_handler_of(self, group: str) -> bool:
        if self.java_state:
            return self.name.startswith("ConsumeMessage") and f"_{group}_" in f"{self.name}_"
        rest = self.name.removeprefix(f"metaq {group}")
        return rest != self.name and re.fullmatch(r"( worker |-)\d+", rest) is not None

    def is_idle(self, *, is_handler: bool) -> bool:
        if self.java_state:
            if is_handler:
                return any("ThreadPoolExecutor.getTask" in frame for frame in self.frames)
            return self.java_state != "RUNNABLE" or any(
                word in frame for frame in self.frames[:1] for word in _WAITING_FRAMES
            )
        known = [_file_and_function(frame) for frame in self.frames]
        places = [place for place in known if place is not None]
        if is_handler:
            return not any(_is_in_handler(*place) for place in places)
        return self.is_task or not places or _waits(*places[-1])


def for_people(stack: str, group: str) -> str:
    """Returns the stacks of a member: first busy handlers of the group, then other busy threads. Idle ones
    are only named."""
    handlers: list[_Stack] = []
    others: list[_Stack] = []
    idle_handlers: list[_Stack] = []
    idle: list[_Stack] = []
    for found in _parsed(stack):
        is_handler = found.is_handler_of(group)
        if found.is_idle(is_handler=is_handler):
            (idle_handlers if is_handler else idle).append(found)
        else:
            (handlers if is_handler else others).append(found)
    parts = [f"{counted(len(handlers), 'busy handler')} of {group}" + (":" if handlers else "")]
    parts += _folded(handlers)
    if others:
        parts += [f"{counted(len(others), 'other busy thread')}:", *_folded(others)]
    if idle_handlers:
        parts.append(f"{counted(len(idle_handlers), 'idle handler')}: {_names(idle_handlers)}")
    if idle:
        parts.append(f"{counted(len(idle), 'idle thread or task', 'idle threads and tasks')}: {_names(idle)}")
    return "\n\n".join(parts)


def _folded(stacks: Iterable[_Stack]) -> Iterator[str]:
    """Yields each different stack once, with the names of its threads; the most frequent one first."""
    equal: dict[tuple[str, ...], list[_Stack]] = {}
    for stack in stacks:
        equal.setdefault(stack.frames, []).append(stack)
    for frames, same in sorted(equal.items(), key=lambda item: -len(item[1])):
        state = f" ({same[0].java_state})" if same[0].java_state else ""
        yield "\n".join((f"{_names(same)}{state}", indent("\n".join(frames), "  ")))


def _names(stacks: Sequence[_Stack]) -> str:
    """Returns the names, with the numbers of equal names together: `metaq billing worker 0, 1, 2`."""
    numbers: dict[str, list[str]] = {}
    for stack in stacks:
        found = re.search(r"[0-9]{1,9}$", stack.name)
        head = stack.name if found is None else stack.name[: found.start()]
        numbers.setdefault(head, []).append("" if found is None else found[0])
    shown = []
    for head, tails in list(numbers.items())[:NAMES_SHOWN]:
        tails.sort(key=lambda tail: int(tail or 0))
        if tails[0] == "":
            shown.append(head if len(tails) == 1 else f"{head} ({len(tails)} times)")
            continue
        more = f" and {len(tails) - NAMES_SHOWN} more" if len(tails) > NAMES_SHOWN else ""
        shown.append(head + ", ".join(tails[:NAMES_SHOWN]) + more)
    rest = len(numbers) - NAMES_SHOWN
    return "; ".join(shown) + (f"; and {rest} more" if rest > 0 else "")


def _parsed(text: str) -> Iterator[_Stack]:
    name, is_task, state = "", False, ""
    frames: list[str] = []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        thread, _, tail = line[:_LINE_MAX].rpartition(" TID: ")
        java = _JAVA_TAIL.fullmatch(tail) if thread else None
        if java is None and kind not in ("thread", "task"):
            if line.strip():
                frames.append(line.removeprefix(name).rstrip() if state else line.rstrip())
            continue
        if name or frames:
            yield _made(name, is_task, state, frames)
        frames = []
        if java is not None:
            name, is_task, state = thread.strip(), False, java[1]
        else:
            name, is_task, state = rest.strip(), kind == "task", ""
    if name or frames:
        yield _made(name, is_task, state, frames)


def _made(name: str, is_task: bool, state: str, frames: Sequence[str]) -> _Stack:
    if state:
        return _Stack(name, is_task, state, tuple(frame.strip() for frame in frames))
    return _Stack(name or "unnamed", is_task, state, tuple(frames))


def _file_and_function(line: str) -> tuple[str, str] | None:
    found = _PYTHON_FRAME.match(line[:_LINE_MAX])
    if found is None:
        return None
    return (found[1] or found[3] or "").replace("\\", "/"), found[2] or found[4] or ""


def _is_in_handler(file: str, function: str) -> bool:
    """Whether a frame of a worker belongs to the handler, or is about to call it."""
    if _OUR_CLIENT in file:
        return file.endswith("/handler_threads.py") and function in _CALLS_HANDLER
    return not _waits(file, function)


def _waits(file: str, function: str) -> bool:
    return file.rpartition("/")[2] in _WAITING_FILES or _OUR_CLIENT in file or "/asyncio/" in file
