"""Classifies statements of the binlog by their effect on synchronised tables.

Every statement that is known to leave tables alone is on a list (`_HARMLESS`, `_HARMLESS_OBJECTS`). One that
is not on a list, or has a grammar that is not known here, is of the kind `UNKNOWN`: it may have changed every
table that it names, or any table at all. Statements that could change a table go into the topic. Others
do not, because they may hold secrets.

`sql_tokens.py` splits a statement into tokens, `alterations.py` reads the parts of an ALTER TABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from metaq.pipelines.binlog_sync.reading.alterations import NO_EFFECTS, RowEffects, alterations
from metaq.pipelines.binlog_sync.reading.sql_tokens import (
    USUAL,
    Dialect,
    Shape,
    Token,
    Unreadable,
    tokens_of,
)
from metaq.pipelines.binlog_sync.reading.statement_words import Misfit, Name, Words, is_word, keywords

__all__ = ["Kind", "RowEffects", "Statement", "parse", "shortened"]

TEXT_MAX: Final = 200
"""How much of a statement a log line shows."""


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
    """A statement that is known to leave tables alone."""
    UNKNOWN = "unknown"
    """A statement that is not understood."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and the tables it names, each with its database."""

    kind: Kind
    tables: tuple[Name, ...] = ()
    renamed: tuple[tuple[Name, Name], ...] = ()
    """Pairs of old and new name."""
    exchanged: tuple[Name, ...] = ()
    """Further tables whose rows change because partitions are exchanged with them."""
    database: str = ""
    """The database of CREATE, ALTER and DROP DATABASE."""
    empties: bool = False
    """The tables, or those of the database, lose all rows that were sent for them.

    RENAME does that for both names: the rows of the new one are read again. The same holds if a table becomes
    a partition of another one."""
    drops: bool = False
    """The tables, or those of the database, are gone."""
    created: tuple[Name, ...] = ()
    is_filled: bool = False
    """A created table may have rows from the beginning."""
    effects: RowEffects = NO_EFFECTS
    changes_foreign_keys: bool = False
    """It may add foreign keys, or rename their tables."""
    drops_foreign_key: bool = False
    fault: str = ""
    """Why an unknown statement is not understood."""
    words: frozenset[str] = frozenset()
    """The words and names of an unknown statement, in lower case."""
    is_confined: bool = False
    """An unknown statement can change no other tables than those whose names are in `words`."""

    @property
    def gone(self) -> tuple[Name, ...]:
        """The names that no table has after the statement: dropped ones and old ones."""
        if self.drops:
            return self.tables
        # A chain such as `a TO b, c TO a` gives a name to another table.
        taken = {new for _, new in self.renamed}
        return tuple(old for old, _ in self.renamed if old not in taken)

    def may_change(self, database: str, table: str, session_database: str) -> bool:
        """Returns whether this unknown statement may change a table."""
        if not self.is_confined:
            return True
        databases = self.words | {session_database.lower()}
        return table.lower() in self.words and database.lower() in databases

    def lowered(self) -> Statement:
        """Returns the statement with names in lower case, as lower_case_table_names = 1 stores them."""

        def lower(name: Name) -> Name:
            return name[0].lower(), name[1].lower()

        return replace(
            self,
            tables=tuple(map(lower, self.tables)),
            renamed=tuple((lower(old), lower(new)) for old, new in self.renamed),
            exchanged=tuple(map(lower, self.exchanged)),
            created=tuple(map(lower, self.created)),
            database=self.database.lower(),
        )


_ROWS: Final = keywords("INSERT REPLACE UPDATE DELETE LOAD SELECT WITH VALUES TABLE CALL DO HANDLER EXECUTE")
"""Statements that change rows, or call functions that may."""
_HARMLESS: Final = keywords(
    "GRANT REVOKE OPTIMIZE REPAIR CHECK CHECKSUM FLUSH RESET PURGE SET SAVEPOINT RELEASE INSTALL "
    "UNINSTALL USE SHOW LOCK UNLOCK KILL CHANGE STOP CACHE SHUTDOWN RESTART CLONE BACKUP DESCRIBE "
    "DESC EXPLAIN HELP"
)
_HARMLESS_OBJECTS: Final = keywords(
    "USER ROLE VIEW TRIGGER EVENT FUNCTION PROCEDURE PACKAGE SERVER SEQUENCE TABLESPACE UNDO "
    "LOGFILE RESOURCE INSTANCE LIBRARY PREPARE DEFINER ALGORITHM SQL AGGREGATE"
)
"""Objects of CREATE, ALTER and DROP, and words that begin the definition of a view or a program."""
_OF_MODES: Final = frozenset(("SQL_MODE", "CHARACTER_SET_CLIENT", "COLLATION_CONNECTION"))


def parse(statement: str, database: str, dialect: Dialect = USUAL) -> Statement:
    """Classifies a statement; `database` is the one of names without a database."""
    try:
        words = Words(tokens_of(statement, dialect))
        if _skip_settings(words) and dialect.is_mode_known:
            # The event has the mode that the prefix sets. The statement was split with another one.
            return parse(statement, database, dialect.with_unknown_mode())
        return _Parser(words, database).parse()
    except Unreadable as error:
        return _unknown(statement, dialect, str(error))
    except Misfit:
        return _unknown(statement, dialect, "its grammar is not known")


def _skip_settings(words: Words) -> bool:
    """Skips `SET STATEMENT … FOR`, also several; returns whether one sets how statements are read."""
    sets_mode = False
    while words.accept("SET", "STATEMENT"):
        depth = 0
        while depth or not words.accept("FOR"):
            token = words.take()
            if token.shape is Shape.SYMBOL:
                depth += (token.text == "(") - (token.text == ")")
            sets_mode |= token.shape in (Shape.WORD, Shape.NAME) and token.text.upper() in _OF_MODES
    return sets_mode


class _Parser:
    """Parses one statement; raises Misfit and Unreadable."""

    def __init__(self, words: Words, database: str) -> None:
        self._words = words
        self._database = database

    def parse(self) -> Statement:
        first = self._words.peek()
        if first is None:
            return Statement(Kind.OTHER)
        if first.shape is not Shape.WORD:
            raise Misfit
        self._words.take()
        match first.text.upper():
            case "BEGIN" | "START" | "COMMIT" | "ROLLBACK" as verb:
                return Statement(self._transaction(verb))
            case "XA":
                return Statement(Kind.XA)
            case "TRUNCATE":
                return self._truncate()
            case "CREATE":
                return self._create()
            case "ALTER":
                return self._alter()
            case "DROP":
                return self._drop()
            case "RENAME":
                return self._rename()
            case "ANALYZE" if any(
                self._words.is_at(word) for word in ("TABLE", "LOCAL", "NO_WRITE_TO_BINLOG")
            ):
                return Statement(Kind.OTHER)
            case "ANALYZE":
                # MariaDB carries out the statement that it analyzes.
                return Statement(Kind.ROWS)
            case "LOAD" if self._words.is_at("INDEX"):
                return Statement(Kind.OTHER)
            case verb if verb in _ROWS:
                return Statement(Kind.ROWS)
            case verb if verb in _HARMLESS:
                return Statement(Kind.OTHER)
        raise Misfit

    def _transaction(self, verb: str) -> Kind:
        words = self._words
        if verb == "START":
            if words.accept("TRANSACTION"):
                return Kind.BEGIN
            if any(words.is_at(word) for word in ("REPLICA", "SLAVE", "ALL", "GROUP_REPLICATION")):
                return Kind.OTHER
            raise Misfit
        words.accept("WORK")
        if verb == "BEGIN":
            words.end()
            return Kind.BEGIN
        if verb == "COMMIT":
            return Kind.COMMIT
        return Kind.ROLLBACK_TO if words.is_at("TO") else Kind.ROLLBACK

    def _truncate(self) -> Statement:
        words = self._words
        words.accept("TABLE")
        table = words.table(self._database)
        words.accept_wait()
        if words.accept_one_of("DROP", "REUSE"):
            # Oracle's form, which MariaDB accepts.
            words.accept("STORAGE")
        words.end()
        return Statement(Kind.TRUNCATE, (table,), empties=True)

    def _drop(self) -> Statement:
        words = self._words
        is_temporary = words.accept("TEMPORARY")
        if words.accept_one_of("TABLE", "TABLES"):
            words.accept_exists()
            tables = tuple(words.tables(self._database))
            words.accept_wait()
            words.accept_one_of("RESTRICT", "CASCADE")
            words.end()
            if is_temporary:
                return Statement(Kind.OTHER)
            return Statement(Kind.TABLE, tables, empties=True, drops=True)
        if words.accept_one_of("ONLINE", "OFFLINE") or words.is_at("INDEX"):
            return self._index(drops=True)
        if words.accept_one_of("DATABASE", "SCHEMA"):
            words.accept_exists()
            name = words.name()
            words.end()
            return Statement(Kind.DATABASE, database=name, empties=True, drops=True)
        return self._harmless_object()

    def _index(self, *, drops: bool) -> Statement:
        words = self._words
        if not words.accept("INDEX"):
            raise Misfit
        words.accept_exists()
        name = words.name()
        if words.accept_one_of("USING", "TYPE"):
            words.name()
        if not words.accept("ON"):
            raise Misfit
        table = words.table(self._database)
        # Its key is another one then.
        effects = RowEffects(changes_rows=drops and name.upper() == "PRIMARY")
        return Statement(Kind.TABLE, (table,), effects=effects)

    def _rename(self) -> Statement:
        words = self._words
        if words.accept("USER"):
            return Statement(Kind.OTHER)
        if not words.accept_one_of("TABLE", "TABLES"):
            raise Misfit
        words.accept_exists()
        pairs: list[tuple[Name, Name]] = []
        while not pairs or words.accept_symbol(","):
            old = words.table(self._database)
            words.accept_wait()
            if not words.accept("TO"):
                raise Misfit
            pairs.append((old, words.table(self._database)))
        words.end()
        names = tuple(name for pair in pairs for name in pair)
        return Statement(Kind.TABLE, names, tuple(pairs), empties=True, changes_foreign_keys=True)

    def _create(self) -> Statement:
        words = self._words
        replaces = words.accept("OR", "REPLACE")
        is_temporary = words.accept("TEMPORARY")
        if words.accept("TABLE"):
            return self._create_table(replaces=replaces, is_temporary=is_temporary)
        if words.accept("SEQUENCE"):
            # A sequence is a table for MariaDB, and may replace one.
            words.accept_exists()
            table = words.table(self._database)
            if is_temporary or not replaces:
                return Statement(Kind.OTHER)
            return Statement(Kind.TABLE, (table,), empties=True)
        if words.accept_one_of("DATABASE", "SCHEMA"):
            words.accept_exists()
            return Statement(Kind.DATABASE, database=words.name(), empties=replaces)
        words.accept_one_of("ONLINE", "OFFLINE")
        if words.is_at("INDEX") or (
            words.accept_one_of("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR") and words.is_at("INDEX")
        ):
            return self._index(drops=False)
        if words.accept("REFERENCE", "SYSTEM"):
            return Statement(Kind.OTHER)
        return self._harmless_object()

    def _create_table(self, *, replaces: bool, is_temporary: bool) -> Statement:
        words = self._words
        words.accept_exists()
        table = words.table(self._database)
        if is_temporary:
            return Statement(Kind.OTHER)
        rest = words.rest()
        return Statement(
            Kind.TABLE,
            (table,),
            created=(table,),
            empties=replaces,
            is_filled=_may_have_rows(rest),
            changes_foreign_keys=_refers(rest),
        )

    def _alter(self) -> Statement:
        words = self._words
        changes_rows = False
        while option := words.accept_one_of("ONLINE", "OFFLINE", "IGNORE"):
            changes_rows |= option == "IGNORE"
        if words.accept_one_of("DATABASE", "SCHEMA"):
            name = words.peek()
            is_named = name is not None and not any(
                is_word(name, word)
                for word in ("CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "COMMENT", "READ", "ENCRYPTION")
            )
            return Statement(Kind.DATABASE, database=words.name() if is_named else self._database)
        if not words.accept("TABLE"):
            return self._harmless_object()
        words.accept_exists()
        table = words.table(self._database)
        words.accept_wait()
        rest = words.rest()
        found = alterations(rest, self._database)
        new = () if found.renamed_to is None else (found.renamed_to,)
        if changes_rows:
            found = replace(found, effects=replace(found.effects, changes_rows=True))
        return Statement(
            Kind.TABLE,
            (table, *new, *found.exchanged),
            tuple((table, name) for name in new),
            found.exchanged,
            empties=bool(new) or found.takes_table,
            effects=found.effects,
            changes_foreign_keys=_refers(rest),
            drops_foreign_key=found.drops_foreign_key,
        )

    def _harmless_object(self) -> Statement:
        token = self._words.peek()
        if token is not None and token.shape is Shape.WORD and token.text.upper() in _HARMLESS_OBJECTS:
            return Statement(Kind.OTHER)
        if self._words.is_at("SPATIAL", "REFERENCE"):
            return Statement(Kind.OTHER)
        raise Misfit


def _may_have_rows(definition: list[Token]) -> bool:
    """Returns whether the definition of a new table may be a query."""
    for at, token in enumerate(definition):
        if is_word(token, "SELECT") or is_word(token, "TABLE"):
            return True
        if is_word(token, "VALUES"):
            following = definition[at + 1] if at + 1 < len(definition) else None
            if following is None or not (is_word(following, "LESS") or is_word(following, "IN")):
                return True
    return False


def _refers(definition: list[Token]) -> bool:
    return any(is_word(token, "REFERENCES") or is_word(token, "RENAME") for token in definition)


# Statements that are not understood

_OF_TABLES: Final = frozenset(("TABLE", "TABLES", "INDEX"))
_VERBS_OF_TABLES: Final = frozenset(("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"))


def _unknown(statement: str, dialect: Dialect, fault: str) -> Statement:
    words: set[str] = set()
    verb, is_of_tables, is_readable = "", False, True
    try:
        words_left = Words(tokens_of(statement, dialect))
        _skip_settings(words_left)
        for number, token in enumerate(words_left.rest()):
            if token.shape not in (Shape.WORD, Shape.NAME):
                continue
            words.add(token.text.lower())
            if number == 0:
                verb = token.text.upper()
            elif number < 6:
                is_of_tables |= token.shape is Shape.WORD and token.text.upper() in _OF_TABLES
    except (Unreadable, Misfit):
        is_readable = False
    is_confined = is_readable and verb in _VERBS_OF_TABLES and is_of_tables
    return Statement(Kind.UNKNOWN, fault=fault, words=frozenset(words), is_confined=is_confined)


def shortened(statement: str, dialect: Dialect = USUAL) -> str:
    """Returns a statement for a log line: on one line, cut, and without its texts, which may be secrets."""
    text = ""
    before: Token | None = None
    for token in _readable(tokens_of(statement, dialect)):
        shown = {Shape.TEXT: "'…'", Shape.NAME: f"`{token.text}`"}.get(token.shape, token.text)
        is_close = before is None or (
            Shape.SYMBOL in (token.shape, before.shape) and "." in (token.text, before.text)
        )
        text += shown if is_close else f" {shown}"
        before = token
        if len(text) > TEXT_MAX:
            return f"{text[:TEXT_MAX]}…"
    return text or "(unreadable)"


def _readable(tokens: Iterator[Token]) -> Iterator[Token]:
    """Yields tokens up to the first that nobody can read."""
    try:
        yield from tokens
    except Unreadable:
        yield Token(Shape.SYMBOL, "…")
