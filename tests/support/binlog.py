"""Runs binlog-sync as a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metaq.pipelines.binlog_sync.writing.state import StateFile
from tests.support.database import USER, Database
from tests.support.metaq import COMMAND
from tests.support.processes import Child
from tests.support.reading import eventually

QUEUES = 4
WAIT_S = 120
"""A generous limit: on a busy machine, starting a process alone takes many seconds."""


def write_config(path: Path, server: Database, nameserver: str, database: str, **more: str) -> Path:
    """Writes a TOML file for all tables of a database; `more` are additional lines of a section."""
    path.write_text(
        f"""
[source]
host = "127.0.0.1"
port = {server.port}
user = "{USER}"
password_env = "TEST_DATABASE_PASSWORD"
tables = ["{database}.*"]
{more.get("source", "")}
[topic]
namesrv = "{nameserver}"
name = "{database}"
queues = {QUEUES}
{more.get("topic", "")}
[snapshot]
chunk_rows = 50
{more.get("snapshot", "")}
[state]
file = "state/{database}.json"
save_interval_s = 0.1
""",
        encoding="utf-8",
    )
    return path


class Running:
    """A process of `metaq pipeline run binlog-sync`, and its reports."""

    def __init__(self, config: Path) -> None:
        self._config = config
        number = len(list(config.parent.glob("run-*.log")))
        self.child = Child(
            [*COMMAND, "pipeline", "run", "binlog-sync", "--config", str(config), "-o", "json"],
            config.parent / f"run-{number:03}.log",
        )

    def reports(self) -> list[dict[str, Any]]:
        lines = self.child.log.read_text(errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    @property
    def rows(self) -> int:
        """The number of acknowledged rows in its last report."""
        return max((report["rows"] for report in self.reports()), default=0)

    def wait_for_rows(self) -> None:
        def found() -> bool:
            assert self.child.alive, self.child.tail()
            return self.rows > 0

        eventually(found, WAIT_S)

    def wait_for_phase(self, phase: str) -> None:
        def found() -> bool:
            assert self.child.alive, self.child.tail()
            return any(report["phase"] == phase for report in self.reports())

        eventually(found, WAIT_S)

    def wait_until_at(self, server: Database) -> None:
        """Waits until everything that the server has committed by now is acknowledged and saved."""
        wanted = server.committed()

        def there() -> bool:
            assert self.child.alive, self.child.tail()
            reports = self.reports()
            return bool(reports) and server.number(reports[-1]["details"]["gtid"]) >= wanted

        eventually(there, WAIT_S)

    def wait_until_read(self, server: Database) -> None:
        """Waits until the state file says the same, and no snapshot is left."""
        self.wait_for_phase("following")
        wanted = server.committed()
        (path,) = (self._config.parent / "state").glob("*.json")
        file = StateFile(path)

        def read() -> bool:
            assert self.child.alive, self.child.tail()
            state = file.load()
            return (
                state is not None
                and bool(state.tables)
                and server.number(state.gtid) >= wanted
                and all(table.cursor is None or table.cursor.done for table in state.tables.values())
            )

        eventually(read, WAIT_S)

    def stop(self) -> None:
        assert self.child.stop() == 0, self.child.tail()

    def kill(self) -> None:
        self.child.kill()
