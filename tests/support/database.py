"""Runs a real MariaDB or MySQL server in its own directory, with a binlog."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support.processes import Child, free_port

USER, PASSWORD = "metaq", "se'cret-of-the-test"
BOTH = pytest.mark.parametrize("server", ["mariadb", "mysql"], indirect=True)
"""Runs a test with both servers."""
_START_TIMEOUT_S = 120
OPTIONS = (
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--server-id=7",
    "--log-bin=binlog",
    "--binlog-row-metadata=FULL",
    # A small size, so that tests reach a second file.
    "--max-binlog-size=1M",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=2",
    "--sync-binlog=0",
    "--performance-schema=OFF",
    "--character-set-server=utf8mb4",
    "--default-time-zone=+05:30",
)


class Database(ABC):
    """One server. Its socket has a short path, because the length is limited."""

    name: str
    rights: str
    """The rights that binlog-sync needs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / self.name
        self._sockets = Path(tempfile.mkdtemp(prefix="mq"))
        self.socket = str(self._sockets / "s")
        self.port = free_port()
        self._runs = 0
        self._install()
        self.child = self._start()
        with self.root() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (USER, PASSWORD))
            cursor.execute(f"GRANT {self.rights} ON *.* TO %s@'%%'", (USER,))

    @abstractmethod
    def _install(self) -> None:
        """Creates the data directory."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Returns the command that starts the server, with the options that only it has."""

    @abstractmethod
    def executed(self, cursor: Any) -> int:
        """Returns the number of transactions in its binlog, or the number of the last one."""

    @staticmethod
    @abstractmethod
    def number(gtid: str) -> int:
        """Returns the same number for a position that the pipeline reports."""

    def _start(self) -> Child:
        self._runs += 1
        child = Child(
            [
                *self._command(),
                f"--datadir={self.data}",
                f"--socket={self.socket}",
                f"--port={self.port}",
                *OPTIONS,
            ],
            self.home / f"{self.name}-{self._runs}.log",
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with self.root():
                    return child
            except pymysql.OperationalError:
                if not child.alive or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start\n{child.tail()}") from None
                time.sleep(0.05)

    def root(self, **settings: Any) -> Any:
        """Returns a connection with all rights, which is a context manager."""
        return pymysql.connect(
            unix_socket=self.socket, user="root", charset="utf8mb4", autocommit=True, **settings
        )

    def execute(self, *statements: str) -> None:
        with self.root() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def committed(self) -> int:
        """Returns how far its binlog is by now."""
        with self.root() as connection, connection.cursor() as cursor:
            return self.executed(cursor)

    def kill(self) -> None:
        """Kills the server, like a crash."""
        self.child.kill()

    def restart(self) -> None:
        if self.child.alive:
            self.child.stop(60)
        self.child = self._start()

    def stop(self) -> None:
        if self.child.alive:
            self.child.stop(60)
        shutil.rmtree(self._sockets, ignore_errors=True)
