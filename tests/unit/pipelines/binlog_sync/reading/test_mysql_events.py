"""Encodings of MySQL, recorded from a real server, and its binary JSON."""

from __future__ import annotations

import contextlib
import struct

import hypothesis.strategies as st
import pytest
from hypothesis import given

from metaq.pipelines.binlog_sync.reading import mysql_events as mysql
from metaq.pipelines.binlog_sync.reading.gtids import MysqlGtids
from metaq.pipelines.binlog_sync.values.json_binary import text_of_binary, text_of_text
from metaq.pipelines.binlog_sync.values.value_readers import _decimal_of

SERVER = "34d5a371-e1bb-11f1-ae18-02fc00000001"
PLAIN = bytes.fromhex(
    "0034d5a371e1bb11f1ae1802fc0000000103000000000000000202000000000000000300000000000000"
    "554e0f2e646006fc2701506201009311eb8c"
)
TAGGED = bytes.fromhex(
    "0272000000026855038d02e28503ed0222c503b9023004f1030000000204040608626c7565080c0a100c"
    "7fdf500f2e6460061001051283120b69a41e08"
)
BEGIN = bytes.fromhex(
    "09000000000000000000001d000000000000012000a04500000000060373746404ff00ff00ff0012ff0000424547494eb38dd470"
)


def test_gtids() -> None:
    assert mysql.gtid_of(PLAIN, 0) == f"{SERVER}:3"
    assert mysql.tagged_gtid_of(TAGGED, 0) == f"{SERVER}:blue:1"
    assert mysql.tagged_gtid_of(b"xx" + TAGGED, 2) == f"{SERVER}:blue:1"


@pytest.mark.parametrize("length", range(36))
def test_a_tagged_gtid_that_ends_early_is_refused(length: int) -> None:
    with pytest.raises((ValueError, IndexError)):
        mysql.tagged_gtid_of(TAGGED[:length], 0)


@given(st.integers(0, 2**64 - 1))
def test_numbers_of_variable_length(number: int) -> None:
    extra = next((extra for extra in range(8) if number < 1 << 7 * (extra + 1)), 8)
    mark = (1 << extra) - 1 if extra < 8 else 0xFF
    written = (number << min(extra + 1, 8) | mark).to_bytes(extra + 1, "little")
    assert mysql._variable(b"." + written + b".", 1) == (number, 1 + len(written))


def test_the_begin_of_a_transaction() -> None:
    assert mysql.is_begin(BEGIN, 0, len(BEGIN) - 4)
    assert not mysql.is_begin(BEGIN.replace(b"BEGIN", b"BEGIX"), 0, len(BEGIN) - 4)
    assert not mysql.is_begin(BEGIN, 0, len(BEGIN))


def test_the_dump_command() -> None:
    asked = mysql.dump_command(7, MysqlGtids(f"{SERVER}:1-5"))
    assert int.from_bytes(asked[:4], "little") == len(asked) - 4
    assert asked[4] == mysql.DUMP_BY_GTID
    assert asked.endswith(MysqlGtids(f"{SERVER}:1-5").encode())


@given(st.binary(max_size=80))
def test_invalid_json_is_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError, LookupError, struct.error):
        text_of_binary(bytes((len(data) % 16,)) + data, _decimal_of)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"b": 1.10, "a": [1.0, 1e3, -0.0]}', '{"a":[1.0,1000.0,-0.0],"b":1.1}'),
        ("1234567890123456789.5", "1234567890123456789.5"),
        ("0.1", "0.1"),
        ("100000000000000000000000", "100000000000000000000000"),
        ('"\\u00fc\\n"', '"ü\\n"'),
    ],
)
def test_numbers_have_one_form(text: str, expected: str) -> None:
    assert text_of_text(text) == expected
    assert text_of_text(expected) == expected


def test_a_document_that_contains_itself_is_refused() -> None:
    # The only value of the array has the offset of the array itself.
    data = bytes((2,)) + (1).to_bytes(2, "little") + (7).to_bytes(2, "little") + bytes((2, 0, 0))
    with pytest.raises(ValueError, match="more values"):
        text_of_binary(data, _decimal_of)
