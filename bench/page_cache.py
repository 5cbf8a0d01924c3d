"""Memory that is really there before anything is measured.

The host of a virtual machine may hand out memory only as it is first touched, at several times the cost of
touching it later. A broker's store goes to the page cache at hundreds of megabytes a second, so whoever is
faster would mostly measure the host. Reading a sparse file fills the page cache with pages that are clean and
given up at once when a broker wants them: then both sides meet a machine that has been running for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_BYTES = 16 * 1024 * 1024
_LEFT_FREE_BYTES = 1024**3


@contextmanager
def filled_page_cache(directory: Path) -> Iterator[int]:
    """Keeps a sparse file in the page cache. Returns its size in bytes."""
    size_bytes = max(0, _available_bytes() - _LEFT_FREE_BYTES)
    path = directory / "page-cache"
    with path.open("wb") as file:
        file.truncate(size_bytes)
    try:
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(_CHUNK_BYTES)
            while file.readinto(buffer):
                pass
        yield size_bytes
    finally:
        path.unlink()


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0
