"""A real MySQL: the one on the PATH, or that of Debian which scripts/mysql.py has fetched."""

from __future__ import annotations

import getpass
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.database import Database
from tests.support.processes import ToolMissing

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mysql.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_mysql", _SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class MySql(Database):
    """With GTIDs, which servers have off where nobody sets them."""

    name = "mysql"
    rights = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"

    def _program(self) -> list[str]:
        command = _script().command()
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
        """Counts over all servers and tags; none has gaps once everything is committed."""
        found = re.findall(r":(\d+)(?:-(\d+))?(?=[:,\s]|$)", gtid)
        return sum(int(last or first) - int(first) + 1 for first, last in found)
