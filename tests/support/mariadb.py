"""A real MariaDB on a directory of its own, with a binlog that pipelines can read."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pymysql

from tests.support.processes import Child, ToolMissing, free_port

USER, PASSWORD = "metaq", "se'cret-of-the-test"
_START_TIMEOUT_S = 120


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")
    if found is None:
        raise ToolMissing(f"`{name}` is needed by these tests; scripts/require.sh mariadb installs it")
    return found


class MariaDb:
    """One server, stopped by its id. Its socket has a short path of its own, as those are limited."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "mariadb"
        self._sockets = Path(tempfile.mkdtemp(prefix="mq"))
        self.socket = str(self._sockets / "s")
        self.port = free_port()
        self._runs = 0
        subprocess.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={self.data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                f"--user={getpass.getuser()}",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        self.child = self._start()
        with self.root() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (USER, PASSWORD))
            cursor.execute("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO %s@'%%'", (USER,))

    def _start(self) -> Child:
        self._runs += 1
        child = Child(
            [
                _program("mariadbd"),
                "--no-defaults",
                f"--user={getpass.getuser()}",
                f"--datadir={self.data}",
                f"--socket={self.socket}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--server-id=7",
                "--log-bin=binlog",
                "--binlog-format=ROW",
                "--binlog-row-metadata=FULL",
                # So small that tests come to another file.
                "--max-binlog-size=1M",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=32M",
                "--innodb-flush-log-at-trx-commit=2",
                "--sync-binlog=0",
                "--performance-schema=OFF",
                "--character-set-server=utf8mb4",
                "--default-time-zone=+05:30",
            ],
            self.home / f"mariadb-{self._runs}.log",
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with self.root():
                    return child
            except pymysql.OperationalError:
                if not child.alive or time.monotonic() > deadline:
                    raise RuntimeError(f"MariaDB did not start\n{child.tail()}") from None
                time.sleep(0.05)

    def root(self, **settings: Any) -> Any:
        """A connection that may do everything; a context manager."""
        return pymysql.connect(
            unix_socket=self.socket, user="root", charset="utf8mb4", autocommit=True, **settings
        )

    def execute(self, *statements: str) -> None:
        with self.root() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def kill(self) -> None:
        """As a crash does."""
        self.child.kill()

    def restart(self) -> None:
        if self.child.alive:
            self.child.stop(60)
        self.child = self._start()

    def stop(self) -> None:
        if self.child.alive:
            self.child.stop(60)
        shutil.rmtree(self._sockets, ignore_errors=True)
