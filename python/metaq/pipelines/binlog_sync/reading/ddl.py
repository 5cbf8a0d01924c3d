"""Classifies statements of the binlog by their effect on synchronised tables.

Only the beginning of a statement is parsed, as far as its kind and the tables that it names. Statements that
could change a table go into the topic. Statements on users, rights, views and programs do not, because they
may hold secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """The kinds of statements that the pipeline tells apart."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to"
    """A rollback to a savepoint: the transaction continues."""
    TRUNCATE = "truncate"
    TABLE = "table"
    """Any other statement that changes tables."""
    DATABASE = "database"
    ROWS = "rows"
    """A change of rows that is logged as a statement, not by row."""
    XA = "xa"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and the tables it names, each with its database."""

    kind: Kind
    tables: tuple[tuple[str, str], ...] = ()
    renamed: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = ()
    """Pairs of old and new name."""
    exchanged: tuple[tuple[str, str], ...] = ()
    """Further tables whose rows change because partitions are exchanged with them."""
    database: str = ""
    """The database of CREATE, ALTER and DROP DATABASE."""

    def lowered(self) -> Statement:
        """Returns the statement with names in lower case, as lower_case_table_names = 1 stores them."""

        def lower(name: tuple[str, str]) -> tuple[str, str]:
            return name[0].lower(), name[1].lower()

        return Statement(
            self.kind,
            tuple(map(lower, self.tables)),
            tuple((lower(old), lower(new)) for old, new in self.renamed),
            tuple(map(lower, self.exchanged)),
            self.database.lower(),
        )


_NAME: Final = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\".,;(]+)"
_TABLE: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
# A quoted text that does not end goes to the end of the statement, so that it is read once.
_QUOTED: Final = (
    r"'(?:[^'\\]++|''|\\.?)*+(?:'|\Z)|`(?:[^`]++|``)*+(?:`|\Z)|\"(?:[^\"\\]++|\"\"|\\.?)*+(?:\"|\Z)"
)
# Quoted text comes first, because it may contain what looks like a comment.
_COMMENT: Final = re.compile(
    rf"({_QUOTED})|/\*(?![!M])(?:[^*]++|\*(?!/))*+(?:\*/|\Z)|(?:--\s|#)[^\n]*(?:\n|\Z)", re.DOTALL
)
# Conditional comments, for some servers only, are part of the statement. One space replaces each gap, because
# the patterns below try every length of it.
_GAP: Final = re.compile(rf"({_QUOTED})|(?:\s|/\*M?!\d*+|\*/)++", re.DOTALL)
_OPTIONS: Final = r"(?:(?:OR\s+REPLACE|TEMPORARY|ONLINE|OFFLINE|IGNORE|UNIQUE|FULLTEXT|SPATIAL)\s+)*"
_EXISTS: Final = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
_WAIT: Final = r"(?:(?:WAIT\s+\d+|NOWAIT)\s+)?"

_SAVEPOINT: Final = re.compile(r"ROLLBACK\s+(?:WORK\s+)?TO\b", re.IGNORECASE)
_TRUNCATE: Final = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?{_WAIT}({_TABLE})", re.IGNORECASE)
_DROP: Final = re.compile(
    rf"DROP\s+(TEMPORARY\s+)?TABLES?\s+{_WAIT}{_EXISTS}({_TABLE}(?:\s*,\s*{_TABLE})*)", re.IGNORECASE
)
_CREATE_OR_ALTER: Final = re.compile(
    rf"(?:CREATE|ALTER)\s+{_OPTIONS}TABLE\s+{_WAIT}{_EXISTS}({_TABLE})", re.IGNORECASE
)
_TEMPORARY: Final = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?TEMPORARY\s", re.IGNORECASE)
_ALTER_RENAME: Final = re.compile(
    rf"RENAME\b\s*(?!(?:COLUMN|INDEX|KEY)\b)(?:(?:TO|AS)\b\s*|=\s*)?({_TABLE})", re.IGNORECASE
)
_ALTER_EXCHANGE: Final = re.compile(
    rf"(?:EXCHANGE\s+PARTITION\s+{_NAME}\s+WITH|CONVERT\s+PARTITION\s+{_NAME}\s+TO|CONVERT)"
    rf"\s+TABLE\s+({_TABLE})",
    re.IGNORECASE,
)
_ALTER_TAKE: Final = re.compile(r"CONVERT\s+TABLE\b", re.IGNORECASE)
_RENAME: Final = re.compile(r"RENAME\s+TABLES?\s+(.*)", re.IGNORECASE | re.DOTALL)
_LIST_ITEM: Final = re.compile(rf"(?:{_QUOTED}|[^,'`\"])++", re.DOTALL)
_RENAME_PAIR: Final = re.compile(rf"{_EXISTS}({_TABLE})\s+{_WAIT}TO\s+({_TABLE})", re.IGNORECASE)
_INDEX: Final = re.compile(
    rf"(?:CREATE|DROP)\s+{_OPTIONS}INDEX\s+{_EXISTS}{_NAME}[^(]*?\bON\s+({_TABLE})", re.IGNORECASE
)
_DATABASE: Final = re.compile(
    rf"(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:DATABASE|SCHEMA)\s+{_EXISTS}({_NAME})", re.IGNORECASE
)
_WORDS: Final = {
    "BEGIN": Kind.BEGIN,
    "START": Kind.BEGIN,
    "COMMIT": Kind.COMMIT,
    "ROLLBACK": Kind.ROLLBACK,
    "INSERT": Kind.ROWS,
    "REPLACE": Kind.ROWS,
    "UPDATE": Kind.ROWS,
    "DELETE": Kind.ROWS,
    "LOAD": Kind.ROWS,
    "XA": Kind.XA,
}


def parse(statement: str, database: str) -> Statement:
    """Classifies a statement; `database` is the one of names without a database."""
    text = _plain(statement)
    word = re.match(r"\w*", text)
    kind = _WORDS.get(word[0].upper() if word else "")
    if kind is Kind.ROLLBACK and _SAVEPOINT.match(text):
        kind = Kind.ROLLBACK_TO
    if kind is not None:
        return Statement(kind)
    if found := _TRUNCATE.match(text):
        return Statement(Kind.TRUNCATE, (_name(found[1], database),))
    if found := _DROP.match(text):
        if found[1]:
            return Statement(Kind.OTHER)
        return Statement(Kind.TABLE, tuple(_name(name, database) for name in re.findall(_TABLE, found[2])))
    if found := _RENAME.match(text):
        items = (_RENAME_PAIR.match(item.strip()) for item in _LIST_ITEM.findall(found[1]))
        pairs = tuple((_name(item[1], database), _name(item[2], database)) for item in items if item)
        return Statement(Kind.TABLE, tuple(name for pair in pairs for name in pair), pairs)
    if found := _CREATE_OR_ALTER.match(text):
        if _TEMPORARY.match(text):
            return Statement(Kind.OTHER)
        name = _name(found[1], database)
        parts = _Alterations(text)
        new = tuple(_name(table, database) for table in parts.tables(_ALTER_RENAME))
        others = tuple(_name(table, database) for table in parts.tables(_ALTER_EXCHANGE))
        return Statement(
            Kind.TABLE, (name, *new, *others), tuple((name, other) for other in new), exchanged=others
        )
    if found := _INDEX.match(text):
        return Statement(Kind.TABLE, (_name(found[1], database),))
    if found := _DATABASE.match(text):
        return Statement(Kind.DATABASE, database=_unquoted(found[1]))
    return Statement(Kind.OTHER)


_EMPTIES: Final = re.compile(
    r"(?:TRUNCATE|DROP\s+TABLES?|DROP\s+(?:DATABASE|SCHEMA)|RENAME\s+TABLES?"
    r"|CREATE\s+OR\s+REPLACE\s+(?:TABLE|DATABASE|SCHEMA))\b",
    re.IGNORECASE,
)


def empties(statement: str) -> bool:
    """Returns whether the tables of a statement, or of its database, lose all rows that were sent for them.

    RENAME does that for both names: the rows of the new one are read again. The same holds if a table becomes
    a partition of another one.
    """
    text = _plain(statement)
    if _EMPTIES.match(text):
        return True
    parts = _Alterations(text).parts
    return any(_ALTER_RENAME.match(part) or _ALTER_TAKE.match(part) for part in parts)


_QUOTES: Final = re.compile(_QUOTED, re.DOTALL)
_KEPT: Final = re.compile(r"\0(\d+)\0")
_LEADING_WAIT: Final = re.compile(rf"\s*{_WAIT}", re.IGNORECASE)
_PARENTHESIS: Final = re.compile(r"([()])")
_KEEPS_ROWS: Final = re.compile(
    r"(?:COMMENT|AUTO_INCREMENT|ENGINE|ROW_FORMAT|FORCE|STATS_\w+|ALGORITHM|LOCK|(?:EN|DIS)ABLE\s+KEYS"
    r"|KEY_BLOCK_SIZE|M(?:AX|IN)_ROWS|AVG_ROW_LENGTH|PAGE_\w+|ENCRYPT(?:ED|ION)|COMPRESSION"
    r"|(?:DEFAULT\s+)?(?:CHARACTER\s+SET|CHARSET|COLLATE)"
    r"|ADD\s+(?:UNIQUE|INDEX|KEY|FULLTEXT|SPATIAL|CONSTRAINT(?!.*\bPRIMARY\b)|FOREIGN|CHECK|PARTITION)"
    r"|DROP\s+(?:INDEX|KEY|CONSTRAINT|FOREIGN|CHECK)|RENAME\s+(?:INDEX|KEY)"
    r"|(?:REORGANIZE|COALESCE|REBUILD|OPTIMIZE|ANALYZE|CHECK)\s+PARTITION|REMOVE\s+PARTITIONING"
    r"|ALTER\s+(?:INDEX|KEY|CONSTRAINT|CHECK)|ALTER\s+(?:COLUMN\s+)?\S*\s*(?:SET|DROP)\s+DEFAULT)\b",
    re.IGNORECASE,
)
_ADD_COLUMN: Final = re.compile(
    r"ADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(?!(?:PRIMARY|PERIOD|SYSTEM)\b)"
    r"(\0\d+\0|\w+)\s+(\w+)(.*)",
    re.IGNORECASE | re.DOTALL,
)
_GIVES_VALUES: Final = re.compile(
    r"\b(?:NOT|AUTO_INCREMENT|SERIAL|AS|GENERATED|PRIMARY|KEY|UNIQUE|SYSTEM|START)\b|\bDEFAULT\b(?!\s+NULL\b)",
    re.IGNORECASE,
)
"""Matches attributes of a new column that give existing rows a value other than NULL, or another key."""
_NULL: Final = re.compile(r"\bNULL\b", re.IGNORECASE)
_DROP_COLUMN: Final = re.compile(
    r"DROP\s+(?:COLUMN\s+)?(?:IF\s+EXISTS\s+)?(?!(?:PRIMARY|PARTITION|PERIOD|SYSTEM)\b)(\0\d+\0|\w+)"
    r"(?:\s+(?:RESTRICT|CASCADE))?\Z",
    re.IGNORECASE,
)
_ADDS_FOREIGN_KEY: Final = re.compile(r"\bREFERENCES\b|\bRENAME\b", re.IGNORECASE)
_DROPS_FOREIGN_KEY: Final = re.compile(r"DROP\s+(?:CONSTRAINT|FOREIGN)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RowEffects:
    """The effects of a statement on rows that the binlog has no row events for."""

    changes_rows: bool = False
    """Rows may have other values, or another key, or may be gone."""
    added: tuple[str, ...] = ()
    """New columns that are NULL in every row."""
    dropped: tuple[str, ...] = ()
    """Columns that are gone; the others keep their values."""


def row_effects(statement: str) -> RowEffects:
    """Returns what an ALTER TABLE does to existing rows: they may get the default of a new column, values are
    converted, a partition is emptied. Other statements do nothing of the kind."""
    text = _plain(statement)
    if text[:5].upper() != "ALTER":
        return RowEffects()
    if re.match(r"ALTER\s+(?:ONLINE\s+|OFFLINE\s+)*IGNORE\b", text, re.IGNORECASE):
        return RowEffects(changes_rows=True)
    alterations = _Alterations(text)
    changes_rows = not alterations.parts
    added, dropped = [], []
    for part in alterations.parts:
        if _KEEPS_ROWS.match(part):
            continue
        if (found := _ADD_COLUMN.match(part)) and _is_null_in_all_rows(found[2], found[3]):
            added.append(alterations.name(found[1]))
        elif found := _DROP_COLUMN.match(part):
            dropped.append(alterations.name(found[1]))
        else:
            changes_rows = True
    return RowEffects(changes_rows, tuple(added), tuple(dropped))


def _is_null_in_all_rows(kind: str, rest: str) -> bool:
    """Returns whether a new column is NULL in existing rows."""
    if _GIVES_VALUES.search(f"{kind} {rest}"):
        return False
    # By a setting of the server, a TIMESTAMP without NULL is not nullable.
    return kind.upper() != "TIMESTAMP" or _NULL.search(rest) is not None


def changes_foreign_keys(statement: str) -> bool:
    """Returns whether a statement may add foreign keys, or rename their tables."""
    return _ADDS_FOREIGN_KEY.search(_plain(statement)) is not None


def drops_foreign_key(statement: str) -> bool:
    """Returns whether an ALTER TABLE may remove a foreign key."""
    return any(_DROPS_FOREIGN_KEY.match(part) for part in _Alterations(_plain(statement)).parts)


class _Alterations:
    """The parts of an ALTER TABLE; other statements have none."""

    def __init__(self, text: str) -> None:
        self._names: list[str] = []
        """Quoted names, which `parts` refers to by number, because they may hold commas and parentheses."""
        self.parts: list[str] = []
        found = _CREATE_OR_ALTER.match(text)
        if found is None or text[:5].upper() != "ALTER":
            return
        rest = _QUOTES.sub(self._kept, text[found.end() :].replace("\0", " "))
        rest = _LEADING_WAIT.sub("", _without_parentheses(rest), count=1)
        self.parts = [part.strip() for part in rest.split(",")]

    def _kept(self, found: re.Match[str]) -> str:
        if found[0].startswith("'"):
            return "x"
        self._names.append(found[0])
        return f"\0{len(self._names) - 1}\0"

    def tables(self, pattern: re.Pattern[str]) -> list[str]:
        """Returns the tables that parts of this pattern name."""
        found = [match[1] for part in self.parts if (match := pattern.match(part))]
        return [self._quoted(table) for table in found]

    def name(self, text: str) -> str:
        """Returns the name of a column that a part has."""
        return _unquoted(self._quoted(text))

    def _quoted(self, text: str) -> str:
        return _KEPT.sub(lambda number: self._names[int(number[1])], text)


def _without_parentheses(text: str) -> str:
    """Leaves out everything in parentheses, in one pass; a parenthesis without a partner stays."""
    kept: list[str] = []
    open_at: list[int] = []
    for piece in _PARENTHESIS.split(text):
        if piece == ")" and open_at:
            del kept[open_at.pop() :]
            continue
        if piece == "(":
            open_at.append(len(kept))
        kept.append(piece)
    return "".join(kept)


def drops(statement: str) -> bool:
    """Returns whether this is a DROP of anything."""
    return _plain(statement)[:5].upper() == "DROP "


def _plain(statement: str) -> str:
    """Returns a statement without comments and without quoted texts that do not end."""
    text = _COMMENT.sub(_kept_quotes, statement)
    return _GAP.sub(_kept_quotes, text).strip().rstrip(";").rstrip()


def _kept_quotes(found: re.Match[str]) -> str:
    quoted = found[1]
    return quoted if quoted and _is_name_or_text(quoted) else " "


def _is_name_or_text(quoted: str) -> bool:
    """Returns whether quoted text ends; a name is not empty either."""
    if len(quoted) < 2 or quoted[-1] != quoted[0]:
        return False
    return len(quoted) > 2 or quoted[0] != "`"


def _name(text: str, database: str) -> tuple[str, str]:
    parts = [_unquoted(part) for part in re.findall(_NAME, text)]
    return (parts[0], parts[1]) if len(parts) > 1 else (database, parts[0])


def _unquoted(name: str) -> str:
    if name[0] in '`"':
        return name[1:-1].replace(name[0] * 2, name[0])
    return name
