"""A small ext4 for one test: it can be full, and it can lose its power. Needs root and loop devices."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

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
        # No reserved blocks and no lazy initialisation, so that the size is what a test reckons with.
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
        """Returns when its loop device is gone. That goes by itself a little later, and writes what it still
        holds: behind the back of the next mount, that would overwrite newer blocks with older ones."""
        _run("umount", str(self.path))
        deadline = time.monotonic() + _DETACH_TIMEOUT_S
        while _run("losetup", "--associated", str(self.image)):
            assert time.monotonic() < deadline, f"the loop device of {self.image} stays"
            time.sleep(0.01)

    def lose_power(self) -> None:
        """From here on nothing reaches the image: what was not synced is gone after the next mount. Until it
        is unmounted every call on the file system fails."""
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
    """Mounted inside, unmounted and removed outside, whatever happened to it."""
    disk = LoopDisk(directory, size_bytes)
    try:
        yield disk
    finally:
        if os.path.ismount(disk.path):
            subprocess.run(["umount", "-l", str(disk.path)], check=False)
        disk.image.unlink()


def loop_disks_work(directory: Path) -> bool:
    """Whether this machine lets us make one (root, loop devices, mkfs.ext4)."""
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
