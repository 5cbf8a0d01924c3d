"""Files and folders that only their owner may read: 0600 and 0700, whatever the umask allows."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path
from typing import IO, Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def make_private_directory(path: Path) -> None:
    """Makes the directory and every missing one above it. One that exists keeps its mode."""
    if path.is_dir():
        return
    if path.parent != path:
        make_private_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def open_private(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Opens a file and returns its descriptor; a new file is private.

    Raises OSError, also for a symbolic link: whoever planted it would choose the file that is overwritten.
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(
            errno.ELOOP, "is a symbolic link, which is not followed; remove it", str(path)
        ) from None


def create_private(path: Path) -> IO[bytes]:
    """Opens an empty private file for writing. One that exists is emptied and made private."""
    file = os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
    if os.fstat(file.fileno()).st_mode & 0o077:
        os.fchmod(file.fileno(), FILE_MODE)
    return file


def whose(path: Path | str, error: OSError) -> str:
    """Explains a refused access: who owns the file and what to do. Empty for any other error, or if nothing
    is known."""
    if not isinstance(error, PermissionError):
        return ""
    for candidate in (Path(path), *Path(path).absolute().parents):
        try:
            owner = _user(candidate.stat().st_uid)
        except OSError:
            continue
        return (
            f"{candidate} belongs to {owner} and is private, and this process runs as {_user(os.geteuid())}: "
            f"run it as {owner}, or ask for access"
        )
    return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
