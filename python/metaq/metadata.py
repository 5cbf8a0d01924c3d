"""Small files whose state must not be lost: of pipelines, and of brokers and name servers before the journal.

The previous state stays as `.bak`. Apache's servers use the same files with the same names, so either program
can take over the files of the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from metaq.durable import replace_file
from metaq.errors import MetaqError
from metaq.protocol.errors import ProtocolError

_log = logging.getLogger(__name__)

T = TypeVar("T")


class MetadataDamaged(MetaqError):
    """Neither a metadata file nor its backup can be read. A start without them would lose their content."""


class MetadataFile:
    """One metadata file and its backup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._whole = False
        """The file is known to be good, so it may become the backup."""
        self._version = 0
        self._one_at_a_time = threading.Lock()

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """Returns the decoded file, its backup if the file is missing or damaged, or None if neither exists.

        `decode` raises ProtocolError or ValueError for content that it cannot read. Raises MetadataDamaged if
        no readable file is left.
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
                _log.warning("%s; its backup %s is used instead and may lack the last change", why, path)
            return state
        if faults:
            raise MetadataDamaged(
                f"metadata cannot be read: {'; '.join(faults)}",
                hint="restore a good copy, or move the damaged files away to start without their content",
            )
        return None

    def write(self, content: bytes, version: int = 0) -> None:
        """Replaces the file durably, and keeps the old content as the backup.

        Any thread may call it. Content with an older version than the last written one is ignored.
        """
        with self._one_at_a_time:
            if version >= self._version:
                replace_file(self.path, content, self._keep_backup)
                self._whole = True
                self._version = version

    def _keep_backup(self) -> None:
        if not self._whole:
            return
        # A hard link to the old content is free and always complete.
        second_name = self.backup.with_name(self.backup.name + ".tmp")
        second_name.unlink(missing_ok=True)
        try:
            second_name.hardlink_to(self.path)
        except FileNotFoundError:
            return
        second_name.replace(self.backup)
