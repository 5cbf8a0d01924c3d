"""The body of a registration, plain and compressed, honest and hostile."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from metaq.nameserver.large_json import VALUE_CHARACTERS_MAX
from metaq.nameserver.registration_body import INFLATED_BYTES_MAX, check_name
from metaq.nameserver.registration_body import read_topics as read
from metaq.protocol import java_json
from metaq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.errors import ProtocolError

TOPICS_MAX = 100_000
VERSION = DataVersion(3, 1, 1700000000000)
TABLE = TopicConfigTable(
    VERSION,
    {
        "A": TopicConfig(topic_name="A", read_queue_nums=4, write_queue_nums=8, perm=6),
        "%RETRY%g": TopicConfig(topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6),
    },
)
PLAIN = RegisterBrokerBody([], TABLE).encode()


def command(*, compressed: bool = False, crc: int = 0) -> RegisterBroker:
    return RegisterBroker("b", "h:1", "c", 0, compressed=compressed, body_crc32=crc)


def read_topics(
    command: RegisterBroker, version: int, body: bytes, topics_max: int = TOPICS_MAX
) -> TopicConfigTable:
    return read(command, version, body, topics_max)


def part(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compress(*topics: bytes, count: int | None = None, tail: bytes | None = None) -> bytes:
    data = part(VERSION.encode()) + struct.pack(">i", len(topics) if count is None else count)
    data += b"".join(part(topic) for topic in topics)
    data += part(b"[]") + struct.pack(">i", 0) if tail is None else tail
    return zlib.compress(data, 9)


def test_plain() -> None:
    assert read_topics(command(), 513, PLAIN) == TABLE


def test_compressed() -> None:
    body = compress(b"A 4 8 6 SINGLE_TAG {}", b"%RETRY%g 1 1 6 SINGLE_TAG")
    assert read_topics(command(compressed=True), 513, body) == TABLE


def test_compressed_without_saying_so() -> None:
    body = compress(b"A 4 8 6 SINGLE_TAG {}", b"%RETRY%g 1 1 6 SINGLE_TAG")
    assert read_topics(command(), 513, body) == TABLE


def test_compressed_before_5_0_and_with_attributes() -> None:
    body = compress(
        b'A 4 8 6 SINGLE_TAG {"+a b":"c d"}', b"%RETRY%g 1 1 6 SINGLE_TAG ", tail=part(b'["f:1"]')
    )
    assert read_topics(command(compressed=True), 409, body) == TABLE


def test_before_3_0_11_the_table_came_alone() -> None:
    assert read_topics(command(), 30, TABLE.encode()) == TABLE


def test_no_body_is_an_empty_table() -> None:
    assert read_topics(command(), 513, b"") == TopicConfigTable()


def test_the_checksum_is_checked_when_there_is_one() -> None:
    crc = zlib.crc32(PLAIN) & 0x7FFFFFFF
    assert read_topics(command(crc=crc), 513, PLAIN) == TABLE
    with pytest.raises(ProtocolError, match="bodyCrc32") as caught:
        read_topics(command(crc=crc ^ 1), 513, PLAIN)
    assert caught.value.code == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"junk", "damaged"),
        (zlib.compress(b""), "ends in the middle"),
        (compress()[:-6], "cut short"),
        (compress(b"A 4"), "a topic that cannot be read"),
        (compress(b"A x 8 6 SINGLE_TAG"), "a topic that cannot be read"),
        (compress(b"A 4 8 1%s SINGLE_TAG" % (b"0" * 30)), r"<= 255 - at `\$\.perm`"),
        (compress(b"A 4 2147483648 6 SINGLE_TAG"), r"<= 2147483647 - at `\$\.writeQueueNums`"),
        (compress(b"\xff 4 8 6 SINGLE_TAG"), "a topic that cannot be read"),
        (compress(count=5, tail=b""), "ends in the middle"),
        (compress(count=-1), "more than 100000"),
        (compress(count=TOPICS_MAX + 1), "more than 100000"),
        (zlib.compress(struct.pack(">i", -5)), "ends in the middle"),
        (zlib.compress(part(b"[1]")), "not a valid DataVersion"),
    ],
)
def test_a_damaged_compressed_body_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        read_topics(command(compressed=True), 513, body)


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(b"\0" * (INFLATED_BYTES_MAX + 1), 9)
    with pytest.raises(ProtocolError, match="larger than"):
        read_topics(command(compressed=True), 513, bomb)


def test_a_plain_body_with_too_many_objects_is_not_decoded() -> None:
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + b'"a":{},' * (4 * TOPICS_MAX) + b"}}}"
    with pytest.raises(ProtocolError, match="more than 100000 topics"):
        read_topics(command(), 513, body)


def test_a_plain_body_with_too_many_topics() -> None:
    with pytest.raises(ProtocolError, match="more than 1 topics"):
        read_topics(command(), 513, PLAIN, topics_max=1)


def test_a_large_body_may_have_numbers_as_keys_where_apaches_brokers_write_them() -> None:
    mapping = b'{"t":{"hostedQueues":{0:[{"bname":"}"}],1:[]}}}'
    plain = large(5_000, mapping=1)
    expected = read_topics(command(), 513, plain)
    assert len(expected.topic_config_table) == 5_000
    assert read_topics(command(), 513, plain.replace(b'"mapping": 1', b'"mapping": ' + mapping)) == expected


def large(topics: int, **more: object) -> bytes:
    table = {
        f"topic-{number}": TopicConfig(topic_name=f"topic-{number}", attributes={"+a": "{"})
        for number in range(topics)
    }
    body = msgspec.json.decode(RegisterBrokerBody(["f:1"], TopicConfigTable(VERSION, table)).encode())
    return json.dumps({**more, **body}, indent=1).encode()


def test_a_large_body_is_read_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    body = large(5_000, unknown=[{"a": 1}, '"}', None])
    assert len(body) > 2 * VALUE_CHARACTERS_MAX
    expected = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper
    pieces: list[int] = []

    def decode(data: bytes, kind: Any, **limits: int) -> Any:
        pieces.append(len(data))
        return msgspec.json.decode(data, type=kind)

    monkeypatch.setattr(java_json, "decode", decode)
    assert read_topics(command(), 513, body) == expected
    assert (
        read_topics(command(), 30, TopicConfigTable(VERSION, expected.topic_config_table).encode())
        == expected
    )
    assert max(pieces) < 1_000, "no call keeps other threads waiting"


@pytest.mark.parametrize(
    "body",
    [
        b"x" * 200_000,
        b"\xff" * 200_000,
        b"{" * 200_000,
        large(5_000)[:-50],
        large(5_000, unknown=["x" * VALUE_CHARACTERS_MAX]),
        large(5_000).replace(b'"topic-7":', b"7:"),
        large(5_000).replace(b'"topicName": "topic-7"', b'"topicName": "' + b"x" * 20_000 + b'"'),
        b"{" + b'"a":1,' * 50_000 + b'"b":1}',
        b'{"topicConfigTable":{"a":' + b"[" * 200_000,
        b" " * 200_000 + b'{"topicConfigTable":',
        b" " * 200_000 + b'{"topicConfigSerializeWrapper": ',
    ],
)
def test_a_damaged_large_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_topics(command(), 513, body)


def test_one_odd_topic_does_not_keep_the_others_out() -> None:
    table = TopicConfigTable(
        VERSION,
        TABLE.topic_config_table
        | {
            "with blank": TopicConfig(),
            "": TopicConfig(),
            "x" * 256: TopicConfig(),
            'quo"te': TopicConfig(),
            "huge": TopicConfig(read_queue_nums=2**31 - 1),
            "less": TopicConfig(write_queue_nums=-1),
        },
    )
    assert read_topics(command(), 513, RegisterBrokerBody([], table).encode()) == TABLE


def test_a_topic_that_no_answer_could_name_is_left_out() -> None:
    body = large(5_000).replace(b'"topic-7":', b'"topic-7\\ud800":')
    found = read_topics(command(), 513, body).topic_config_table
    assert len(found) == 4_999
    msgspec.json.encode(list(found))


@pytest.mark.parametrize("name", ["broker-a", "host.example.com", "%RETRY%g+t", "ü", "x" * 255])
def test_names(name: str) -> None:
    assert check_name("brokerName", name) == name


@pytest.mark.parametrize("name", ["", " ", "a b", 'a"b', "a\\b", "a\nb", "a\x00", "a\ud800", "x" * 256])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ProtocolError, match="brokerName"):
        check_name("brokerName", name)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_any_body_is_read_or_refused(data: bytes, compressed: bool, whole: bool) -> None:
    body = zlib.compress(data) if whole and compressed else data
    try:
        read_topics(command(compressed=compressed), 513, body)
    except ProtocolError as error:
        assert len(error.remark) < 400
