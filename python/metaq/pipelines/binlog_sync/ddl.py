"""What a statement of the binlog means for the tables that are synchronised.

Only the beginning of a statement is understood, as far as its kind and the tables it names. Whatever could
change a table is told; statements on users, rights, views and programs are not, as they may hold secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What a statement is, as far as that matters."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to"
    """Back to a savepoint: the transaction goes on."""
    TRUNCATE = "truncate"
    TABLE = "table"
    """Something else that changes tables."""
    DATABASE = "database"
    ROWS = "rows"
    """A change of rows that is not logged by row."""
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
    """Tables besides the first one that get other rows, or give theirs away, as partitions."""
    database: str = ""
    """Of CREATE, ALTER and DROP DATABASE."""

    def lowered(self) -> Statement:
        """As a server with lower_case_table_names = 1 takes the names: its rows have them so."""

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
_QUOTED: Final = r"'(?:[^'\\]|''|\\.)*'|`(?:[^`]|``)*`|\"(?:[^\"\\]|\"\"|\\.)*\""
# What is quoted first, as it may hold what looks like a comment.
_COMMENT: Final = re.compile(rf"({_QUOTED})|/\*(?![!M]).*?\*/|(?:--\s|#)[^\n]*(?:\n|\Z)", re.DOTALL)
# What is written for some servers only is a part of the statement.
_CONDITIONAL: Final = re.compile(r"/\*M?!\d*|\*/")
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
    """`database` is the one that names without one are in."""
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
        pairs = tuple(
            (_name(old, database), _name(new, database)) for old, new in _RENAME_PAIR.findall(found[1])
        )
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
    """Whether nothing that was told of the tables it names, or of its database, is there any more.

    Of a renamed table that is so for both names: what the new one holds is read again. So it is where a table
    becomes a partition of another one.
    """
    text = _plain(statement)
    if _EMPTIES.match(text):
        return True
    parts = _Alterations(text).parts
    return any(_ALTER_RENAME.match(part) or _ALTER_TAKE.match(part) for part in parts)


_QUOTES: Final = re.compile(_QUOTED, re.DOTALL)
_KEPT: Final = re.compile(r"\0(\d+)\0")
_LEADING_WAIT: Final = re.compile(rf"\s*{_WAIT}", re.IGNORECASE)
_PARENTHESISED: Final = re.compile(r"\([^()]*\)")
_KEEPS_ROWS: Final = re.compile(
    r"(?:COMMENT|AUTO_INCREMENT|ENGINE|ROW_FORMAT|FORCE|STATS_\w+|ALGORITHM|LOCK|(?:EN|DIS)ABLE\s+KEYS"
    r"|ADD\s+(?:UNIQUE|INDEX|KEY|FULLTEXT|SPATIAL|CONSTRAINT(?!.*\bPRIMARY\b)|FOREIGN|CHECK)"
    r"|DROP\s+(?:INDEX|KEY|CONSTRAINT|FOREIGN|CHECK)|RENAME\s+(?:INDEX|KEY)"
    r"|ALTER\s+(?:COLUMN\s+)?\S*\s*(?:SET|DROP)\s+DEFAULT)\b",
    re.IGNORECASE,
)


def changes_rows(statement: str) -> bool:
    """Whether rows may be others by it, of which the binlog does not tell: those of before get the default of
    a new column, values are converted, a partition is emptied."""
    text = _plain(statement)
    if text[:5].upper() != "ALTER":
        return False
    if re.match(r"ALTER\s+(?:ONLINE\s+|OFFLINE\s+)*IGNORE\b", text, re.IGNORECASE):
        return True
    return not all(_KEEPS_ROWS.match(part) for part in _Alterations(text).parts)


class _Alterations:
    """What an ALTER TABLE alters, part by part; no parts where the statement is another one."""

    def __init__(self, text: str) -> None:
        self._names: list[str] = []
        """What is quoted as a name; in the parts it is a number, as it may hold commas and parentheses."""
        self.parts: list[str] = []
        found = _CREATE_OR_ALTER.match(text)
        if found is None or text[:5].upper() != "ALTER":
            return
        rest = _QUOTES.sub(self._kept, text[found.end() :].replace("\0", " "))
        while (less := _PARENTHESISED.sub("", rest)) != rest:
            rest = less
        self.parts = [part.strip() for part in _LEADING_WAIT.sub("", rest, count=1).split(",")]

    def _kept(self, found: re.Match[str]) -> str:
        if found[0].startswith("'"):
            return "x"
        self._names.append(found[0])
        return f"\0{len(self._names) - 1}\0"

    def tables(self, pattern: re.Pattern[str]) -> list[str]:
        """The tables that parts of that pattern name."""
        found = [match[1] for part in self.parts if (match := pattern.match(part))]
        return [_KEPT.sub(lambda number: self._names[int(number[1])], table) for table in found]


def _plain(statement: str) -> str:
    text = _COMMENT.sub(lambda found: found[1] or " ", statement)
    return _CONDITIONAL.sub(" ", text).strip().rstrip(";").rstrip()


def _name(text: str, database: str) -> tuple[str, str]:
    parts = [_unquoted(part) for part in re.findall(_NAME, text)]
    return (parts[0], parts[1]) if len(parts) > 1 else (database, parts[0])


def _unquoted(name: str) -> str:
    if name[0] in '`"':
        return name[1:-1].replace(name[0] * 2, name[0])
    return name
