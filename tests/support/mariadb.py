"""A real MariaDB."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from typing import Any

from tests.support.database import Database
from tests.support.processes import ToolMissing


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")
    if found is None:
        raise ToolMissing(f"`{name}` is needed by these tests; scripts/require.sh mariadb installs it")
    return found


class MariaDb(Database):
    """The MariaDB that is installed on this machine."""

    name = "mariadb"
    rights = "SELECT, REPLICATION SLAVE, BINLOG MONITOR"

    def _install(self) -> None:
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

    def _command(self) -> list[str]:
        return [
            _program("mariadbd"),
            "--no-defaults",
            f"--user={getpass.getuser()}",
            "--binlog-format=ROW",
            "--innodb-log-file-size=32M",
        ]

    def executed(self, cursor: Any) -> int:
        cursor.execute("SELECT @@gtid_binlog_pos")
        (gtid,) = cursor.fetchone()
        return self.number(gtid)

    @staticmethod
    def number(gtid: str) -> int:
        return int(gtid.rpartition("-")[2] or 0)
