"""Decodes query events: statements in the binlog, with the settings of the session that they depend on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from pymysql.charset import charset_by_id

from metaq.pipelines.binlog_sync.reading.binlog_items import Query
from metaq.pipelines.binlog_sync.reading.sql_tokens import dialect_of
from metaq.pipelines.binlog_sync.values.charsets import decoder_of

_LENGTHS: Final = struct.Struct("<BHH")
_SQL_MODE, _CHARSET = 1, 4
_FIXED: Final = {0: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 7: 2, 8: 2, 9: 8, 10: 4}
"""The sizes of the variables that may come before the character set, by their code."""
_CATALOG, _TIME_ZONE, _CATALOG_WITHOUT_NUL = 2, 5, 6
_UTF8: Final = 33
"""A collation of UTF-8, for events that do not tell theirs."""
_HIDES_ASCII: Final = frozenset(("big5", "gbk", "gb18030", "sjis", "cp932"))
_UTF8_SINCE_8: Final = 255
"""From this collation on, new ones of both servers are of UTF-8, unless they are known."""


def query_of(data: bytes, at: int, end: int, *, is_mariadb: bool) -> Query:
    """Decodes the body of a query event; raises struct.error, IndexError, UnicodeDecodeError.

    | thread: u32 | seconds: u32 | length of the database: u8 | error: u16 | length of variables: u16
    | variables | database | 0 | query |
    """
    database_bytes, _, variables_bytes = _LENGTHS.unpack_from(data, at + 8)
    begin = at + 13
    database_begin = begin + variables_bytes
    query_begin = database_begin + database_bytes + 1
    if query_begin > end:
        raise IndexError("a query event ends too early")
    sql_mode, collation = _variables(data[begin:database_begin])
    dialect = dialect_of(sql_mode, is_mariadb=is_mariadb)
    text, sure = _decoded(data[query_begin:end], collation)
    if sure is not _Sure.EVERYTHING:
        dialect = replace(dialect, is_decoded=sure is _Sure.BUT_NAMES, has_sure_names=False)
    return Query(data[database_begin : query_begin - 1].decode("utf-8", "replace"), text, dialect)


def _variables(data: bytes) -> tuple[int | None, int]:
    """Returns the sql_mode, or None, and the collation that the session's statements have.

    Each variable is a code and a value, whose size depends on the code. Both come before the variables that
    are not known here.
    """
    sql_mode: int | None = None
    collation = _UTF8
    at = 0
    while at < len(data):
        code = data[at]
        at += 1
        if code == _SQL_MODE:
            sql_mode = int.from_bytes(data[at : at + 8], "little")
        elif code == _CHARSET:
            collation = int.from_bytes(data[at : at + 2], "little")
        if code in _FIXED:
            at += _FIXED[code]
        elif code in (_TIME_ZONE, _CATALOG_WITHOUT_NUL) and at < len(data):
            at += 1 + data[at]
        elif code == _CATALOG and at < len(data):
            at += 2 + data[at]
        else:
            break
    return sql_mode, collation


class _Sure(Enum):
    """How much of a decoded text is certain."""

    NOTHING = 0
    BUT_NAMES = 1
    EVERYTHING = 2


def _decoded(raw: bytes, collation: int) -> tuple[str, _Sure]:
    """Returns the text of a statement, and how much of it is certain.

    Servers write statements that they generate in UTF-8, whatever the session has. If a text may be either,
    its names are not certain.
    """
    if raw.isascii():
        return raw.decode("ascii"), _Sure.EVERYTHING
    charset, decode = _charset(collation)
    texts = []
    for one in (decode, bytes.decode):
        try:
            if one is not None:
                texts.append(one(raw))
        except UnicodeDecodeError:
            continue
    if decode is None or not texts:
        return raw.decode("utf-8", "replace"), _Sure.NOTHING
    if len(set(texts)) == 1:
        return texts[0], _Sure.EVERYTHING
    # In some character sets, a quote or a backslash may be the second byte of a character.
    return texts[0], _Sure.NOTHING if charset in _HIDES_ASCII else _Sure.BUT_NAMES


def _charset(collation: int) -> tuple[str, Callable[[bytes], str] | None]:
    """Returns the name and the decoder of a collation's character set; None if there is no decoder."""
    try:
        name = charset_by_id(collation).name
    except KeyError:
        return ("utf8mb4", bytes.decode) if collation >= _UTF8_SINCE_8 else ("", None)
    return name, decoder_of(name)
