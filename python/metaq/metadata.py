"""Small files with a state that must not be lost: of a broker under `config/`, of name servers, of pipelines.

The state before stays as `.bak`. Apache's servers keep the same files under the same names, so either program
can take over the other's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from metaq.durable import replace_file
from metaq.errors import MetaqError
from metaq.protocol.errors import ProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T")


class MetadataDamaged(MetaqError):
    """Neither a metadata file nor its backup can be read; starting without it would forget what it held."""


class MetadataFile:
    """One such file and its backup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._whole = False
        """The file at `path` is known to be good, so it may become the backup."""
        self._version = 0
        self._one_at_a_time = threading.Lock()

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """What the file holds, or its backup where the file is missing or damaged; None where neither exists.

        `decode` raises ProtocolError or ValueError on what it cannot read. Raises MetadataDamaged where only
        damaged ones are left.
        """
        faults: list[str] = []
        for path in (self.path, self.backup):
            try:
                state = decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError, ProtocolError) as error:
                faults.append(f"{path}: {error}")
                continue
            self._whole = path == self.path
            if path == self.backup:
                why = faults[0] if faults else f"{self.path} is missing"
                log.warning("%s; its backup %s was read instead and may lack the last change", why, path)
            return state
        if faults:
            raise MetadataDamaged(
                f"metadata cannot be read: {'; '.join(faults)}",
                hint="put back a good copy, or move the damaged files away to start without what they held",
            )
        return None

    def write(self, content: bytes, version: int = 0) -> None:
        """Returns once the new content would survive a power failure; until then the old one would.

        May be called from several threads; content of an older version than the one written is passed over.
        """
        with self._one_at_a_time:
            if version >= self._version:
                replace_file(self.path, content, self._keep_backup)
                self._whole = True
                self._version = version

    def _keep_backup(self) -> None:
        if not self._whole:
            return
        # A second name for the old content costs nothing and is whole by construction.
        second_name = self.backup.with_name(self.backup.name + ".tmp")
        second_name.unlink(missing_ok=True)
        try:
            second_name.hardlink_to(self.path)
        except FileNotFoundError:
            return
        second_name.replace(self.backup)


class Keeper:
    """Brings a state that changes in memory to its file, many changes with one write.

    Whoever changes the state calls `touch` and then awaits `keep`, which returns once the change is on disk;
    those who come while a write is under way share the next one.
    """

    def __init__(self, file: MetadataFile, encode: Callable[[], bytes]) -> None:
        self._file = file
        self._encode = encode
        self._touched = 0
        self._kept = 0
        self._writing = asyncio.Lock()

    def touch(self) -> None:
        self._touched += 1

    async def keep(self) -> None:
        """Raises OSError where the disk refuses; the change stays in memory and the next call tries again."""
        mine = self._touched
        while self._kept < mine:
            async with self._writing:
                if self._kept >= mine:
                    return
                newest = self._touched
                content = self._encode()
                await asyncio.to_thread(self._file.write, content, newest)
                self._kept = newest
