"""Values for a field from its type: valid ones, ones at and behind its limits, and ones of another type.

Types and ranges come from `msgspec.inspect`, so a new field or a narrower range needs no change here.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

TOPICS = ("generated-a", "generated-b", "generated-c", "t" * 127)
GROUPS = ("generated-x", "generated-y", "g" * 120)
SYSTEM_TOPICS = (
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TRANS_CHECK_MAX_TIME_TOPIC"),
    *("TBW102", "BenchmarkTest", "%RETRY%generated-x", "%DLQ%generated-x", "%RETRY%", "%DLQ%"),
)
SYSTEM_GROUPS = ("CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER", "CLIENT_INNER_PRODUCER")
CLIENTS = ("generated@1", "generated@2", "c" * 512)
BROKERS = ("generated-broker", "generated-other")
ADDRESSES = ("127.0.0.1:1", "127.0.0.1:65535", "[::1]:9", "host")
WORDS = ("a", "b", "TAG", "SQL92", "SINGLE_TAG", "PULL", "POP", "CUSTOMIZED", "LOWER", "UPPER", "*")
EXPRESSIONS = ("*", "a", "a || b", "n > 0", "n in ('a', 'b') and TAGS is not null", "(" * 60, "||" * 500)
PROPERTIES = (
    "",
    "k\x01v\x02",
    "TAGS\x01a\x02KEYS\x01one two\x02",
    "DELAY\x011\x02",
    "DELAY\x01-9\x02",
    "TIMER_DELAY_SEC\x0199999999999999999999\x02",
    "TIMER_DELIVER_MS\x01-1\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01generated-x\x02UNIQ_KEY\x01" + "0" * 32 + "\x02",
    "REPLY_TO_CLIENT\x01generated@1\x02CORRELATION_ID\x01x\x02",
    "POP_CK\x01x\x02" * 50,
    "\x01\x02" * 50,
    "k\x01",
    "\x02\x01",
)
OFFSET_IDS = ("7F00000100002A9F" + "0" * 16, "7F00000100002A9F" + "F" * 16, "0" * 40, "xyz", "7F")
ATTRIBUTES = ("+message.type=NORMAL", "-message.type", "+a=b,+a=c", "=", "+", "+message.type=" + "x" * 500)
LISTS = ("generated-a,generated-a", ",".join(["generated-a"] * 200), ",,,", "generated-a;generated-b")
VERSIONS = ('{"counter":1,"stateVersion":0,"timestamp":1}', f'{{"counter":{2**70}}}', "{1:2", "[[[[")
ODD_TEXTS = (
    *("", " ", "-1", "0", "NaN", "Infinity", "1e400", "null", "true", "ü", "漢" * 200, "\U0001f600", "\x00"),
    *("\x01\x02", "a\nb", "a\rb", "\x1b[31m", "../..", "../../etc/passwd", "/etc/passwd", "a/b", "..", "."),
    *("a\\b", "a@b", "a%00b", "%s%s%n", "{}", "[]", '"', "${x}", "x" * 128, "x" * 300, "x" * 40_000),
    *("1" * 5_000, "1" * 4_300, "٣", "²", "+1", "0x10", "1_000", " 1", "1.0", "a" * 256, "\ufeff", "\x7f"),
)
INTEGERS = (
    *(-(2**70), -(2**63) - 1, -(2**63), -(2**31) - 1, -(2**31), -1, 0, 1, 2**15, 2**16, 2**31 - 1, 2**31),
    *(2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**70, 2**80, 10**30),
)
DEPTH = 4
ENTRIES_REPEATED = 200
ODD_PARTS = (0.04, 0.04, 0.15, 0.4)
"""How many of the values in a body are odd. With one or two, it comes as far as the code that uses them."""


@dataclass(frozen=True)
class Pairs:
    """An object of JSON whose keys may repeat, or may be numbers or objects, as Java writes them."""

    entries: list[tuple[Any, Any]]


_BY_NAME: tuple[tuple[str, Sequence[str]], ...] = (
    # The first part that a field's name has decides.
    ("attributes", ATTRIBUTES),
    ("topic_list", LISTS),
    ("filter_groups", LISTS),
    ("data_version", VERSIONS),
    ("filter_type", WORDS),
    ("topic", TOPICS),
    ("group", GROUPS),
    ("client_addr", CLIENTS),
    ("client", CLIENTS),
    ("broker_name", BROKERS),
    ("bname", BROKERS),
    ("addr", ADDRESSES),
    ("host", ADDRESSES),
    ("properties", PROPERTIES),
    ("expression_type", WORDS),
    ("subscription", EXPRESSIONS),
    ("sub_string", EXPRESSIONS),
    ("tags", EXPRESSIONS),
    ("id", OFFSET_IDS),
    ("handle", OFFSET_IDS),
    ("namespace", ("ORDER_TOPIC_CONFIG", "generated")),
)


class Values:
    """Draws values; the same random numbers give the same values."""

    def __init__(self, chance: random.Random, others: Sequence[str] = ()) -> None:
        """`others` are names that belong to somebody else, where a request cannot do harm with them."""
        self._chance = chance
        self.others = others
        self.odd_part = ODD_PARTS[0]
        self.repeats_left = 0
        """How many more lists of this body may be long: lists of long lists would be too much to send."""
        self.focus = ""
        """If given, only fields of this name in a body are odd."""

    def valid(self, kind: inspect.Type, name: str, depth: int = 0) -> Any:
        """A value that the type admits. None stands for a field that is left out."""
        match kind:
            case inspect.UnionType():
                return self.valid(self._chance.choice(kind.types), name, depth)
            case inspect.NoneType():
                return None
            case inspect.BoolType():
                return self._chance.random() < 0.5
            case inspect.IntType():
                return self._chance.choice(integers_within(kind))
            case inspect.FloatType():
                return self._chance.choice([0.0, -1.5, 1e300])
            case inspect.StrType():
                return self._text(kind, name)
            case inspect.LiteralType() | inspect.EnumType():
                values = (
                    kind.values if isinstance(kind, inspect.LiteralType) else [one.value for one in kind.cls]
                )
                return self._chance.choice(list(values))
        return self._composed(kind, name, depth, self.valid)

    def odd(self, kind: inspect.Type, name: str, depth: int = 0) -> Any:
        """A value at a limit, behind it, of another type, or missing."""
        chance = self._chance
        if chance.random() < 0.1:
            return self._of_another_type(depth)
        match kind:
            case inspect.UnionType():
                return self.odd(chance.choice(kind.types), name, depth)
            case inspect.IntType():
                return chance.choice([*limits(kind), *INTEGERS, "", "1" * 5_000, "x", 1.5, str(2**63)])
            case inspect.FloatType():
                return chance.choice([1e308, -0.0, "NaN", "1e999", 2**70])
            case inspect.BoolType():
                return chance.choice(["", "yes", 2, -1, "TRUE", "0", "null", 2**70])
            case inspect.StrType():
                return chance.choice([*ODD_TEXTS, *SYSTEM_TOPICS, *SYSTEM_GROUPS, *text_limits(kind)])
            case inspect.NoneType() | inspect.AnyType() | inspect.LiteralType() | inspect.EnumType():
                return self._of_another_type(depth)
        return self._composed(kind, name, depth, self._mostly_valid)

    def _mostly_valid(self, kind: inspect.Type, name: str, depth: int) -> Any:
        if self.focus and isinstance(kind, _COMPOSED):
            return self._composed(kind, name, depth, self._mostly_valid)
        is_odd = name == self.focus if self.focus else self._chance.random() < self.odd_part
        return (self.odd if is_odd else self.valid)(kind, name, depth)

    def _text(self, kind: inspect.StrType, name: str) -> str:
        texts = next((found for part, found in _BY_NAME if part in name), WORDS)
        if self.others and texts in (TOPICS, GROUPS):
            texts = (*texts, *self.others)
        text = self._chance.choice(texts)
        return text if kind.max_length is None else text[: kind.max_length]

    def _composed(
        self, kind: inspect.Type, name: str, depth: int, draw: Callable[[inspect.Type, str, int], Any]
    ) -> Any:
        chance = self._chance
        if depth > DEPTH:
            return None
        match kind:
            case inspect.ListType() | inspect.SetType() | inspect.VarTupleType():
                entries = [
                    draw(kind.item_type, name, depth + 1)
                    for _ in range(chance.randrange(bool(self.focus), 4))
                ]
                if draw == self._mostly_valid and entries and self.repeats_left and chance.random() < 0.3:
                    self.repeats_left -= 1
                    entries *= ENTRIES_REPEATED
                return entries
            case inspect.DictType():
                count = chance.randrange(4)
                # A table of topics or groups has their names as its keys.
                pairs = [
                    (draw(kind.key_type, name, depth + 1), draw(kind.value_type, name, depth + 1))
                    for _ in range(count)
                ]
                return Pairs(self._perhaps_twice(pairs) if draw == self._mostly_valid else pairs)
            case inspect.StructType():
                pairs = [
                    (field.encode_name, draw(field.type, field.name, depth + 1)) for field in kind.fields
                ]
                given = [(key, value) for key, value in pairs if value is not None]
                return Pairs(self._perhaps_twice(given) if draw == self._mostly_valid else given)
        return self._of_another_type(depth)

    def _perhaps_twice(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        what = self._chance.randrange(6)
        if pairs and what == 0:
            return [*pairs, self._chance.choice(pairs)]
        if pairs and what == 1:
            del pairs[self._chance.randrange(len(pairs))]
        return pairs

    def _of_another_type(self, depth: int) -> Any:
        chance = self._chance
        what = chance.randrange(6)
        if what == 0:
            nested: Any = chance.choice([1, "x", None])
            for _ in range(chance.choice([3, 30, 63, 64, 65, 200])):
                nested = [nested] if chance.random() < 0.5 else Pairs([("k", nested)])
            return nested
        if what == 1:
            return [chance.choice(INTEGERS) for _ in range(3)]
        if what == 2:
            return Pairs([(number, number) for number in range(chance.choice([1, 300]))])
        if what == 3:
            queue = Pairs([("brokerName", "b"), ("queueId", 2**70), ("topic", "t")])
            return Pairs([(queue, 1), (queue, -1)])
        return chance.choice([chance.choice(INTEGERS), chance.choice(ODD_TEXTS), True, 1.5, None])


_COMPOSED = (inspect.StructType, inspect.ListType, inspect.DictType)


def leaves(kind: inspect.Type, name: str = "") -> tuple[str, ...]:
    """The names of all fields of a body, at every depth, that are numbers, texts and the like."""
    match kind:
        case inspect.StructType():
            return tuple(leaf for field in kind.fields for leaf in leaves(field.type, field.name))
        case inspect.ListType():
            return leaves(kind.item_type, name)
        case inspect.DictType():
            return (name, *leaves(kind.value_type, name))
    return (name,)


def integers_within(kind: inspect.IntType) -> list[int]:
    least, most = _range(kind)
    return [value for value in (0, 1, 2, 4, 6, 8, 16, least, most) if least <= value <= most] or [least]


def limits(kind: inspect.IntType) -> list[int]:
    least, most = _range(kind)
    return [least - 1, least, most, most + 1]


def text_limits(kind: inspect.StrType) -> list[str]:
    return [] if kind.max_length is None else ["x" * kind.max_length, "x" * (kind.max_length + 1)]


def _range(kind: inspect.IntType) -> tuple[int, int]:
    """The range of the type. Without one, small numbers are valid."""
    least = kind.ge if kind.ge is not None else (kind.gt + 1 if kind.gt is not None else 0)
    most = kind.le if kind.le is not None else (kind.lt - 1 if kind.lt is not None else 16)
    return int(least), max(int(least), int(most))


def as_text(value: Any, *, bare_integer_keys: bool) -> str:
    """JSON, or what Java writes in its place: numbers as keys have no quotes then. Queues as keys are always
    objects."""
    if isinstance(value, Pairs):
        entries = (
            f"{_key(key, bare_integer_keys)}:{as_text(content, bare_integer_keys=bare_integer_keys)}"
            for key, content in value.entries
        )
        return "{" + ",".join(entries) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_text(one, bare_integer_keys=bare_integer_keys) for one in value) + "]"
    return json.dumps(value)


def _key(key: Any, bare_integer_keys: bool) -> str:
    if isinstance(key, Pairs) or (isinstance(key, int) and bare_integer_keys):
        return as_text(key, bare_integer_keys=bare_integer_keys)
    return json.dumps(key if isinstance(key, str) else as_text(key, bare_integer_keys=bare_integer_keys))


@functools.cache
def described(kind: type[msgspec.Struct]) -> inspect.StructType:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found
