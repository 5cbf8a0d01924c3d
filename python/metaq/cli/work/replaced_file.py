"""Files that a command writes for its user, such as exports: whole, private, and never through a link."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from metaq.private_files import FILE_MODE

DESCRIPTORS: Final = Path("/proc/self/fd")


@contextmanager
def replaced_file(target: Path) -> Iterator[BinaryIO]:
    """Gives the file its name at the end, so that a failure leaves an older file as it is. Raises OSError.

    A symbolic link with this name is replaced, and its target stays as it is. Bodies may be confidential: the
    file is new, private and has no name before, so nobody can put a link or a file of their own in its place,
    and a command that is killed leaves nothing behind. Some file systems have no files without a name; there
    the killed command leaves `.metaq-….part`.
    """
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(target))
    descriptor, part = _open(target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if part is None:
                part = _name(descriptor, target.parent)
        part.replace(target)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise


def _open(folder: Path) -> tuple[int, Path | None]:
    """Opens a new file; returns its path if it needs one."""
    if DESCRIPTORS.is_dir():
        try:
            return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE), None
        except OSError:
            pass  # The file system cannot do it, or there is no such folder.
    descriptor, name = tempfile.mkstemp(".part", ".metaq-", folder)
    return descriptor, Path(name)


def _name(descriptor: int, folder: Path) -> Path:
    """Gives a file without a name one that nobody can foresee."""
    name = f".metaq-{secrets.token_hex(8)}.part"
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a descriptor of a folder, Python follows the link to the file; without one, it does not.
        os.link(DESCRIPTORS / str(descriptor), name, dst_dir_fd=place)
    finally:
        os.close(place)
    return folder / name
