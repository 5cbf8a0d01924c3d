"""A `metaq serve` that is meant to have a hard life: killed, starved, restarted on the same store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.metaq import COMMAND, READY, READY_TIMEOUT_S
from tests.support.plain_client import PlainClient
from tests.support.processes import Child

KIB, MIB = 1024, 1024 * 1024

# Files so small that a short test rolls through many of them.
SMALL_FILES: Mapping[str, object] = {
    "commit_log_file_bytes": MIB,
    "consume_queue_file_entries": 1_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "allocation_step_bytes": 256 * KIB,
}


class Serving:
    """One process. Several may follow each other on the same data, each with its own log under `home`."""

    def __init__(
        self,
        home: Path,
        data: Path,
        *,
        flush: str = "sync",
        settings: Mapping[str, object] = SMALL_FILES,
        prefix: Sequence[str] = (),
        wait: bool = True,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        number = len(list(home.glob("serve-*.log")))
        sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.data = data
        self.broker = self.nameserver = ""
        self.child = Child(
            [
                *prefix,
                *COMMAND,
                "serve",
                *("--host", "127.0.0.1", "--namesrv-port", "0", "--broker-port", "0"),
                *("--data", str(data), "--flush", flush),
                *sets,
            ],
            home / f"serve-{number:03}.log",
        )
        if wait:
            self.wait_ready()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            ended = self.child.process.poll()
            print(
                "still running" if ended is None else f"it had ended with {ended}",
                self.child.tail(),
                sep="\n",
            )
        if self.child.alive:
            self.kill()

    def wait_ready(self) -> None:
        try:
            line = self.child.wait_for(_ready_line, READY_TIMEOUT_S, "ready line")
        except BaseException:
            self.kill()
            raise
        ready = json.loads(line)
        self.broker, self.nameserver = ready["broker"], ready["nameserver"]

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def connect(self, timeout_s: float = 60.0) -> PlainClient:
        return PlainClient(self.broker, timeout_s)

    def kill(self) -> None:
        self.child.kill()

    def stop(self) -> int:
        return self.child.stop()

    def log(self) -> str:
        return self.child.log.read_text(errors="replace")


def _ready_line(log: str) -> str | None:
    for line in log.splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            return line.removeprefix(READY)
    return None
