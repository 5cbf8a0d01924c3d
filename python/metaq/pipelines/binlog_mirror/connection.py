"""Connections to a database through the drivers of the JVM that Spark runs in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metaq.pipelines.binlog_mirror.databases import Database
from metaq.pipelines.binlog_mirror.errors import MirrorError

_SECRET: Final = re.compile("pass|pwd|secret|token", re.IGNORECASE)
_CAUSE: Final = re.compile(r"^(?:Caused by: |.*?\): )[\w.$]+(?:Exception|Error): (.*)$", re.MULTILINE)
"""In a text of Spark on a task that has failed."""
_NO_KEY: Final = "RSA public key is not available"
_KEY_HINT: Final = (
    "MySQL takes a password on an encrypted connection (sslMode=verify-full in jdbc.url, or trust), with"
    " serverRsaPublicKeyFile, or with allowPublicKeyRetrieval=true where nobody else is on the network"
)


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

    def without_secrets(self, text: str) -> str:
        """What a driver says may have the URL in it, and that a password."""
        text = text.replace(self.url, self.place)
        settings = (part.partition("=") for part in self.url.partition("?")[2].split("&"))
        secrets = [value for name, _, value in settings if _SECRET.search(name)]
        for secret in (self.password, *secrets, *map(unquote, secrets)):
            if secret:
                text = text.replace(secret, "***")
        return text

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
    with driver_errors(config):
        # Drivers come with jars that only Spark's class loader knows.
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(config.database.driver)
        properties = jvm.java.util.Properties()
        for name, value in config.options().items():
            if name not in ("url", "driver"):
                properties.setProperty(name, value)
        connection = jvm.java.sql.DriverManager.getConnection(config.url, properties)
    try:
        with driver_errors(config):
            connection.setAutoCommit(False)
            yield Connection(connection)
            connection.commit()
    finally:
        # Takes back what was not committed.
        connection.close()


@contextmanager
def driver_errors(config: JdbcConfig) -> Iterator[None]:
    """Raises MirrorError with what the database says, and no secrets."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        said = config.without_secrets(root_cause(error))
        # Not from that error, whose own text has them.
        hint = _KEY_HINT if _NO_KEY in said else ""
        raise MirrorError(f"{config.database.name} says: {said}", hint=hint) from None


def root_cause(error: Py4JJavaError | PySparkException) -> str:
    """Without the calls and tasks that it came through."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if cause is None:
        return str(error)
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    text = str(cause.getMessage() or cause.toString())
    causes = _CAUSE.findall(text)
    return causes[-1] if causes else text
