"""The messages between a broker and a filter worker, over the worker's standard input and output.

Each side sends frames: four bytes of length, then one of these values as MessagePack. The worker starts with
a Hello. After that it answers every Ask with one Answer. Verdicts are not part of it: the worker writes them
to shared memory, so if a function crashes the worker, the broker still knows at which message.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec

Argument: TypeAlias = str | int | float | bool | None
"""A value that a consumer can write as an argument."""

VERDICTS_MAX = 4096
"""The size of the shared memory: one byte for each message of a batch."""
UNSEEN, UNDER_WAY, UNWANTED, WANTED, FAILED = range(5)

ASK_BYTES_MAX = 256 * 1024 * 1024
ANSWER_BYTES_MAX = 1024 * 1024
LENGTH = struct.Struct(">I")


class Parameter(msgspec.Struct, frozen=True):
    """A positional parameter of a function."""

    name: str
    kind: str = ""
    """The type of the argument, as a word; empty if it is not checked."""
    required: bool = True
    variadic: bool = False


class Description(msgspec.Struct, frozen=True):
    """A function that consumers may call."""

    name: str
    doc: str = ""
    module: str = ""
    parameters: tuple[Parameter, ...] = ()

    @property
    def signature(self) -> str:
        """How to call it: `name(first, [second], [*rest])`."""
        shown = []
        for parameter in self.parameters:
            text = f"*{parameter.name}" if parameter.variadic else parameter.name
            text += f": {parameter.kind}" if parameter.kind else ""
            shown.append(text if parameter.required else f"[{text}]")
        return f"{self.name}({', '.join(shown)})"


class Hello(msgspec.Struct):
    """Sent by a worker when it has started, or has failed to start, with the reason in `error`."""

    functions: tuple[Description, ...] = ()
    error: str = ""
    unprotected: tuple[str, ...] = ()
    """The things that the system does not keep functions from."""


class Ask(msgspec.Struct):
    """Records that a function checks in order, until enough are wanted or the time is over."""

    function: str
    arguments: tuple[Argument, ...]
    records: bytes
    wanted_max: int
    budget_ms: int


class Answer(msgspec.Struct):
    """Sent by the worker when it has checked a batch, as far as the verdicts go."""

    failed: int = 0
    error: str = ""
    """The error of the first message at which the function failed."""
    ends: bool = False
    """The worker exits after this, because its memory is exhausted."""


def frame(value: msgspec.Struct) -> bytes:
    """Encodes one value as a frame."""
    payload = msgspec.msgpack.encode(value)
    return LENGTH.pack(len(payload)) + payload
