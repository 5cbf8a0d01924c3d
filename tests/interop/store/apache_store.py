"""Apache's own message store as a program: ApacheStore.java on Apache's class path."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.programs import compiled
from tests.support.apache import SHORT_LIVED, apache_classpath, java_command

SOURCE = Path(__file__).with_name("ApacheStore.java")
TIMEOUT_S = 170

# The same as in ApacheStore.java: so small that every kind of file rolls.
SETTINGS: dict[str, int] = {
    "commit_log_file_bytes": 64 * 1024,
    "consume_queue_file_entries": 50,
    "index_slots": 101,
    "index_entries": 400,
}

Facts = dict[str, Any]
"""One message: every field of its record by name; the body in hex, hosts as hex address and port."""


@dataclass(frozen=True)
class Queue:
    """One queue as Apache's store reports it."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: list[Facts]
    """With `first_not_before` and `last_not_after`, the offsets found by the message's store time, and
    `found_by_key`: key → physical offsets."""


def _option(checksums: bool) -> list[str]:
    return ["checksums"] if checksums else []


class ApacheStore:
    """One store directory, opened by a process of its own for every call."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.directory = directory
        self._home = home

    def write(self, seed: str, *, crash: bool = False, checksums: bool = False) -> list[Facts]:
        """Appends messages of every shape; `seed` makes their bodies and keys differ from other calls'."""
        command = "crash" if crash else "write"
        written: list[Facts] = self._run(command, seed, *_option(checksums))["written"]
        return written

    def read(self, *, checksums: bool = False) -> list[Queue]:
        """Reads everything; with `checksums`, Apache's recovery requires each record's own checksum."""
        return [Queue(**queue) for queue in self._run("read", *_option(checksums))["queues"]]

    def verify(self) -> dict[int, bool]:
        """Returns whether Apache finds the checksum of each record right, by physical offset."""
        verified = self._run("verify", *_option(True))["verified"]
        return {int(physical_offset): is_right for physical_offset, is_right in verified.items()}

    def _run(self, command: str, *arguments: str) -> dict[str, Any]:
        classes = compiled([SOURCE], apache_classpath(), "store-classes")
        outcome = subprocess.run(
            java_command(
                "ApacheStore",
                self._home,
                *(command, str(self.directory), *arguments),
                heap="256m",
                jvm_flags=SHORT_LIVED,
                classes=[classes],
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if outcome.returncode != 0:
            raise RuntimeError(f"Apache's store could not {command}:\n{outcome.stderr[-4000:]}")
        told: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
        return told
