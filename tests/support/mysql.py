"""A real MySQL: the one on the PATH, or Debian's, which scripts/mysql.py fetches."""

from __future__ import annotations

import getpass
import re
import subprocess
from typing import Any

from tests.support.database import Database
from tests.support.processes import ToolMissing
from tests.support.scripts import load_script


class MySql(Database):
    """MySQL with GTIDs, which are off by default."""

    name = "mysql"
    rights = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"

    def _program(self) -> list[str]:
        command = load_script("mysql").command()
        if command is None:
            raise ToolMissing("MySQL is needed by these tests; scripts/mysql.py fetches it")
        return [*command, f"--user={getpass.getuser()}", "--secure-file-priv="]

    def _install(self) -> None:
        made = subprocess.run(
            [*self._program(), f"--datadir={self.data}", "--initialize-insecure"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert made.returncode == 0, made.stdout

    def _command(self) -> list[str]:
        return [
            *self._program(),
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--mysqlx=OFF",
            f"--pid-file={self.data / 'pid'}",
            "--loose-innodb-redo-log-capacity=64M",
        ]

    def executed(self, cursor: Any) -> int:
        cursor.execute("SELECT @@gtid_executed")
        (gtids,) = cursor.fetchone()
        return self.number(gtids)

    @staticmethod
    def number(gtid: str) -> int:
        """Counts over all servers and tags; there are no gaps once everything is committed."""
        found = re.findall(r":(\d+)(?:-(\d+))?(?=[:,\s]|$)", gtid)
        return sum(int(last or first) - int(first) + 1 for first, last in found)
