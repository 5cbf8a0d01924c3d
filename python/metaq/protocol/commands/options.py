"""The options of a running MetaQ broker: every one with its source, and changes at run time.

RocketMQ's tools read and change a few of them with GetBrokerConfig and UpdateBrokerConfig.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec

from metaq.protocol import java_json
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.ranges import FixedRows, LongText, ShortText

OPTIONS_MAX: Final = 1_000

OptionSource = Literal["default", "file", "kept", "environment", "set", "flag", "now"]
"""The kind of source of a value. `now`: changed at run time, until the broker stops."""


class OptionState(msgspec.Struct, frozen=True):
    """One option of a broker. Values are texts as in a configuration file; empty: no value."""

    name: ShortText
    value: LongText
    source: OptionSource
    origin: LongText
    """The file, the variable or the flag that sets it."""
    at_run_time: bool
    """Whether the broker can change it while it runs."""
    next_start: LongText
    """Its value after the next start, if nothing else changes."""


class OptionStates(msgspec.Struct, frozen=True):
    options: FixedRows[OptionState] = ()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        return java_json.decode(data, cls)

    def encode(self) -> bytes:
        return java_json.encode(self)


class OptionChanges(msgspec.Struct, frozen=True):
    """All of the changes are made, or none."""

    values: Annotated[dict[ShortText, ShortText], msgspec.Meta(max_length=OPTIONS_MAX)] = {}
    forget: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=OPTIONS_MAX)] = ()
    """Options that go back to what the start sets without a kept value."""
    persist: bool = False
    """Keeps the values for later starts as well."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        return java_json.decode(data, cls)

    def encode(self) -> bytes:
        return java_json.encode(self)


class GetOptions(
    Command, code=30_350, permission="describe", resources={}, answer_max=AnswerMax(lines=OPTIONS_MAX)
):
    """Body of the answer: OptionStates."""


class ChangeOptions(
    Command,
    code=30_351,
    permission="admin",
    resources={},
    answer_max=AnswerMax(lines=OPTIONS_MAX),
    ends_with_connection=False,
):
    """Body: OptionChanges. Body of the answer: OptionStates of the changed options."""
