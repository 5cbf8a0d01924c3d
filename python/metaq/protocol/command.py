"""The base of every command: its code, the fields of its header, its callers and the side that answers it.

A header is a flat map of strings. A subclass of `Fields` gives it types. Names become camelCase on the wire
unless `msgspec.field(name=…)` says otherwise. Unknown fields are ignored, because every release adds some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args, get_origin

import msgspec

from metaq.protocol.errors import ProtocolError
from metaq.settings import KIB, MIB

Permission = Literal["none", "describe", "read", "write", "admin", "cluster"]
"""The right that a caller needs on the named resources.

`describe` sees their state and configuration, and comes with each of the other rights. `read` consumes
messages and commits offsets, `write` sends messages, `admin` changes or deletes. `cluster` is for members of
the cluster alone, and `none` is open to everybody.
"""

ResourceKind = Literal["topic", "group"]

Resources = Mapping[str, ResourceKind] | Literal["body"]
"""The fields that name the resources, and the kind of each.

A field that a request leaves out names no resource. An empty mapping stands for the whole server, `"body"`
for resources that only the body names.
"""

Peer = Literal["nameserver", "broker", "client"]

LOOP_BYTES_MAX: Final = 32 * KIB
"""No body longer than this is read on the event loop."""


LINES_MAX: Final = 50_000
ANSWER_BYTES_MAX: Final = 16 * MIB - 64 * KIB
"""Clients of RocketMQ read frames of up to 16 MiB, with the header."""


@dataclass(frozen=True, slots=True)
class AnswerMax:
    """The most that an answer may list. `metaq.protocol.handling.bounded_answer` checks it while a handler
    collects."""

    lines: int = LINES_MAX
    size_bytes: int = ANSWER_BYTES_MAX
    instead: str = ""
    """A shorter question, for the refusal."""


class FieldsMeta(msgspec.StructMeta):
    """Takes a command's own keywords out of the class statement, because msgspec would not accept them."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        code: int | None = None,
        permission: Permission | None = None,
        resources: Resources | None = None,
        to: Peer | None = None,
        hot: bool | None = None,
        reply: type[Fields] | None = None,
        body_bytes_max: int | None = None,
        answer_bytes_max: int | None = None,
        answer_max: AnswerMax | None = None,
        ends_with_connection: bool | None = None,
        has_reserved_slots: bool | None = None,
        **options: Any,
    ) -> FieldsMeta:
        cls = super().__new__(mcls, name, bases, namespace, **options)
        own = {
            "code": code,
            "permission": permission,
            "resources": resources,
            "to": to,
            "hot": hot,
            "reply": reply,
            "body_bytes_max": body_bytes_max,
            "answer_bytes_max": answer_bytes_max,
            "answer_max": answer_max,
            # A command that lists something changes nothing, unless it says otherwise.
            "ends_with_connection": answer_max is not None or None
            if ends_with_connection is None
            else ends_with_connection,
            "has_reserved_slots": has_reserved_slots,
        }
        for attribute, value in own.items():
            if value is not None:
                setattr(cls, attribute, value)
        return cls

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        type.__init__(cls, name, bases, namespace)


class Fields(msgspec.Struct, metaclass=FieldsMeta, rename="camel"):
    """The typed fields of a header, of a request or of its answer."""

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> Self:
        """Raises ProtocolError, which names the field that is missing or has the wrong type."""
        try:
            return msgspec.convert(fields, cls, strict=False)
        except msgspec.ValidationError:
            pass
        try:
            return msgspec.convert(_without_empty(cls, fields), cls, strict=False)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"{cls.__name__}: {_explain(error)}") from None

    def to_fields(self) -> dict[str, str]:
        """The header as it is sent; None is left out."""
        fields: dict[str, str] = {}
        for name, wire_name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is not None:
                fields[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return fields


class Command(Fields):
    """A request. The class variables below are keywords of the class statement:

    class GetTopicConfig(Command, code=351, permission="describe", resources={"topic": "topic"}): …

    Nothing checks `permission` and `resources` yet: access control will enforce them.
    """

    code: ClassVar[int]
    permission: ClassVar[Permission]
    resources: ClassVar[Resources]
    to: ClassVar[Peer] = "broker"
    hot: ClassVar[bool] = False
    """Whether the data plane answers it. Python then sees only requests that the policy does not cover."""
    reply: ClassVar[type[Fields] | None] = None
    """The header of its answer, if it has one."""
    body_bytes_max: ClassVar[int] = LOOP_BYTES_MAX
    """A longer body is refused unread. Handlers of commands with a higher limit read long bodies on a thread
    (`handling/body_reading.py`)."""
    answer_bytes_max: ClassVar[int] = LOOP_BYTES_MAX
    """The longest body of a client's answer, if a broker asks. A longer one is refused unread."""
    answer_max: ClassVar[AnswerMax | None] = None
    """The bound of an answer with a list or a table. Every command that has such an answer declares it."""
    ends_with_connection: ClassVar[bool] = False
    """Whether the command only asks: it is cancelled if its connection closes, and not handled at all if it
    is oneway. A command that changes something is finished once it has begun."""
    has_reserved_slots: ClassVar[bool] = False
    """Whether some slots are kept for it, because clients and brokers need the answer to stay alive."""


def commands(base: type[Command] = Command) -> Iterator[type[Command]]:
    """Every command class that has been imported."""
    for subclass in base.__subclasses__():
        if "code" in subclass.__dict__:
            yield subclass
        yield from commands(subclass)


def _without_empty(cls: type[Fields], fields: Mapping[str, str]) -> dict[str, str]:
    """The binary encoding cannot tell an empty value from none, so only text may be empty."""
    texts = {field.encode_name for field in msgspec.structs.fields(cls) if _is_text(field.type)}
    return {name: value for name, value in fields.items() if value != "" or name in texts}


def _is_text(kind: object) -> bool:
    return kind is str or (get_origin(kind) is Annotated and get_args(kind)[0] is str)


def _explain(error: msgspec.ValidationError) -> str:
    text = str(error)
    problem, _, path = text.partition(" - at `$.")
    if path:
        return f"field {path.rstrip('`')}: {problem[:1].lower()}{problem[1:]}"
    return text.replace("Object missing required field", "missing required field")
