"""Makes requests of every command, in both encodings of headers, from the types of their fields.

The same seed makes the same requests. All commands come in turn, so none is left out of a run of a few
seconds.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import inspect

from metaq.protocol.bodies import RegisterBrokerBody
from metaq.protocol.command import Command
from metaq.protocol.commands.options import OptionChanges
from metaq.protocol.commands.replication import DrainBroker
from tests.support.hostile.catalogue import BATCH, RECORD, TEXT, UNKNOWN_CODES, Known, catalogue
from tests.support.hostile.values import (
    ENTRIES_REPEATED,
    ODD_PARTS,
    ODD_TEXTS,
    Pairs,
    Values,
    as_text,
    described,
    leaves,
)

VERSIONS = (0, 1, 401, 481, 493, 513, 2**15 - 1, -1)
FLAGS = (0, 0, 0, 0, 0, 0, 2, 2, 4, 0x7FFFFFFF & ~1)
"""0 is a request, 2 a oneway request. A server ignores bits that it does not know."""
ANSWER, ANSWER_ONEWAY = 1, 3
ANSWERS_PART = 0.05
FIELDS_MANY = 300
OPAQUE_MAX = 300
"""Numbers that a broker gives to its own first requests: an answer with one of these may be taken."""
CHANGED_ONLY_BADLY: Final = ("brokerPermission", "permission", "disk_refuse_percent", "log_level")
"""An administrator may take away the right to write, and hide tracebacks: these get only bad values."""
DRAINED_ONLY_BADLY: Final = ("x", "1" * 5_000, 2**70, -(2**70), "1e400", "NaN", "\x00", "٣", "1.5s")
"""An administrator may drain a broker, which then stops: only orders without a valid time are sent."""
CONFIGURED: Final = (
    *("autoCreateSubscriptionGroup", "autoCreateTopicEnable", "useServerSideResetOffset", "slow_request_ms"),
    *("storeReplyMessageEnable", "orderMessageEnable", "supportActingMaster", "brokerPermission"),
    *("log_level", "unknown", "listenPort", ""),
    *("permission", "auto_create_group", "file_reserved_hours", "delete_when", "delete_unconsumed"),
    *("disk_refuse_percent", "fileReservedTime", "data"),
)
_MIB = 1024 * 1024
BODY_BYTES_MAX = 2 * _MIB
"""Longer bodies are cut."""


@dataclass
class Generator:
    """Requests to one server. It gets all commands; those of its own role come more often."""

    to: str
    seed: int
    others: Sequence[str] = ()
    """Topics and groups of the healthy client. Only requests that change nothing name them."""
    counts: Counter[int] = field(default_factory=Counter)
    """Requests by code."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._values = Values(self._chance)
        self._known = catalogue()
        self._turn: list[Known | int] = []

    def next(self) -> tuple[bytes, bool]:
        """Returns a frame, and whether the server can understand other frames behind it."""
        if self._chance.random() < ANSWERS_PART:
            return self._answer(), True
        if not self._turn:
            own = [known for known in self._known if known.command.to == self.to]
            self._turn = [*self._known, *own, *own, *UNKNOWN_CODES]
            self._chance.shuffle(self._turn)
        known = self._turn.pop()
        if isinstance(known, int):
            self.counts[known] += 1
            return self._frame(known, self._extra(3), self._noise()), True
        self.counts[known.command.code] += 1
        self._values.others = self.others if known.command.permission == "describe" else ()
        fields = self._fields(known.command)
        # A server may close the connection after a header that is nested.
        goes_on = not any(isinstance(value, Pairs | list) for _, value in fields)
        return self._frame(known.command.code, fields, self._body(known)), goes_on

    def _fields(self, command: type[Command]) -> list[tuple[str, Any]]:
        """The header of a request: often one field is odd, sometimes several, and sometimes none."""
        chance = self._chance
        if command is DrainBroker:
            return [("waitS", chance.choice(DRAINED_ONLY_BADLY))]
        described_fields = described(command).fields
        odd = {chance.choice(described_fields).name} if described_fields and chance.random() < 0.6 else set()
        if chance.random() < 0.15:
            odd = {one.name for one in described_fields if chance.random() < 0.4}
        pairs = []
        for one in described_fields:
            value = (self._values.odd if one.name in odd else self._values.valid)(one.type, one.name)
            if value is not None:
                # Both encodings carry text; in JSON some clients write numbers as they are.
                pairs.append((one.encode_name, value if chance.random() < 0.1 else field_text(value)))
        what = chance.randrange(12)
        if pairs and what == 0:
            del pairs[chance.randrange(len(pairs))]
        elif pairs and what == 1:
            name, value = chance.choice(pairs)
            pairs.append((name, chance.choice([value, "", -1, 2**70])))
        elif what == 2:
            pairs += self._extra(chance.choice([1, 255, 256, 257, FIELDS_MANY]))
        return pairs

    def _extra(self, count: int) -> list[tuple[str, Any]]:
        return [(f"unknown{number}", self._chance.choice(ODD_TEXTS[:30])) for number in range(count)]

    def _body(self, known: Known) -> bytes:
        kind = known.body
        if kind is None or self._chance.random() < 0.05:
            return self._noise()
        if kind == TEXT:
            return self._properties()
        if kind == RECORD:
            return self._chance.choice([b"", b"body", b"x" * 4_096, b"\x00" * 200_000])
        if kind == BATCH:
            return self._batch()
        assert isinstance(kind, type)
        if kind is RegisterBrokerBody and self._chance.random() < 0.4:
            return self._compressed()
        if kind is OptionChanges and self._chance.random() < 0.7:
            return self._changes()
        return self._json(described(kind))

    def _json(self, kind: inspect.StructType) -> bytes:
        chance = self._chance
        is_valid = chance.random() < 0.2
        self._values.odd_part = chance.choice(ODD_PARTS)
        self._values.repeats_left = 1
        self._values.focus = chance.choice(leaves(kind)) if chance.random() < 0.6 else ""
        value = (self._values.valid if is_valid else self._values.odd)(kind, "")
        if isinstance(value, Pairs) and chance.random() < 0.03:
            value.entries.append(("z", [0] * 60_000))
        text = as_text(value, bare_integer_keys=chance.random() < 0.3)
        if chance.random() < 0.03:
            text = text[: chance.randrange(len(text) + 1)]
        return text.encode("utf-8", "surrogatepass")[:BODY_BYTES_MAX]

    def _properties(self) -> bytes:
        lines = [f"{key}={value}" for key, value in self._settings()]
        end = self._chance.choice([b"", b"\n", b"\xff\xfe"])
        return "\n".join(lines).encode("utf-8", "surrogatepass") + end

    def _settings(self) -> list[tuple[str, str]]:
        chance = self._chance
        pairs = []
        # One that is refused keeps all others from being made.
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            key = chance.choice(CONFIGURED)
            bad = [text for text in ODD_TEXTS if not text.strip().lstrip("+-").isdecimal()]
            bad += ["1" * 5_000, str(2**70)]
            values = bad if key in CHANGED_ONLY_BADLY else [*ODD_TEXTS, "true", "false", "1000", str(2**31)]
            pairs.append((key, chance.choice(values)))
        return pairs

    def _changes(self) -> bytes:
        """Changes of options, which the broker may keep for its next start."""
        chance = self._chance
        changes: list[tuple[str, Any]] = [("persist", chance.choice([True, True, False]))]
        if chance.random() < 0.7:
            changes.append(("values", Pairs(list(self._settings()))))
        if chance.random() < 0.5:
            names = [chance.choice(CONFIGURED) for _ in range(chance.randrange(4))]
            changes.append(("forget", names * chance.choice([1, 1, ENTRIES_REPEATED, 10_000])))
        return as_text(Pairs(changes), bare_integer_keys=False).encode("utf-8", "surrogatepass")

    def _batch(self) -> bytes:
        """totalSize 4 | magic 4 | crc 4 | flag 4 | bodyLength 4, body | propertiesLength 2, properties"""
        chance = self._chance
        records = b""
        for _ in range(chance.choice([0, 1, 3, 100])):
            body, properties = b"x" * chance.choice([0, 10]), b"k\x01v\x02" * chance.choice([0, 1])
            size = 22 + len(body) + len(properties)
            size = chance.choice([size] * 20 + [0, 1, 2**31 - 1, 2**32 - 1])
            records += struct.pack(">IIIII", size, 0, 0, 0, len(body)) + body
            records += struct.pack(">H", len(properties)) + properties
        return records[: chance.choice([len(records)] * 5 + [len(records) // 2])]

    def _compressed(self) -> bytes:
        """A registration as brokers compress it: lengths and parts. Some unpack to much more."""
        chance = self._chance
        version = as_text(self._values.odd(_VERSION, ""), bare_integer_keys=False).encode()
        numbers = [str(chance.choice([4, -1, 2**31, 2**70, "x", "1" * 5_000])) for _ in range(3)]
        topic = " ".join([chance.choice(["generated-a", "a/b", "\x00"]), *numbers, "SINGLE_TAG"]).encode()
        data = struct.pack(">I", len(version)) + version
        data += struct.pack(">i", chance.choice([1, 1, 0, -1, 2, 2**31 - 1]))
        data += struct.pack(">i", chance.choice([len(topic), len(topic), -1, 2**31 - 1])) + topic
        if chance.random() < 0.1:
            data += bytes(4 * _MIB)
        packed = zlib.compress(data, 1)
        return packed[: chance.choice([len(packed)] * 4 + [len(packed) // 2])]

    def _noise(self) -> bytes:
        chance = self._chance
        deep = b"[" * chance.choice([64, 65, 5_000])
        return chance.choice([b"", b"", b"", b"{}", b"null", b"0", b"\xff" * 9, b"{1:1,2:{}}", deep])

    def _answer(self) -> bytes:
        """An answer that nobody may have asked for, with the body that a client sends."""
        chance = self._chance
        answers = [known.answer for known in self._known if known.answer is not None]
        kind = described(chance.choice(answers))
        body = self._json(kind) if chance.random() < 0.8 else self._noise()
        return self._frame(
            chance.choice([0, 0, 1, 206, 2**31 - 1, -1]),
            self._extra(chance.randrange(3)),
            body,
            flag=chance.choice([ANSWER, ANSWER, ANSWER_ONEWAY]),
            opaque=chance.randrange(OPAQUE_MAX),
        )

    def _frame(
        self,
        code: int,
        fields: list[tuple[str, Any]],
        body: bytes,
        *,
        flag: int | None = None,
        opaque: int | None = None,
    ) -> bytes:
        chance = self._chance
        flag = chance.choice(FLAGS) if flag is None else flag
        opaque = chance.choice([0, 1, 2**31 - 1, -1, -(2**31)]) if opaque is None else opaque
        version = chance.choice(VERSIONS)
        if chance.random() < 0.5 and -(2**15) <= code < 2**15:
            return binary_frame(code, version, opaque, flag, fields, body)
        return json_frame(code, version, opaque, flag, fields, body)


def json_frame(
    code: int, version: int, opaque: int, flag: int, fields: list[tuple[str, Any]], body: bytes
) -> bytes:
    """A name may come twice. Some clients write numbers without quotes, so values keep their type."""
    entries = Pairs([(name, value) for name, value in fields])
    numbers = {"code": code, "language": "JAVA", "version": version, "opaque": opaque, "flag": flag}
    extra = as_text(entries, bare_integer_keys=False)
    header = (json.dumps(numbers)[:-1] + f', "extFields": {extra}}}').encode("utf-8", "surrogatepass")
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(
    code: int, version: int, opaque: int, flag: int, fields: list[tuple[str, Any]], body: bytes
) -> bytes:
    """RocketMQ's own encoding of the header: lengths of 2 and 4 bytes before names and values."""
    data = bytearray()
    for name, value in fields:
        text = field_text(value).encode("utf-8", "surrogatepass")
        data += struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(text)) + text
    header = struct.pack(">hBhiiii", code, 0, version, opaque, flag, 0, len(data)) + data
    return struct.pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def field_text(value: Any) -> str:
    """A value of a header as text; both encodings carry only text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else as_text(value, bare_integer_keys=False)


_VERSION = described(RegisterBrokerBody).fields[1].type
