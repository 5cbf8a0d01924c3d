"""The parts of an ALTER TABLE, and what they do to rows that the binlog has no row events for.

Parts that keep rows are on lists. Every other part counts as one that changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metaq.pipelines.binlog_sync.reading.sql_tokens import Shape, Token, groups_as_one
from metaq.pipelines.binlog_sync.reading.statement_words import Misfit, Name, Words, is_word, keywords

_OPTIONS: Final = keywords(
    "COMMENT AUTO_INCREMENT ENGINE ROW_FORMAT FORCE ALGORITHM LOCK KEY_BLOCK_SIZE MAX_ROWS "
    "MIN_ROWS AVG_ROW_LENGTH ENCRYPTED ENCRYPTION ENCRYPTION_KEY_ID COMPRESSION CHARSET COLLATE"
)
_OPTION_PREFIXES: Final = ("STATS_", "PAGE_")
_KEEPING: Final = (
    ("CHARACTER", "SET"),
    ("DEFAULT", "CHARACTER", "SET"),
    ("DEFAULT", "CHARSET"),
    ("DEFAULT", "COLLATE"),
)
_ACTIONS: Final = keywords(
    "ADD DROP MODIFY CHANGE RENAME CONVERT ALTER TRUNCATE EXCHANGE IMPORT DISCARD ORDER"
)
"""Words that begin a part. After an option they would be a grammar that is not known here."""
_KEEPING_AFTER: Final = {
    "ADD": keywords("UNIQUE INDEX KEY FULLTEXT SPATIAL CONSTRAINT FOREIGN CHECK PARTITION"),
    "DROP": keywords("INDEX KEY CONSTRAINT FOREIGN CHECK"),
    "RENAME": frozenset(("INDEX", "KEY")),
    "ALTER": keywords("INDEX KEY CONSTRAINT CHECK"),
    "ENABLE": frozenset(("KEYS",)),
    "DISABLE": frozenset(("KEYS",)),
    "REMOVE": frozenset(("PARTITIONING",)),
    **dict.fromkeys(
        ("REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK"), frozenset(("PARTITION",))
    ),
}
_TYPES: Final = keywords(
    "TINYINT SMALLINT MEDIUMINT INT INTEGER BIGINT BOOL BOOLEAN DECIMAL DEC NUMERIC FIXED FLOAT "
    "DOUBLE REAL BIT DATE TIME DATETIME TIMESTAMP YEAR CHAR CHARACTER VARCHAR NCHAR NVARCHAR "
    "BINARY VARBINARY TINYBLOB BLOB MEDIUMBLOB LONGBLOB TINYTEXT TEXT MEDIUMTEXT LONGTEXT ENUM "
    "SET JSON UUID INET4 INET6 GEOMETRY POINT LINESTRING POLYGON MULTIPOINT MULTILINESTRING "
    "MULTIPOLYGON GEOMETRYCOLLECTION"
)
_FLAGS: Final = keywords(
    "UNSIGNED SIGNED ZEROFILL NULL FIRST INVISIBLE VISIBLE BINARY ASCII UNICODE PRECISION VARYING CHECK"
)
"""Attributes of a column that leave it NULL in existing rows."""
_WITH_VALUE: Final = keywords("COLLATE CHARSET COMMENT AFTER SRID STORAGE COLUMN_FORMAT")


@dataclass(frozen=True, slots=True)
class RowEffects:
    """The effects of a statement on rows that the binlog has no row events for."""

    changes_rows: bool = False
    """Rows may have other values, or another key, or may be gone."""
    added: tuple[str, ...] = ()
    """New columns that are NULL in every row."""
    dropped: tuple[str, ...] = ()
    """Columns that are gone; the others keep their values."""


NO_EFFECTS: Final = RowEffects()


@dataclass(frozen=True, slots=True)
class Alterations:
    """Everything that the parts of an ALTER TABLE do."""

    effects: RowEffects
    renamed_to: Name | None = None
    exchanged: tuple[Name, ...] = ()
    """Further tables whose rows change because partitions are exchanged with them."""
    takes_table: bool = False
    """A table becomes a partition, and is gone."""
    drops_foreign_key: bool = False


def alterations(tokens: list[Token], database: str) -> Alterations:
    """Reads the parts; `database` is the one of names without a database. Raises Misfit and Unreadable."""
    changes_rows = drops_foreign_key = takes_table = False
    renamed_to: Name | None = None
    exchanged: list[Name] = []
    added: list[str] = []
    dropped: list[str] = []
    for part in _parts(groups_as_one(tokens)):
        words = Words(iter(part))
        if (name := _renamed_to(words, database)) is not None:
            renamed_to = name
            # Options may follow without a comma.
            changes_rows |= not _keeps_rows(words.rest())
            continue
        if (name := _exchanged(words, database)) is not None:
            exchanged.append(name)
            takes_table |= words.is_at("TO", "PARTITION")
            changes_rows = True
            continue
        drops_foreign_key |= _begins(part, "DROP", "CONSTRAINT") or _begins(part, "DROP", "FOREIGN")
        if _keeps_rows(part):
            continue
        if (column := _added_column(Words(iter(part)))) is not None:
            added.append(column)
        elif (column := _dropped_column(Words(iter(part)))) is not None:
            dropped.append(column)
        else:
            changes_rows = True
    effects = RowEffects(changes_rows, tuple(added), tuple(dropped))
    return Alterations(effects, renamed_to, tuple(exchanged), takes_table, drops_foreign_key)


def _parts(tokens: Iterable[Token]) -> list[list[Token]]:
    found: list[list[Token]] = [[]]
    for token in tokens:
        if token == (Shape.SYMBOL, ","):
            found.append([])
        elif token == (Shape.SYMBOL, ";"):
            break
        else:
            found[-1].append(token)
    return found


def _begins(part: list[Token], *words: str) -> bool:
    return len(part) >= len(words) and all(
        is_word(token, word) for token, word in zip(part, words, strict=False)
    )


def _renamed_to(words: Words, database: str) -> Name | None:
    """Takes a new name of the table."""
    if not words.is_at("RENAME") or any(words.is_at("RENAME", one) for one in ("COLUMN", "INDEX", "KEY")):
        return None
    words.take()
    if not words.accept_one_of("TO", "AS"):
        words.accept_symbol("=")
    return words.table(database)


def _exchanged(words: Words, database: str) -> Name | None:
    """Takes the table of another part that exchanges rows with a partition."""
    if words.accept("EXCHANGE", "PARTITION"):
        words.name()
        found = words.accept("WITH", "TABLE")
    elif words.accept("CONVERT", "PARTITION"):
        words.name()
        found = words.accept("TO", "TABLE")
    elif words.accept("CONVERT", "TABLE"):
        found = True
    else:
        return None
    if not found:
        raise Misfit
    return words.table(database)


def _keeps_rows(part: list[Token]) -> bool:
    """Returns whether a part, or nothing, keeps every row as it is, and the primary key."""
    if not part:
        return True
    first = part[0].text.upper() if part[0].shape is Shape.WORD else ""
    if (
        first in _OPTIONS
        or first.startswith(_OPTION_PREFIXES)
        or any(_begins(part, *words) for words in _KEEPING)
    ):
        return not any(token.shape is Shape.WORD and token.text.upper() in _ACTIONS for token in part[1:])
    if len(part) > 1 and part[1].shape is Shape.WORD:
        second = part[1].text.upper()
        if second in _KEEPING_AFTER.get(first, ()):
            return not _names_primary_key(part)
    return first == "ALTER" and _is_default(Words(iter(part[1:])))


def _names_primary_key(part: list[Token]) -> bool:
    """Returns whether a part adds or drops the primary key, as a constraint or as the index of its name."""
    return any(token.shape in (Shape.WORD, Shape.NAME) and token.text.upper() == "PRIMARY" for token in part)


def _is_default(words: Words) -> bool:
    """Returns whether the rest of an ALTER COLUMN gives a default to new rows only."""
    words.accept("COLUMN")
    words.accept_exists()
    if words.peek() is None:
        return False
    words.take()
    return words.accept("SET", "DEFAULT") or words.accept("DROP", "DEFAULT")


def _added_column(words: Words) -> str | None:
    """Returns the name of a new column that is NULL in all existing rows."""
    if not words.accept("ADD"):
        return None
    words.accept("COLUMN")
    words.accept_exists()
    name = words.peek()
    if name is None or any(is_word(name, one) for one in ("PRIMARY", "PERIOD", "SYSTEM")):
        return None
    words.take()
    kind = words.peek()
    if (
        name.shape not in (Shape.WORD, Shape.NAME)
        or kind is None
        or kind.shape is not Shape.WORD
        or kind.text.upper() not in _TYPES
    ):
        return None
    words.take()
    rest = words.rest()
    if not _leaves_null(rest):
        return None
    # By a setting of the server, a TIMESTAMP without NULL is not nullable.
    if is_word(kind, "TIMESTAMP") and not any(is_word(token, "NULL") for token in rest):
        return None
    return name.text


def _leaves_null(attributes: list[Token]) -> bool:
    """Returns whether all attributes of a new column are known to leave it NULL in existing rows."""
    words = Words(iter(attributes))
    while (token := words.peek()) is not None:
        if words.accept("DEFAULT"):
            if not words.accept("NULL"):
                return False
        elif words.accept("CHARACTER", "SET") or (
            token.shape is Shape.WORD and token.text.upper() in _WITH_VALUE and words.take()
        ):
            words.accept_symbol("=")
            if words.peek() is None:
                return False
            words.take()
        elif token.shape is Shape.GROUP or (token.shape is Shape.WORD and token.text.upper() in _FLAGS):
            words.take()
        else:
            return False
    return True


def _dropped_column(words: Words) -> str | None:
    """Returns the name of a column that is gone."""
    if not words.accept("DROP"):
        return None
    words.accept("COLUMN")
    words.accept_exists()
    name = words.peek()
    if name is None or name.shape not in (Shape.WORD, Shape.NAME):
        return None
    if any(is_word(name, one) for one in ("PRIMARY", "PARTITION", "PERIOD", "SYSTEM")):
        return None
    words.take()
    words.accept_one_of("RESTRICT", "CASCADE")
    return name.text if words.peek() is None else None
