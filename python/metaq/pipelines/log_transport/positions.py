"""Keeps how far each file was sent, in one small file that is replaced as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from metaq.errors import CommandError
from metaq.held_file import HeldFile, lock_beside
from metaq.metadata import MetadataFile
from metaq.pipelines.log_transport.followed import Head


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A file, of which brokers have stored everything before `sent_bytes`."""

    id: str
    """The id of the file in its messages, which stays the same when the file is renamed."""
    path: str
    device: int
    inode: int
    head: Head
    sent_bytes: int
    written_ns: int = 0
    """When it was last written to, as far as the agent has seen; 0 if that is not known."""


class Positions:
    """The positions of one agent. A second agent with the same file is refused.

    They are saved after the acknowledgements. So after a power failure, the lines since the last save are
    sent again.
    """

    def __init__(self, path: Path) -> None:
        """Raises CommandError if another process holds the file, MetadataDamaged if it cannot be read."""
        self._file = MetadataFile(path)
        try:
            self._held = HeldFile(lock_beside(path))
        except BlockingIOError:
            raise CommandError(
                f"{path}: another log transport keeps its positions there",
                hint="stop it, or name another state.file",
            ) from None
        self.saved_ns = path.stat().st_mtime_ns if path.exists() else None
        """When the positions were saved last; None if they never were."""
        try:
            self._kept = self._file.load(_decode) or ()
        except BaseException:
            self._held.close()
            raise

    @property
    def kept(self) -> tuple[FilePosition, ...]:
        return self._kept

    def save(self, positions: tuple[FilePosition, ...]) -> None:
        """Returns once the positions would survive a power failure."""
        if positions == self._kept:
            return
        rows = [
            {
                "id": position.id,
                "path": position.path,
                "device": position.device,
                "inode": position.inode,
                "head_bytes": position.head.size_bytes,
                "head_digest": position.head.digest,
                "sent_bytes": position.sent_bytes,
                "written_ns": position.written_ns,
            }
            for position in positions
        ]
        self._file.write(json.dumps({"files": rows}, indent=1).encode())
        self._kept = positions

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _decode(content: bytes) -> tuple[FilePosition, ...]:
    try:
        return tuple(
            FilePosition(
                str(row["id"]),
                str(row["path"]),
                int(row["device"]),
                int(row["inode"]),
                Head(int(row["head_bytes"]), str(row["head_digest"])),
                int(row["sent_bytes"]),
                int(row.get("written_ns", 0)),
            )
            for row in json.loads(content)["files"]
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"it does not hold positions of files: {error!r}") from None
