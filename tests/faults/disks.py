"""A small ext4 for one test, which can fill up and lose its power. It needs root and loop devices."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

from tests.support.waiting import wait_until

MIB = 1024 * 1024
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32)
_WITHOUT_FLUSH = 2
_DETACH_TIMEOUT_S = 60


class LoopDisk:
    """An ext4 in an image file, mounted under `directory`."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.image = directory / "disk.img"
        self.path = directory / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        # No reserved blocks and no lazy initialisation: the test knows how much fits.
        _run(
            "mkfs.ext4",
            "-q",
            "-F",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
            str(self.image),
        )
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))

    def unmount(self) -> None:
        """Returns when the loop device is gone. The kernel removes it a little later and first writes what
        it still holds. After the next mount, that would overwrite newer blocks with older ones."""
        _run("umount", str(self.path))
        wait_until(
            lambda: not _run("losetup", "--associated", str(self.image)), _DETACH_TIMEOUT_S, "detached"
        )

    def lose_power(self) -> None:
        """From now on nothing reaches the image: unsynced data is gone after the next mount. Until it is
        unmounted, every call on the file system fails."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, pack("=I", _WITHOUT_FLUSH))
        finally:
            os.close(handle)

    def free_bytes(self) -> int:
        level = os.statvfs(self.path)
        return level.f_bavail * level.f_frsize


@contextmanager
def loop_disk(directory: Path, size_bytes: int) -> Iterator[LoopDisk]:
    """Mounts a disk, and unmounts and removes it afterwards, whatever happened to it."""
    disk = LoopDisk(directory, size_bytes)
    try:
        yield disk
    finally:
        if os.path.ismount(disk.path):
            subprocess.run(["umount", "-l", str(disk.path)], check=False)
        disk.image.unlink()


def loop_disks_work(directory: Path) -> bool:
    """Returns whether this machine lets us make one (root, loop devices, mkfs.ext4)."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        return False
    trial = directory / "trial"
    trial.mkdir()
    try:
        with loop_disk(trial, 8 * MIB):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _run(*command: str) -> bytes:
    """Runs the command and returns its output."""
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
