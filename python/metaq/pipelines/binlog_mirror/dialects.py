"""The SQL dialects of the databases that can hold mirrors.

Names are quoted as in standard SQL; the settings make MariaDB and MySQL accept that.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.pipelines.binlog_mirror.errors import MirrorError

_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")


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
    """Column types by Spark's types; `decimal` is the same in both."""
    identity: str
    """A text type that is compared byte by byte; `{}` is its length."""
    own_columns: str
    """Options that keep the mirror's own columns out of `SELECT *`, if the database has them."""
    name_bytes_max: int
    numbered: str = ""
    """A numbering column as primary key, for servers that may require one in every table."""

    def type_of(self, kind: str) -> str:
        return kind if _DECIMAL.fullmatch(kind) else self.types[kind]

    def require_name(self, name: str) -> None:
        """Raises MirrorError if a name is too long: PostgreSQL would truncate it, and confuse two names."""
        if len(name.encode()) > self.name_bytes_max:
            raise MirrorError(
                f"{name} is too long a name for {self.name}: the limit is {self.name_bytes_max} bytes",
                hint="list the table in source.exclude",
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
    def widen(self, table: str, column: str, kind: str) -> str:
        """Returns a statement that changes a column to a type that holds all its values."""

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

    def widen(self, table: str, column: str, kind: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {column} {self.type_of(kind)}"


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
        return f"CAST({column} AS text)"

    def delete_joined(self, table: str, other: str, condition: str) -> str:
        return f"DELETE FROM {table} AS t USING {other} AS s WHERE {condition.format(t='t', s='s')}"

    def widen(self, table: str, column: str, kind: str) -> str:
        new_type = self.type_of(kind)
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {new_type} USING CAST({column} AS {new_type})"


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
        },
        identity="varchar({}) CHARACTER SET ascii COLLATE ascii_bin",
        own_columns="DEFAULT {} INVISIBLE",
        name_bytes_max=256,
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
        },
        identity='varchar({}) COLLATE "C"',
        own_columns="",
        name_bytes_max=63,
    ),
}


def dialect_of(url: str) -> Dialect | None:
    return next((found for prefix, found in DIALECTS.items() if url.startswith(prefix)), None)
