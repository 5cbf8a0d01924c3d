"""What broker and worker say to each other, over the worker's standard input and output.

Each side sends frames: four bytes of length, then one of these values as MessagePack. The worker begins with
a Hello; after that every Ask is followed by one Told. Verdicts do not travel: the worker notes each in memory
that both sides see, so that when a function takes the worker down the broker knows over which message.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec

Argument: TypeAlias = str | int | float | bool | None
"""What a consumer can write as an argument."""

VERDICTS_MAX = 4096
"""Size of the shared memory, a byte for each message of a batch."""
UNSEEN, UNDER_WAY, UNWANTED, WANTED, FAILED = range(5)

ASK_BYTES_MAX = 256 * 1024 * 1024
TOLD_BYTES_MAX = 1024 * 1024
LENGTH = struct.Struct(">I")


class Parameter(msgspec.Struct, frozen=True):
    """One that a call may give, in order."""

    name: str
    kind: str = ""
    """What the argument must be, in a word; empty where anything goes."""
    required: bool = True
    variadic: bool = False


class Description(msgspec.Struct, frozen=True):
    """One function, as consumers may call it."""

    name: str
    doc: str = ""
    module: str = ""
    parameters: tuple[Parameter, ...] = ()

    @property
    def signature(self) -> str:
        """`name(first, [second], [*rest])`"""
        shown = []
        for parameter in self.parameters:
            text = f"*{parameter.name}" if parameter.variadic else parameter.name
            text += f": {parameter.kind}" if parameter.kind else ""
            shown.append(text if parameter.required else f"[{text}]")
        return f"{self.name}({', '.join(shown)})"


class Hello(msgspec.Struct):
    """A worker that has started; `error` says why it has not."""

    functions: tuple[Description, ...] = ()
    error: str = ""


class Ask(msgspec.Struct):
    """Records for one function to look at, in order, until enough are wanted or the time is used up."""

    function: str
    arguments: tuple[Argument, ...]
    records: bytes
    wanted_max: int
    budget_ms: int


class Told(msgspec.Struct):
    """The batch is done with, as far as the verdicts go."""

    failed: int = 0
    error: str = ""
    """Of the first message that the function failed for."""
    ends: bool = False
    """The worker ends itself after this: its memory is used up."""


def frame(value: msgspec.Struct) -> bytes:
    payload = msgspec.msgpack.encode(value)
    return LENGTH.pack(len(payload)) + payload
