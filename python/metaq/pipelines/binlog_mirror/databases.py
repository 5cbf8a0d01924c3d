"""Databases that can hold mirrors, and where their SQL differs.

Names are quoted as the standard says: MariaDB and MySQL are told to read them so.
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
class Database(ABC):
    """One kind of database."""

    name: str
    driver: str
    package: str
    """Of Maven Central."""
    settings: Mapping[str, str]
    """Of each connection."""
    types: Mapping[str, str] = field(repr=False)
    """By those of Spark, `decimal` being the same."""
    identity: str
    """A type of texts that are compared by their bytes."""
    own_columns: str
    """What keeps columns of ours out of `SELECT *`, where that can be."""
    name_bytes_max: int
    numbered: str = ""
    """A column that numbers the rows of a table without a key, where servers may want one of every table."""

    def type_of(self, kind: str) -> str:
        return kind if _DECIMAL.fullmatch(kind) else self.types[kind]

    def require_name(self, name: str) -> None:
        """Raises MirrorError. PostgreSQL would cut it off, and take two names for one."""
        if len(name.encode()) > self.name_bytes_max:
            raise MirrorError(f"{name} is too long a name for {self.name}", hint="source.exclude the table")

    @abstractmethod
    def make_schema(self, name: str) -> str:
        """Where tables of a database of the source are."""

    @abstractmethod
    def read(self, text: str, kind: str) -> str:
        """The value that a text is."""

    @abstractmethod
    def told(self, column: str, kind: str) -> str:
        """The text that messages would have of a value; of bytes their hexadecimal digits."""

    @abstractmethod
    def delete_joined(self, table: str, other: str, condition: str) -> str:
        """Rows of a table, `{t}` in the condition, for which there is a row `{s}` of the other one."""

    @abstractmethod
    def widen(self, table: str, column: str, kind: str) -> str:
        """A type for a column that holds all values in it."""

    def replace(self, table: str, column: str, kind: str) -> str:
        """A column of another type and without values: the reader brings them again."""
        return f"ALTER TABLE {table} DROP COLUMN {column}, ADD COLUMN {column} {self.type_of(kind)}"


class MariaDb(Database):
    """MariaDB, and MySQL through the same driver."""

    __slots__ = ()

    def make_schema(self, name: str) -> str:
        return f"CREATE DATABASE IF NOT EXISTS {named(name)} CHARACTER SET utf8mb4"

    def read(self, text: str, kind: str) -> str:
        return f"UNHEX({text})" if kind == "binary" else text

    def told(self, column: str, kind: str) -> str:
        if kind == "binary":
            return f"HEX({column})"
        # Printed, a FLOAT has six digits.
        return f"CAST(CAST({column} AS DOUBLE) AS CHAR)" if kind == "float" else f"CAST({column} AS CHAR)"

    def delete_joined(self, table: str, other: str, condition: str) -> str:
        # With other names for them it would look for both in one database.
        return f"DELETE {table} FROM {table} JOIN {other} ON {condition.format(t=table, s=other)}"

    def widen(self, table: str, column: str, kind: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {column} {self.type_of(kind)}"


class PostgreSql(Database):
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

    def told(self, column: str, kind: str) -> str:
        if kind == "binary":
            return f"encode({column}, 'hex')"
        if kind == "timestamp":
            return f"CAST({column} AT TIME ZONE 'UTC' AS text)"
        return f"CAST({column} AS text)"

    def delete_joined(self, table: str, other: str, condition: str) -> str:
        return f"DELETE FROM {table} AS t USING {other} AS s WHERE {condition.format(t='t', s='s')}"

    def widen(self, table: str, column: str, kind: str) -> str:
        told = self.type_of(kind)
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {told} USING CAST({column} AS {told})"


_COMMON: Final = {"tinyint": "smallint", "smallint": "smallint", "bigint": "bigint", "date": "date"}

DATABASES: Final[Mapping[str, Database]] = {
    "jdbc:mariadb:": MariaDb(
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
            # Of every year, and in UTC.
            "timestamp": "datetime(6)",
        },
        identity="varchar({}) CHARACTER SET ascii COLLATE ascii_bin",
        own_columns="DEFAULT {} INVISIBLE",
        name_bytes_max=256,
        # sql_require_primary_key of MySQL, and clusters of both kinds.
        numbered='"number" bigint NOT NULL AUTO_INCREMENT PRIMARY KEY',
    ),
    "jdbc:postgresql:": PostgreSql(
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


def database_of(url: str) -> Database | None:
    return next((found for prefix, found in DATABASES.items() if url.startswith(prefix)), None)
