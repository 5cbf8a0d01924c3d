"""The SQL dialects of the databases that can hold mirrors.

Names are quoted as in standard SQL; the settings make MariaDB and MySQL accept that.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.pipelines.binlog_mirror.errors import Unmirrored

TEXTUAL: Final = frozenset(("uuid", "inet4", "inet6"))
"""Types whose values are texts in messages and in Spark. Some databases have types of their own for them."""
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")
_WHOLE: Final = "^-{0,1}[0-9]+$"
"""A whole number. Drivers take a question mark for a parameter."""


def named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Dialect(ABC):
    """The dialect and the driver of one kind of database."""

    name: str
    driver: str
    package: str
    """The driver's coordinates on Maven Central."""
    settings: Mapping[str, str]
    """Settings of each connection."""
    types: Mapping[str, str] = field(repr=False)
    """Column types by Spark's types and `TEXTUAL`; `decimal` is the same in both."""
    identity: str
    """A text type that is compared byte by byte; `{}` is its length."""
    own_columns: str
    """Options that keep the mirror's own columns out of `SELECT *`, if the database has them."""
    name_bytes_max: int
    own_schemas: re.Pattern[str]
    """The databases (schemas) that belong to the server itself."""
    indexes: str
    """A query for the names of a table's indexes; its parameters are schema and table."""
    refuses_nul: bool = False
    """Whether texts cannot contain NUL."""
    numbered: str = ""
    """A numbering column as primary key, for servers that may require one in every table."""

    def type_of(self, kind: str) -> str:
        return kind if _DECIMAL.fullmatch(kind) else self.types[kind]

    def require_name(self, name: str) -> None:
        """Raises Unmirrored if a name is too long: PostgreSQL would truncate it, and confuse two names."""
        if len(name.encode()) > self.name_bytes_max:
            raise Unmirrored(
                f"{name} is too long a name for {self.name}: the limit is {self.name_bytes_max} bytes",
                hint="list the table in source.exclude",
            )

    def require_schema(self, name: str) -> None:
        """Raises Unmirrored if a database of the source has the name of one that no mirror may touch."""
        if self.own_schemas.fullmatch(name):
            raise Unmirrored(
                f"{self.name} needs the database {name} itself", hint="list its tables in source.exclude"
            )

    @abstractmethod
    def make_schema(self, name: str) -> str:
        """Returns the statement that creates the schema for a database of the source."""

    @abstractmethod
    def read(self, text: str, kind: str) -> str:
        """Returns an expression that parses a text."""

    @abstractmethod
    def text_of(self, column: str, kind: str) -> str:
        """Returns an expression for the text of a value, as in messages, or for the hex digits of bytes."""

    @abstractmethod
    def delete_joined(self, table: str, other: str, condition: str) -> str:
        """Returns a statement that deletes rows `{t}` of a table that match a row `{s}` of another one."""

    @abstractmethod
    def first_of_key(self, key: str) -> str:
        """Returns an expression for the first value of a key in JSON; NULL if it is not a whole number."""

    @abstractmethod
    def widen(self, table: str, column: str, kind: str) -> str:
        """Returns a statement that changes a column to a type that holds all its values."""

    @abstractmethod
    def index_parts(self, columns: Mapping[str, str]) -> str:
        """Returns the columns of an index; of long texts only the beginning, if the database requires it."""

    @abstractmethod
    def drop_index(self, table: tuple[str, str], name: str) -> str:
        """Returns a statement that drops an index of a table."""

    @abstractmethod
    def copy_empty(self, table: str, copy: str) -> str:
        """Returns a statement that creates an empty table with the columns of another one."""

    def native_types(self, version: str) -> frozenset[str]:
        """Returns the types that a server of some version has in addition to those of Spark."""
        return TEXTUAL & self.types.keys()

    def replace(self, table: str, column: str, kind: str) -> str:
        """Returns a statement that empties a column and gives it another type; binlog-sync sends it again."""
        return f"ALTER TABLE {table} DROP COLUMN {column}, ADD COLUMN {column} {self.type_of(kind)}"


class MariaDbDialect(Dialect):
    """MariaDB, and MySQL through the same driver."""

    __slots__ = ()

    def make_schema(self, name: str) -> str:
        return f"CREATE DATABASE IF NOT EXISTS {named(name)} CHARACTER SET utf8mb4"

    def read(self, text: str, kind: str) -> str:
        return f"UNHEX({text})" if kind == "binary" else text

    def text_of(self, column: str, kind: str) -> str:
        if kind == "binary":
            return f"HEX({column})"
        # The server prints a FLOAT with six digits only.
        return f"CAST(CAST({column} AS DOUBLE) AS CHAR)" if kind == "float" else f"CAST({column} AS CHAR)"

    def delete_joined(self, table: str, other: str, condition: str) -> str:
        # With aliases, it would look for both tables in one database.
        return f"DELETE {table} FROM {table} JOIN {other} ON {condition.format(t=table, s=other)}"

    def first_of_key(self, key: str) -> str:
        first = f"JSON_UNQUOTE(JSON_EXTRACT({key}, '$[0]'))"
        return f"CASE WHEN {first} REGEXP '{_WHOLE}' THEN CAST({first} AS DECIMAL(20,0)) END"

    def widen(self, table: str, column: str, kind: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {column} {self.type_of(kind)}"

    def index_parts(self, columns: Mapping[str, str]) -> str:
        # An index has at most 3072 bytes, and a character up to four.
        long = [kind for kind in columns.values() if kind in ("string", "binary")]
        left_bytes = INDEX_BYTES_MAX - FIXED_BYTES_MAX * (len(columns) - len(long))
        characters = max(min(left_bytes // 4 // max(len(long), 1), PREFIX_CHARACTERS_MAX), 1)
        return ", ".join(
            f"{named(name)}({characters})" if kind in ("string", "binary") else named(name)
            for name, kind in columns.items()
        )

    def drop_index(self, table: tuple[str, str], name: str) -> str:
        return f"DROP INDEX {named(name)} ON {named(table[0])}.{named(table[1])}"

    def copy_empty(self, table: str, copy: str) -> str:
        return f"CREATE TABLE {copy} LIKE {table}"

    def native_types(self, version: str) -> frozenset[str]:
        found = re.match(r"(\d+)\.(\d+).*mariadb", version, re.IGNORECASE)
        # MySQL has none of them.
        number = (int(found[1]), int(found[2])) if found else (0, 0)
        return frozenset(kind for kind, since in _MARIADB_SINCE.items() if number >= since)


class PostgreSqlDialect(Dialect):
    """PostgreSQL."""

    __slots__ = ()

    def make_schema(self, name: str) -> str:
        return f"CREATE SCHEMA IF NOT EXISTS {named(name)}"

    def read(self, text: str, kind: str) -> str:
        if kind == "binary":
            return f"decode({text}, 'hex')"
        if kind == "string":
            return text
        if kind == "timestamp":
            text = f"{text} || '+00'"
        return f"CAST({text} AS {self.type_of(kind)})"

    def text_of(self, column: str, kind: str) -> str:
        if kind == "binary":
            return f"encode({column}, 'hex')"
        if kind == "timestamp":
            return f"CAST({column} AT TIME ZONE 'UTC' AS text)"
        if kind in ("inet4", "inet6"):
            # A cast would add the length of the network.
            return f"host({column})"
        return f"CAST({column} AS text)"

    def delete_joined(self, table: str, other: str, condition: str) -> str:
        return f"DELETE FROM {table} AS t USING {other} AS s WHERE {condition.format(t='t', s='s')}"

    def first_of_key(self, key: str) -> str:
        first = f"(CAST({key} AS json) ->> 0)"
        return f"CASE WHEN {first} ~ '{_WHOLE}' THEN CAST({first} AS numeric) END"

    def widen(self, table: str, column: str, kind: str) -> str:
        new_type = self.type_of(kind)
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {new_type} USING CAST({column} AS {new_type})"

    def index_parts(self, columns: Mapping[str, str]) -> str:
        return ", ".join(map(named, columns))

    def drop_index(self, table: tuple[str, str], name: str) -> str:
        return f"DROP INDEX {named(table[0])}.{named(name)}"

    def copy_empty(self, table: str, copy: str) -> str:
        return f"CREATE TABLE {copy} (LIKE {table} INCLUDING ALL)"


INDEX_BYTES_MAX: Final = 3072
FIXED_BYTES_MAX: Final = 20
"""The size of the largest value of a type other than texts and bytes."""
PREFIX_CHARACTERS_MAX: Final = 190
_MARIADB_SINCE: Final = {"inet6": (10, 5), "uuid": (10, 7), "inet4": (10, 10)}

_COMMON: Final = {"tinyint": "smallint", "smallint": "smallint", "bigint": "bigint", "date": "date"}

DIALECTS: Final[Mapping[str, Dialect]] = {
    "jdbc:mariadb:": MariaDbDialect(
        name="the database",
        driver="org.mariadb.jdbc.Driver",
        package="org.mariadb.jdbc:mariadb-java-client:3.5.6",
        settings={
            "sessionVariables": "sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES',"
            "time_zone='+00:00'",
        },
        types={
            **_COMMON,
            "int": "int",
            "float": "float",
            "double": "double",
            "string": "longtext CHARACTER SET utf8mb4",
            "binary": "longblob",
            "timestamp_ntz": "datetime(6)",
            # In UTC: a timestamp of MariaDB ends in 2038.
            "timestamp": "datetime(6)",
            "uuid": "uuid",
            "inet4": "inet4",
            "inet6": "inet6",
        },
        identity="varchar({}) CHARACTER SET ascii COLLATE ascii_bin",
        own_columns="DEFAULT {} INVISIBLE",
        name_bytes_max=256,
        own_schemas=re.compile("(?i:information_schema|performance_schema|mysql|sys|metaq_mirror)"),
        indexes="SELECT index_name FROM information_schema.statistics"
        " WHERE table_schema = ? AND table_name = ?",
        # sql_require_primary_key of MySQL, and clusters of both, require a key.
        numbered='"number" bigint NOT NULL AUTO_INCREMENT PRIMARY KEY',
    ),
    "jdbc:postgresql:": PostgreSqlDialect(
        name="PostgreSQL",
        driver="org.postgresql.Driver",
        package="org.postgresql:postgresql:42.7.8",
        settings={"reWriteBatchedInserts": "true"},
        types={
            **_COMMON,
            "int": "integer",
            "float": "real",
            "double": "double precision",
            "string": "text",
            "binary": "bytea",
            "timestamp_ntz": "timestamp(6)",
            "timestamp": "timestamp(6) with time zone",
            "uuid": "uuid",
            "inet4": "inet",
            "inet6": "inet",
        },
        identity='varchar({}) COLLATE "C"',
        own_columns="",
        name_bytes_max=63,
        own_schemas=re.compile("information_schema|pg_.*|metaq_mirror", re.DOTALL),
        indexes="SELECT indexname FROM pg_indexes WHERE schemaname = ? AND tablename = ?",
        refuses_nul=True,
    ),
}


def dialect_of(url: str) -> Dialect | None:
    return next((found for prefix, found in DIALECTS.items() if url.startswith(prefix)), None)
