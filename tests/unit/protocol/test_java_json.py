"""JSON with objects and bare numbers as keys."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from metaq.protocol import java_json
from metaq.protocol.bodies import Body, always
from metaq.protocol.errors import ProtocolError
from metaq.protocol.java_json import DEPTH_MAX, MessageQueue, decode, encode, standard

names = st.text(max_size=12)
queues = st.builds(MessageQueue, names, st.integers(-1, 2**31 - 1), names)
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | names
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


class Table(Body):
    queue_table: dict[MessageQueue, int] = always(factory=lambda: {})
    level_table: dict[int, str] = always(factory=lambda: {})
    note: str | None = None
    items: list[int] = always(factory=lambda: [])


def test_a_queue_as_key() -> None:
    text = encode({"offsetTable": {MessageQueue("b", 3, "T"): 42}})
    assert text == b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:42}}'


def test_numbers_as_keys() -> None:
    assert encode({0: "a", -1: "b"}) == b'{"0":"a","-1":"b"}'
    assert encode({0: "a", -1: "b"}, bare_integer_keys=True) == b'{0:"a",-1:"b"}'
    assert decode(b"{ 0 : 5 , 1:6 }", dict[int, int]) == {0: 5, 1: 6}


def test_what_is_empty() -> None:
    empties: list[Any] = [{}, [], ""]
    for value in empties:
        assert encode(value) == encode(value, bare_integer_keys=True) == json.dumps(value).encode()
    queue = b'{"brokerName":"","queueId":0,"topic":""}'
    table = b'{"queueTable":{' + queue + b':1},"levelTable":{},"items":[]}'
    assert encode(Table({MessageQueue(): 1})) == table


def test_nulls_and_unknown_fields_are_forgiven() -> None:
    body = b'{"queueTable":null,"levelTable":{1:"x",2:null},"items":[1,null,"2"],"other":{{}:[]},"note":null}'
    assert decode(body, Table) == Table({}, {1: "x"}, None, [1, 2])


def test_control_characters_in_a_string() -> None:
    assert decode(b'{"note":"a\x01b\nc","items":null}', Table).note == "a\x01b\nc"


def test_escapes_do_not_end_a_string() -> None:
    key = MessageQueue('a"}', 1, "\\{:,")
    assert decode(encode({key: 1}), dict[MessageQueue, int]) == {key: 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"}",
        b'{"a"',
        b'{"note":"never ends',
        b'{"note":"never ends\\"}',
        b'{"note":1,}',
        b'{"items":5}',
        b'{"queueTable":{{"queueId":"x"}:1}}',
        b'{"queueTable":{{{"a":1}:2}:1}}',
        b'{"queueTable":{[1]:1}}',
        b'{"queueTable":{{"queueId":1:1}}',
        b'{"note":"\xff"}',
        b"\x00\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{" * 100_000,
        b"]" * 1000,
        b"[{]}",
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(body, Table)
    assert len(caught.value.remark) < 300


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        return b'{"items":null,"x":' + b"[" * depth + b"]" * depth + b"}"

    assert decode(nested(DEPTH_MAX - 2), dict[str, Any])
    for depth in (DEPTH_MAX, 10_000):
        with pytest.raises(ProtocolError, match="nested"):
            decode(b"{1:{}," + nested(depth)[1:], dict[str, list[Any]])


def test_a_long_body_in_javas_dialect_is_refused_unread() -> None:
    body = b'{"x":{' + b"1:1," * 70_000 + b"1:1}}"
    with pytest.raises(ProtocolError, match=r"280\d\d\d bytes.*the limit for such a body is 262144"):
        decode(body, Table)
    assert decode(body, Table, tolerant_bytes_max=len(body)) == Table()


@pytest.mark.parametrize(
    "body", [b'{"items":[1.5],"x":{1:1}}', b'{"items":["x"]}', b'{"items":[1]', b'{"items":[1]}]', b"[1:1]"]
)
def test_an_error_that_the_dialect_does_not_explain_is_final(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(java_json, "standard", lambda data: pytest.fail("the tolerant reader was asked"))
    with pytest.raises(ProtocolError):
        decode(body, Table)


@given(plain)
def test_standard_json_stays_what_it_is(value: Any) -> None:
    assert json.loads(standard(json.dumps(value).encode())) == value
    assert json.loads(encode(value)) == value
    assert encode(value, bare_integer_keys=True) == encode(value)


@given(st.dictionaries(names, st.integers()))
def test_no_key_is_taken_for_a_queue(table: dict[str, int]) -> None:
    assert decode(b'{"x":{1:2},"table":' + encode(table) + b"}", dict[str, dict[str, int]])["table"] == table


@given(st.dictionaries(queues, st.dictionaries(queues, plain, max_size=3), max_size=4))
def test_queues_as_keys_survive(table: dict[MessageQueue, dict[MessageQueue, Any]]) -> None:
    read = decode(encode(table), dict[MessageQueue, dict[MessageQueue, Any]])
    assert read.keys() == table.keys()
    assert all(read[queue].keys() <= inner.keys() for queue, inner in table.items())


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), names), st.booleans())
def test_numbers_as_keys_survive(table: dict[int, str], bare: bool) -> None:
    assert decode(encode(table, bare_integer_keys=bare), dict[int, str]) == table


@given(st.dictionaries(queues, st.integers()), st.dictionaries(st.integers(), names), st.none() | names)
def test_a_whole_table_survives(
    by_queue: dict[MessageQueue, int], by_number: dict[int, str], note: str
) -> None:
    table = Table(by_queue, by_number, note, [1])
    assert decode(encode(table, bare_integer_keys=True), Table) == table


@given(st.binary(max_size=200) | st.text(alphabet='{}[]:,"\\ a1\x00', max_size=200).map(str.encode))
def test_anything_else_is_refused_and_never_crashes(data: bytes) -> None:
    for kind in (Table, dict[MessageQueue, int], list[int]):
        with contextlib.suppress(ProtocolError):
            decode(data, kind)
