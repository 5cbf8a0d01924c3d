"""`metaq dev cluster` as a child process, and the questions that tests ask of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from metaq.cli.exits import UNHEALTHY
from tests.support.metaq import Metaq, run
from tests.support.waiting import eventually

READY_TIMEOUT_S = 120


class DevCluster:
    """A running cluster. Its state is read from `cluster.json`, as a program would do it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.data = home / "cluster"
        self.process = Metaq("dev", "cluster", "--data", str(self.data), *arguments, home=home)
        self.ready: dict[str, Any] = dict(self.process.ready)
        self.register = f"etcd://{','.join(self.ready['register'])}"
        self.nameservers = ";".join(self.ready["nameservers"])

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "cluster.json").read_bytes())
        return found

    def pid(self, node_id: int, group: str = "broker-a") -> int:
        [pid] = [
            node["pid"] for node in self.state["nodes"] if (node["group"], node["id"]) == (group, node_id)
        ]
        return int(pid)

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command that uses the register."""
        return run(*arguments, text=text, METAQ_REGISTER=self.register, METAQ_NAMESRV=self.nameservers)

    def document(self, *arguments: str) -> dict[str, Any]:
        outcome = self.run(*arguments, "-o", "json")
        assert outcome.returncode in (0, UNHEALTHY), outcome.stderr
        found: dict[str, Any] = json.loads(outcome.stdout)
        return found

    def status(self, group: str = "broker-a") -> dict[str, Any]:
        [found] = [one for one in self.document("cluster", "status")["groups"] if one["name"] == group]
        return dict(found)

    def wait_in_sync(self, *node_ids: int) -> dict[str, Any]:
        """Waits until exactly these nodes are in sync and one of them is master. Returns the status."""

        def is_well(status: dict[str, Any]) -> bool:
            states = {node["id"]: node["state"] for node in status["nodes"]}
            in_sync = {node_id for node_id, state in states.items() if state == "in sync"}
            return in_sync == set(node_ids) == set(status["in_sync"]) and status["master"] in in_sync

        return eventually(self.status, is_well, READY_TIMEOUT_S, f"in sync: {node_ids}")

    def log(self) -> str:
        return self.process.child.log.read_text(errors="replace")

    def pids(self) -> list[int]:
        """Returns the processes that the cluster started and that still run."""
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if str(self.data).encode() in _read(path) and int(path.parent.name) != self.process.pid
        ]

    def __enter__(self) -> DevCluster:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            print(self.process.child.tail())
            for log in sorted((self.data / "logs").glob("*.log")):
                print(f"--- {log} ---", *log.read_text(errors="replace").splitlines()[-30:], sep="\n")
        if self.process.child.alive:
            self.process.stop()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
