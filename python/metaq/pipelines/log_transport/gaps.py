"""Finds gaps: lines that may have been written while no agent ran, and that the agent does not send.

The state names every file that was followed, by inode. If another file has its name now, it was rotated while
the agent was down. The file itself is found by its inode. But a file that was both created and renamed away
in that time is unknown. It is recognised by its name, which begins like the name of the followed file, and by
its time, which is later than the last saved position.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final

from metaq.pipelines.log_transport.found_files import FoundFile, find_inode, found_at
from metaq.pipelines.log_transport.positions import FilePosition

Key = tuple[int, int]

RECENT_NS: Final = 3_600 * 10**9
"""A file that was written to within this time before the last save was probably written to after it."""


def find_gaps(kept: Sequence[FilePosition], found: Mapping[Key, FoundFile], saved_ns: int) -> list[str]:
    """Returns a warning for each gap since the positions were saved.

    `found` are the files that the patterns match.
    """
    known = {(position.device, position.inode) for position in kept}
    expected = known | found.keys()
    folders: dict[Path, list[str]] = {}
    warnings: dict[str, None] = {}
    for position in kept:
        path, key = Path(position.path), (position.device, position.inode)
        now = found_at(path)
        if now is not None and now.key == key:
            continue
        if _is_lost(position, now, known, saved_ns) and find_inode(path.parent, key) is None:
            warnings[
                f"{path} was sent up to byte {position.sent_bytes}, and is gone: lines that were written to"
                " it while log-transport was down are lost"
            ] = None
        if path.parent not in folders:
            folders[path.parent] = _names(path.parent)
        for name in folders[path.parent]:
            if is_rotated_name(path.name, name) and _is_missed(path.parent / name, expected, saved_ns):
                warnings[
                    f"{path.parent / name} was written while log-transport was down and looks like a rotated"
                    f" {path.name}, but no path matches it, so its lines are not sent: add {path}* to"
                    " files.paths"
                ] = None
    return list(warnings)


def _is_lost(position: FilePosition, now: FoundFile | None, known: Container[Key], saved_ns: int) -> bool:
    """Returns whether a file that is gone may have got lines that nobody has read.

    Old files are deleted all the time: the next one has their name, or nobody had written to them for long.
    """
    if now is not None and now.key in known:
        return False
    return position.written_ns == 0 or position.written_ns > saved_ns - RECENT_NS


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return []


def _is_missed(path: Path, known: Container[Key], saved_ns: int) -> bool:
    file = found_at(path)
    return file is not None and file.key not in known and file.stamp[1] > saved_ns


def is_rotated_name(name: str, other: str) -> bool:
    """Returns whether `other` is a name that a rotation gives to the file `name`.

    Such names are `app.log.1`, `app.log-20260131.gz`, `app-20260131.log` and `app.1.log`.
    """
    if other == name:
        return False
    stem, suffix = os.path.splitext(name)  # noqa: PTH122
    rest = other.removeprefix(stem)
    if rest == other:
        return False
    after_suffix = rest.removeprefix(suffix)
    if suffix and after_suffix != rest:
        return after_suffix[:1] in (".", "-", "_")
    return rest[:1] in (".", "-", "_") and any(digit.isdigit() for digit in rest)
