"""Writes an archive of the classes of Apache's servers, so that they start with half the work.

python -m tests.support.apache_archive
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import metaq
from tests.support.apache import SHORT_LIVED, archive, start_broker, start_nameserver
from tests.support.waiting import wait_until


def write_archive() -> None:
    """Writes the archive unless it is there: the JVM of a broker does it when it ends."""
    if archive().exists():
        return
    fresh = archive().with_name(f".classes-{os.getpid()}.jsa")
    with tempfile.TemporaryDirectory() as home:
        names = start_nameserver(Path(home) / "names", jvm_flags=SHORT_LIVED)
        try:
            flags = (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={fresh}")
            broker = start_broker(Path(home) / "broker", [names.address], jvm_flags=flags)
            try:
                wait_until(lambda: _has_taken_a_message(names.address))
            finally:
                broker.stop()
        finally:
            names.stop()
    fresh.replace(archive())


def _has_taken_a_message(nameserver: str) -> bool:
    with metaq.Client(nameserver) as client, client.producer("archive", timeout=1) as producer:
        try:
            producer.send("archive", b"x")
        except metaq.MetaqError:
            return False
    return True


if __name__ == "__main__":
    write_archive()
