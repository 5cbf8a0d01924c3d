"""A real PostgreSQL on a directory of its own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.processes import Child, ToolMissing, free_port

USER, PASSWORD, DATABASE = "metaq", "a'secret of the test", "postgres"
_START_TIMEOUT_S = 120


def _program(name: str) -> str:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, places)))
    if found is None:
        raise ToolMissing(f"`{name}` is needed by these tests; scripts/require.sh postgresql installs it")
    return found


class PostgreSql:
    """One server, stopped by its id. It refuses to run as root, who runs it as the user of its package."""

    def __init__(self, home: Path) -> None:
        # The server runs as its own user, who cannot enter `home`.
        self._place = Path(tempfile.mkdtemp(prefix="pg"))
        self._as_user: list[str] = []
        secret = self._place / "password"
        secret.write_text(PASSWORD)
        if getpass.getuser() == "root":
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
            for path in (self._place, secret):
                shutil.chown(path, "postgres", "postgres")
        self.port = free_port()
        data = self._place / "data"
        made = subprocess.run(
            [
                *(*self._as_user, _program("initdb"), f"--pgdata={data}", f"--username={USER}"),
                *(f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"),
                # Texts are in another order than bytes, as on most servers.
                *("--locale-provider=icu", "--icu-locale=en", "--locale=C.UTF-8"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            timeout=120,
        )
        assert made.returncode == 0, made.stdout
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._place),
            "fsync": "off",
            "timezone": "Asia/Kolkata",
        }
        self.child = Child(
            [
                *(*self._as_user, _program("postgres"), "-D", str(data)),
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            home / "postgresql.log",
            directory=Path("/"),
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._psql("SELECT 1").returncode != 0:
            if not self.child.alive or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start\n{self.child.tail()}")
            time.sleep(0.1)

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{DATABASE}"

    def rows(self, query: str) -> list[dict[str, Any]]:
        done = self._psql(f"SELECT coalesce(json_agg(found), '[]') FROM ({query}) AS found")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def execute(self, statement: str) -> None:
        done = self._psql(statement)
        assert done.returncode == 0, done.stderr

    def _psql(self, statement: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(_program("psql"), "--no-psqlrc", "--no-align", "--tuples-only", "--host=127.0.0.1"),
                *(
                    f"--port={self.port}",
                    f"--username={USER}",
                    f"--dbname={DATABASE}",
                    "--command",
                    statement,
                ),
            ],
            env={**os.environ, "PGPASSWORD": PASSWORD, "PGTZ": "UTC"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def stop(self) -> None:
        if self.child.alive:
            # SIGTERM would wait for connections that a test has left.
            self.child.process.send_signal(signal.SIGINT)
            self.child.process.wait(60)
        shutil.rmtree(self._place, ignore_errors=True)
