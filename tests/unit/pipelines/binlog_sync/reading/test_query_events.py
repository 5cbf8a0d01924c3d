"""Query events, with the settings of the session in their status variables."""

from __future__ import annotations

import struct

import pytest

from metaq.pipelines.binlog_sync.reading.ddl import Kind, parse
from metaq.pipelines.binlog_sync.reading.query_events import query_of

LATIN1, GBK, UTF8MB4, UCS2_UNKNOWN, NEW_UTF8 = 8, 28, 45, 250, 2304
NO_BACKSLASH_ESCAPES = 1 << 20


def body(
    text: bytes, *, sql_mode: int | None = 0, collation: int = UTF8MB4, database: bytes = b"shop"
) -> bytes:
    variables = b"\0" + struct.pack("<I", 0)
    if sql_mode is not None:
        variables += b"\1" + struct.pack("<Q", sql_mode)
    variables += b"\6\3std" + b"\3" + struct.pack("<HH", 1, 1)
    variables += b"\4" + struct.pack("<HHH", collation, collation, 45)
    # A time zone, and a variable that nobody knows.
    variables += b"\5\6SYSTEM" + b"\xc8what"
    head = struct.pack("<IIBHH", 1, 0, len(database), 0, len(variables))
    return head + variables + database + b"\0" + text


def test_the_mode_of_the_session() -> None:
    text = rb"ALTER TABLE t COMMENT 'C:\', ADD COLUMN c INT DEFAULT 4 -- '"
    data = body(text, sql_mode=NO_BACKSLASH_ESCAPES)
    query = query_of(data, 0, len(data), is_mariadb=True)
    assert (query.database, query.text) == ("shop", text.decode())
    found = parse(query.text, query.database, query.dialect)
    assert found.kind is Kind.TABLE and found.effects.changes_rows
    data = body(text)
    query = query_of(data, 0, len(data), is_mariadb=True)
    # With escapes, the text ends with the last quote.
    assert not parse(query.text, query.database, query.dialect).effects.changes_rows


def test_a_mode_that_is_not_told_is_unknown() -> None:
    data = body(b'TRUNCATE "t"', sql_mode=None)
    query = query_of(data, 0, len(data), is_mariadb=True)
    assert not query.dialect.is_mode_known
    assert parse(query.text, "shop", query.dialect).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    ("text", "collation", "tables"),
    [
        ("TRUNCATE `größe`".encode("cp1252"), LATIN1, (("shop", "größe"),)),
        ("TRUNCATE `größe`".encode(), UTF8MB4, (("shop", "größe"),)),
        ("TRUNCATE `größe`".encode(), NEW_UTF8, (("shop", "größe"),)),
        # The second byte of the character is a backslash.
        ("TRUNCATE t /* \u8a98 */".encode("gbk"), GBK, (("shop", "t"),)),
        ("TRUNCATE `\u8a98`".encode("gbk"), GBK, (("shop", "\u8a98"),)),
        # The name may be either of two.
        ("TRUNCATE `größe`".encode(), LATIN1, None),
        ("TRUNCATE t -- größe".encode(), LATIN1, (("shop", "t"),)),
        ("TRUNCATE `größe`".encode(), UCS2_UNKNOWN, None),
        (b"TRUNCATE t", UCS2_UNKNOWN, (("shop", "t"),)),
    ],
)
def test_the_character_set_of_the_session(
    text: bytes, collation: int, tables: tuple[tuple[str, str], ...] | None
) -> None:
    data = body(text, collation=collation)
    query = query_of(data, 0, len(data), is_mariadb=True)
    found = parse(query.text, "shop", query.dialect)
    if tables is None:
        assert found.kind is Kind.UNKNOWN and not found.is_confined
    else:
        assert (found.kind, found.tables) == (Kind.TRUNCATE, tables)


@pytest.mark.parametrize("cut", [5, 12, 13, 20, 40])
def test_an_event_that_ends_too_early(cut: int) -> None:
    data = body(b"TRUNCATE t")[:cut]
    with pytest.raises((IndexError, struct.error)):
        query_of(data, 0, len(data), is_mariadb=True)
