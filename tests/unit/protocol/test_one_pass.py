"""No decoder of what a stranger sends costs more than one pass over it, however it is made up."""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from metaq.broker.functions.call import CHARACTERS_MAX, parse_anew
from metaq.broker.requests.admin import CONFIG_BYTES_MAX, parse_properties
from metaq.broker.requests.recall import HANDLE_CHARACTERS_MAX, Handle
from metaq.broker.sql92.errors import BadExpression
from metaq.broker.sql92.parser import EXPRESSION_CHARACTERS_MAX
from metaq.broker.sql92.parser import parse as parse_expression
from metaq.broker.state.attributes import ATTRIBUTES_TEXT_MAX, parsed
from metaq.broker.state.offsets import decode_offsets
from metaq.nameserver.large_json import LargeTable
from metaq.nameserver.registration_body import read_topics
from metaq.protocol import trace_entries
from metaq.protocol.bodies import DataVersion, HeartbeatData, RegisterBrokerBody, TopicRouteData
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.handling.bounded_answer import listed_once
from metaq.protocol.java_json import MessageQueue, decode
from metaq.protocol.properties import decode_properties
from tests.support.one_pass import BYTES_MAX, assert_one_pass

REFUSALS = (ProtocolError, Refused, BadExpression, ValueError)


@dataclass(frozen=True)
class Decoder:
    """A decoder and texts to repeat: `before`, then each of the units again and again, then `after`. `%d` in
    a unit becomes a number."""

    name: str
    read: Callable[[bytes], object]
    units: tuple[str, ...]
    before: str = ""
    after: str = ""
    bytes_max: int = BYTES_MAX

    def make(self, unit: str, size: int) -> bytes:
        head, tail = self.before.encode(), self.after.encode()
        count = (size - len(head) - len(tail)) // (len(unit) + 3 * unit.count("%d"))
        if "%d" in unit:
            text = "".join(unit.replace("%d", str(number)) for number in range(count)).encode()
        else:
            text = unit.encode() * count
        return (head + text)[: size - len(tail)] + tail


def body_of(kind: type) -> Callable[[bytes], object]:
    return lambda data: decode(data, kind, tolerant_bytes_max=len(data))


def text_of(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode())


def compressed(data: bytes) -> object:
    command = RegisterBroker("b", "127.0.0.1:1", "c", 0, compressed=True)
    version = DataVersion().encode()
    parts = struct.pack(">i", len(version)) + version + struct.pack(">i", len(data) // 8) + data
    return read_topics(command, 513, zlib.compress(parts, 1), 10**6)


JSON = (
    '"',
    "\\",
    '"\\',
    '{"a":',
    '{"',
    "{{",
    "{}",
    '{{"a":1}:',
    "a ",
    " ",
    '{"a":1',
    "{a ",
    "},",
    "{1:",
    "[",
    "null,",
)
TOPIC = '"t%d":{"topicName":"t","order":false,"perm":6},'
DECODERS = [
    Decoder("a body", body_of(TopicRouteData), JSON, before='{"x":'),
    # A raw control character makes the decoder look for texts, and this one has no end.
    Decoder(
        "a body with a raw control character", body_of(TopicRouteData), ('\\"', *JSON), before='{"a\1":"'
    ),
    Decoder("an unended text in another value", lambda data: LargeTable(data, 1), ('\\"', *JSON), '{"x":["'),
    Decoder(
        "a list", body_of(HeartbeatData), ('{"groupName":"g"},', "null,"), '{"producerDataSet":[', "null]}"
    ),
    Decoder("queues as keys", body_of(dict[MessageQueue, int]), ('{"queueId":%d}:1,',), "{", '"a":null}'),
    Decoder("numbers as keys", body_of(dict[int, int]), ("%d:1,",), "{", "1:null}"),
    Decoder(
        "a registration",
        body_of(RegisterBrokerBody),
        (TOPIC, *JSON[:4]),
        '{"topicConfigSerializeWrapper":{"topicConfigTable":{',
        '"t":null}}}',
    ),
    Decoder(
        "a large registration",
        lambda data: LargeTable(data, 10**6),
        (TOPIC, '"t":{},', *JSON),
        '{"topicConfigSerializeWrapper":{"topicConfigTable":{',
        '"t":{}}}}',
    ),
    Decoder(
        "another value of one",
        lambda data: LargeTable(data, 1),
        ("[", "[],", '"a",', "{1:2},"),
        '{"x":[',
        "]}",
    ),
    Decoder("a compressed registration", compressed, ("\0\0\0\x12t 4 4 6 SINGLE_TAG", "\0\0\0\0", "\xff")),
    Decoder("properties", text_of(decode_properties), ("a\1b\2", "%d\1b\2", "\1", "\2", "a")),
    Decoder(
        "trace entries", trace_entries.decode, ("Pub\1" * 20 + "\2", "\1", "\2", "a", "SubBefore\1null\1")
    ),
    Decoder("offsets", decode_offsets, ("%d:1,", "{", "a", ",1:"), '{"offsetTable":{"t@g":{', "0:1}}}"),
    Decoder("a list of names", text_of(lambda text: listed_once(text, ";")), ("a;", "%d;", ";")),
    Decoder(
        "settings", parse_properties, ("a=b\n", "k%d=v\n", "\n", " ", "=", "#"), bytes_max=CONFIG_BYTES_MAX
    ),
    Decoder("attributes", text_of(parsed), ("+k%d=v,", ",", " ", "+", "="), bytes_max=ATTRIBUTES_TEXT_MAX),
    Decoder("a handle", text_of(Handle.decode), ("a", "_", "IA", "="), bytes_max=HANDLE_CHARACTERS_MAX),
    Decoder(
        "a call",
        text_of(parse_anew),
        ("1,", "'',", "'", " ", "-", "9"),
        "f(",
        "1)",
        CHARACTERS_MAX,
    ),
    Decoder(
        "an expression",
        text_of(parse_expression),
        (" OR a=1", " OR a IN ('b','c')", "-", "(", "'", "/*", "9", " ", "NOT "),
        "a=1",
        bytes_max=EXPRESSION_CHARACTERS_MAX,
    ),
]


def cases() -> Iterator[object]:
    for decoder in DECODERS:
        for unit in decoder.units:
            yield pytest.param(decoder, unit, id=f"{decoder.name}: {unit[:20]!r}")


@pytest.mark.parametrize(("decoder", "unit"), [*cases()])
def test_each_decoder_takes_one_pass(decoder: Decoder, unit: str) -> None:
    def read(data: bytes) -> None:
        with contextlib.suppress(*REFUSALS):
            decoder.read(data)

    assert_one_pass(read, lambda size: decoder.make(unit, size), decoder.bytes_max)


def _in_python(data: bytes) -> int:
    return sum(1 for start in range(0, len(data), 64) for _ in range(0, start, 64))


def _by_copies(data: bytes) -> None:
    while data:
        data = data[64:]


def _by_expression(data: bytes) -> None:
    re.search(rb"(?:aa*)b", data[: len(data) // 64])


@pytest.mark.parametrize("decoder", [_in_python, _by_copies, _by_expression])
def test_a_quadratic_decoder_is_found(decoder: Callable[[bytes], object]) -> None:
    with pytest.raises(AssertionError, match=r"twice the bytes|times the processor time"):
        assert_one_pass(decoder, lambda size: b"a" * size)
