"""Connections to the target database, through JDBC drivers in the JVM of Spark."""

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

from metaq.pipelines.binlog_mirror.dialects import Dialect
from metaq.pipelines.binlog_mirror.errors import DatabaseError

_SECRET: Final = re.compile("pass|pwd|secret|token", re.IGNORECASE)
_CAUSE: Final = re.compile(r"^(?:Caused by: |.*?\): )[\w.$]+(?:Exception|Error): (.*)$", re.MULTILINE)
"""The causes in a text of Spark about a failed task."""
_CONNECTION: Final = re.compile(r"^\(conn=-?\d+\) ")
"""MariaDB's driver puts the number of the connection before a message."""
_NO_KEY: Final = "RSA public key is not available"
_KEY_HINT: Final = (
    "MySQL needs an encrypted connection for the password (sslMode=verify-full in jdbc.url, or trust), or"
    " serverRsaPublicKeyFile, or, on a trusted network, allowPublicKeyRetrieval=true"
)


@dataclass(frozen=True, slots=True)
class JdbcConfig:
    """Checked settings. `repr` hides the password and the URL, which may contain one."""

    url: str = field(repr=False)
    user: str | None
    password: str = field(repr=False)
    dialect: Dialect

    @property
    def address(self) -> str:
        """The URL without its settings, which may be secret."""
        return self.url.partition("?")[0]

    def without_secrets(self, text: str) -> str:
        """Hides secrets in a text of a driver, which may quote the URL."""
        text = text.replace(self.url, self.address)
        settings = (part.partition("=") for part in self.url.partition("?")[2].split("&"))
        secrets = [value for name, _, value in settings if _SECRET.search(name)]
        for secret in (self.password, *secrets, *map(unquote, secrets)):
            if secret:
                text = text.replace(secret, "***")
        return text

    def options(self) -> dict[str, str]:
        """Returns the options of Spark's JDBC reader and writer, which hide secrets too."""
        user = {} if self.user is None else {"user": self.user, "password": self.password}
        return {"url": self.url, "driver": self.dialect.driver, **user, **self.dialect.settings}


class Connection:
    """Runs statements in the current transaction. Parameters are texts and numbers."""

    def __init__(self, connection: Any, config: JdbcConfig) -> None:
        self._connection = connection
        self._config = config

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undoes the statements of the block if the database refuses a row; raises DatabaseError."""
        self.execute("SAVEPOINT attempt")
        try:
            with driver_errors(self._config):
                yield
        except DatabaseError as error:
            # After other errors, such as a deadlock, the database may have undone the whole transaction.
            if error.is_refusal:
                self.execute("ROLLBACK TO SAVEPOINT attempt")
            raise
        self.execute("RELEASE SAVEPOINT attempt")

    def execute(self, statement: str, *parameters: str | int) -> int:
        """Runs a statement; returns the number of changed rows."""
        with self._prepared(statement, parameters) as prepared:
            return int(prepared.executeUpdate())

    def query(self, statement: str, *parameters: str | int) -> list[tuple[str | None, ...]]:
        """Runs a query; returns every value as text."""
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
    """Commits at the end of the block, or rolls back; raises DatabaseError with the database's message."""
    jvm: Any = spark.sparkContext._jvm
    with driver_errors(config):
        # Only Spark's class loader knows the jars of the drivers.
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(config.dialect.driver)
        properties = jvm.java.util.Properties()
        for name, value in config.options().items():
            if name not in ("url", "driver"):
                properties.setProperty(name, value)
        connection = jvm.java.sql.DriverManager.getConnection(config.url, properties)
    try:
        with driver_errors(config):
            connection.setAutoCommit(False)
            yield Connection(connection, config)
            connection.commit()
    finally:
        # This rolls back an open transaction.
        connection.close()


@contextmanager
def driver_errors(config: JdbcConfig) -> Iterator[None]:
    """Raises DatabaseError with the database's message, without secrets."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        message = _CONNECTION.sub("", config.without_secrets(root_cause(error)))
        hint = _KEY_HINT if _NO_KEY in message else ""
        # No chaining: the original text has the secrets.
        state, number = _sql_state(error)
        raise DatabaseError(
            f"{config.dialect.name} reports: {message}", hint=hint, state=state, number=number
        ) from None


def _sql_state(error: Py4JJavaError | PySparkException) -> tuple[str, int]:
    """Returns the SQLSTATE and the number of an error; empty and 0 if it is not one of a database."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    while cause is not None:
        if hasattr(cause, "getSQLState"):
            return str(cause.getSQLState() or ""), int(cause.getErrorCode())
        cause = cause.getCause()
    return "", 0


def root_cause(error: Py4JJavaError | PySparkException) -> str:
    """Returns the message of the innermost cause."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if cause is None:
        return str(error)
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    text = str(cause.getMessage() or cause.toString())
    causes = _CAUSE.findall(text)
    return causes[-1] if causes else text
