"""Connections to a database through the drivers of the JVM that Spark runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from metaq.pipelines.mirror.databases import Database
from metaq.pipelines.mirror.errors import MirrorError


@dataclass(frozen=True, slots=True)
class JdbcConfig:
    """Checked. The password shows nowhere."""

    url: str = field(repr=False)
    user: str | None
    password: str = field(repr=False)
    database: Database

    @property
    def place(self) -> str:
        """For people, without what may be secret."""
        return self.url.partition("?")[0]

    def options(self) -> dict[str, str]:
        """Of Spark's own reader and writer, which do not show them either."""
        user = {} if self.user is None else {"user": self.user, "password": self.password}
        return {"url": self.url, "driver": self.database.driver, **user, **self.database.settings}


class Connection:
    """One transaction at a time. Parameters and values are texts and numbers."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, *parameters: str | int) -> int:
        """How many rows it has changed."""
        with self._prepared(statement, parameters) as prepared:
            return int(prepared.executeUpdate())

    def query(self, statement: str, *parameters: str | int) -> list[tuple[str | None, ...]]:
        """Every value as text."""
        with self._prepared(statement, parameters) as prepared:
            found = prepared.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getString(number) for number in range(1, width + 1)))
            return rows

    @contextmanager
    def _prepared(self, statement: str, parameters: tuple[str | int, ...]) -> Iterator[Any]:
        prepared = self._connection.prepareStatement(statement)
        try:
            for number, value in enumerate(parameters, start=1):
                if isinstance(value, int):
                    prepared.setLong(number, value)
                else:
                    prepared.setString(number, value)
            yield prepared
        finally:
            prepared.close()


@contextmanager
def transaction(spark: SparkSession, config: JdbcConfig) -> Iterator[Connection]:
    """Committed at its end, or nothing of it; raises MirrorError with what the database says."""
    jvm: Any = spark.sparkContext._jvm
    with _errors(config):
        # Drivers come with jars that only Spark's class loader knows.
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(config.database.driver)
        properties = jvm.java.util.Properties()
        for name, value in config.options().items():
            if name not in ("url", "driver"):
                properties.setProperty(name, value)
        connection = jvm.java.sql.DriverManager.getConnection(config.url, properties)
    try:
        with _errors(config):
            connection.setAutoCommit(False)
            yield Connection(connection)
            connection.commit()
    finally:
        # Takes back what was not committed.
        connection.close()


@contextmanager
def _errors(config: JdbcConfig) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        said = error.java_exception.getMessage()
        raise MirrorError(f"{config.database.name} says: {said}") from error
