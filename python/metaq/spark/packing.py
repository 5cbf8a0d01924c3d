"""Writes a packed environment: the interpreter, its library and the installed packages in one archive.

The archive works wherever it is unpacked, because an interpreter finds its library beside itself. A small
script starts it with the shared libraries that came along. `environment.py` reads the archive and gives it to
executors; docs/decisions/0009-an-interpreter-in-the-environment.md says why it holds an interpreter.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from pathlib import Path
from typing import IO, Final

import metaq
from metaq.durable import sync_directory
from metaq.private_files import open_private
from metaq.spark.environment import MANIFEST, NAME_RULE, PROGRAM, Manifest, is_valid_name
from metaq.spark.errors import SparkError
from metaq.spark.shipping import NEEDED, installed_files, with_dependencies

SPARKS_OWN: Final = ("pyspark", "py4j")
"""Spark gives its own Python files to every process that it starts, so these are left out."""
FOR_TASKS: Final = (*NEEDED, "pandas", "pyarrow")
"""The packages that every executor needs."""

_LEVEL: Final = 1
"""Higher levels take several times as long and save a few percent."""
_PIECE_BYTES: Final = 1 << 20
_LOADER: Final = re.compile(r"^\s*(\S+) => (\S+) \(0x")
_SYSTEM: Final = re.compile(
    r"(?:linux-vdso|ld-linux.*|lib(?:c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+))\.so[.\d]*"
)
"""Libraries that every Linux has, and that must fit to its kernel and C library."""
_LIBRARY_LEFT_OUT: Final = frozenset(
    {
        *("site-packages", "dist-packages", "test", "idlelib", "lib2to3", "turtledemo", "ensurepip"),
        *("tkinter", "pydoc_data"),
    }
)
_MODULES_LEFT_OUT: Final = re.compile(r"(?:_tkinter|_curses.*|nis|readline|_dbm|_gdbm|_test.*|xx.*)\.")
"""Native modules of the library that need a screen, or a library that few have."""
_PARTS_LEFT_OUT: Final = ("pyarrow/include/", "pyarrow/tests/", "pandas/tests/", "pip/")

_START: Final = """\
#!/bin/sh
# Starts the Python of this folder with the shared libraries that came along.
home=$(cd "${{0%/*}}/.." && pwd) || exit 127
LD_LIBRARY_PATH="$home/lib/shared${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export LD_LIBRARY_PATH
exec "$home/bin/{program}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the archive."""

    name: str
    source: Path | None
    content: bytes = b""
    is_program: bool = False

    def size_bytes(self) -> int:
        return len(self.content) if self.source is None else self.source.stat().st_size


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive that was written."""

    file: Path
    size_bytes: int
    unpacked_bytes: int
    files: int
    sha256: str
    manifest: Manifest
    left_out: tuple[str, ...]
    """Packages that are not installed but refer to a folder of sources."""


Report = Callable[[int, int], None]
"""Gets how many bytes are packed, and how many there are."""


def pack(
    path: Path, *, packages: Sequence[str] = (), report: Report = lambda done_bytes, total_bytes: None
) -> Packed:
    """Writes the environment of this process to `path`, and replaces a file there; raises SparkError.

    With `packages`, only they, what they need and what executors need come along. A failure, a kill or a
    power cut leaves the old file, or none.
    """
    if not is_valid_name(path.name):
        raise SparkError(
            f"{path.name} must have a name that {NAME_RULE}",
            hint="Spark sees by the name how to unpack the file",
        )
    if not sys.platform.startswith("linux"):
        raise SparkError("an environment can be packed on Linux only", hint="pack it in a container")
    entries, left_out = _entries(packages)
    draft = path.absolute().with_name(f".{path.name}.part")
    try:
        with _held_draft(draft) as file:
            checked = _Checked(file)
            files, unpacked_bytes = _write(checked, entries, report)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
            size_bytes = file.tell()
            draft.replace(path)
        sync_directory(path.absolute().parent)
    except BlockingIOError:
        raise SparkError(
            f"another `metaq spark pack` writes {path}", hint="wait until it has ended"
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from error
    return Packed(path, size_bytes, unpacked_bytes, files, checked.sha256(), Manifest.here(), left_out)


@contextmanager
def _held_draft(draft: Path) -> Iterator[IO[bytes]]:
    """Opens the draft, which a killed run may have left. Raises BlockingIOError if another run writes it."""
    with os.fdopen(open_private(draft), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The other run may have ended in between, so that this is its finished archive.
        if not draft.exists() or os.fstat(file.fileno()).st_ino != draft.stat().st_ino:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(draft))
        file.truncate(0)
        try:
            yield file
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _unwritable(path: Path, error: OSError) -> SparkError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SparkError(
            f"the disk of {path.absolute().parent} is full; {path.name} was not written",
            hint="free space there, name another folder, or pack less with --package",
        )
    where = f"{error.filename}: " if error.filename else ""
    return SparkError(f"{path} cannot be written: {where}{error.strerror or error}")


class _Checked(io.RawIOBase):
    """Counts a checksum of all that is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sum = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._sum.update(piece)
        return self._file.write(piece)

    def sha256(self) -> str:
        return self._sum.hexdigest()


def _write(target: _Checked, entries: Sequence[Entry], report: Report) -> tuple[int, int]:
    """Returns the number of files and of their bytes."""
    total_bytes = sum(entry.size_bytes() for entry in entries)
    done_bytes = 0
    with (
        gzip.GzipFile("", "wb", _LEVEL, target, mtime=0) as compressed,
        tarfile.open(
            fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE_BYTES
        ) as packed,
    ):
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.mode = 0o755 if entry.is_program else 0o644
            if entry.source is None:
                info.size = len(entry.content)
                packed.addfile(info, io.BytesIO(entry.content))
            else:
                with entry.source.open("rb") as source:
                    found = os.fstat(source.fileno())
                    # Compiled modules fit to sources of exactly this time.
                    info.size, info.mtime = found.st_size, int(found.st_mtime)
                    packed.addfile(info, source)
            done_bytes += info.size
            report(done_bytes, total_bytes)
    return len(entries), done_bytes


def _entries(packages: Sequence[str]) -> tuple[list[Entry], tuple[str, ...]]:
    """Returns all files, each name once, and the packages that are left out."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    found = {MANIFEST: Entry(MANIFEST, None, Manifest.here().encoded())}

    def add(source: Path, name: str, *, is_program: bool = False) -> None:
        found.setdefault(name, Entry(name, source, is_program=is_program))

    start = _START.format(program=base.name).encode()
    found[PROGRAM] = Entry(PROGRAM, None, start, is_program=True)
    add(base, f"bin/{base.name}", is_program=True)
    library = Path(sysconfig.get_path("stdlib"))
    natives = [base]
    for file, name in _library_files(library):
        add(file, f"lib/{library.name}/{name}")
        if name.startswith("lib-dynload/"):
            natives.append(file)
    for file in _shared_libraries(natives):
        add(file, f"lib/shared/{file.name}")
    folder = _packages_folder(base)
    # MetaQ may be installed from a folder of sources.
    package = Path(metaq.__file__).parent
    for file, name in _tree(package, package.parent):
        add(file, f"{folder}/{name}")
    selected, left_out = _selected(packages)
    for installed in selected:
        for file, name in _files_of(installed):
            add(file, f"{folder}/{name}")
    return list(found.values()), left_out


def _library_files(library: Path) -> Iterator[tuple[Path, str]]:
    for file, name in _tree(library, library):
        first = name.partition("/")[0]
        is_module = name.startswith("lib-dynload/")
        if first in _LIBRARY_LEFT_OUT or first.startswith("config-"):
            continue
        if is_module and _MODULES_LEFT_OUT.match(name.partition("/")[2]):
            continue
        yield file, name


def _tree(top: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Returns the files below a folder, without compiled modules of other Pythons."""
    ours = f".{sys.implementation.cache_tag}.pyc"
    for directory, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            file = Path(directory, name)
            if (not name.endswith(".pyc") or name.endswith(ours)) and file.is_file():
                yield file, str(file.relative_to(root))


def _files_of(installed: Distribution) -> Iterator[tuple[Path, str]]:
    tag = sys.implementation.cache_tag
    for file, name in installed_files(installed):
        if name.startswith(_PARTS_LEFT_OUT):
            continue
        yield file, name
        if file.suffix == ".py":
            compiled = file.parent / "__pycache__" / f"{file.stem}.{tag}.pyc"
            if compiled.is_file():
                yield compiled, str(Path(name).parent / "__pycache__" / compiled.name)


def _selected(packages: Sequence[str]) -> tuple[list[Distribution], tuple[str, ...]]:
    """Returns the distributions to pack, and the names of those that cannot be."""
    try:
        needed = with_dependencies((*FOR_TASKS, *packages))
    except PackageNotFoundError as error:
        raise SparkError(
            f"the package {error.name} is not installed here", hint="install it, or correct --package"
        ) from None
    # The first of two with one name is the one that is imported.
    every = {installed.name.lower(): installed for installed in reversed(list(distributions()))}
    chosen = needed if packages else list(every.values())
    spark, own = set(SPARKS_OWN), {"metaq", "pymetaq"}
    chosen = [one for one in chosen if one.name.lower() not in spark]
    left_out = [one.name for one in chosen if _is_editable(one) and one.name.lower() not in own]
    return [one for one in chosen if not _is_editable(one)], tuple(sorted(left_out))


def _is_editable(installed: Distribution) -> bool:
    url = installed.read_text("direct_url.json")
    return url is not None and re.search(r'"editable":\s*true', url) is not None


def _packages_folder(base: Path) -> str:
    """Returns where this interpreter looks for packages, from its top. Debian has a folder of its own."""
    asked = [str(base), "-I", "-S", "-c", "import site; print(site.getsitepackages(['/top'])[-1])"]
    try:
        printed = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkError(f"{base} does not say where its packages are: {error}") from None
    return printed.strip().removeprefix("/top/")


def _shared_libraries(natives: Sequence[Path]) -> list[Path]:
    """Returns the shared libraries that files need, without those of every system; raises SparkError."""
    paths = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/bin", "/bin"))
    try:
        done = subprocess.run(
            [shutil.which("ldd", path=paths) or "ldd", *map(str, natives)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkError(
            f"ldd, which lists the libraries of the interpreter, cannot run: {error}",
            hint="install it; on Debian it is in the package libc-bin",
        ) from None
    found: dict[str, Path] = {}
    for line in done.stdout.splitlines():
        if (match := _LOADER.match(line)) and not _SYSTEM.fullmatch(match[1]):
            found.setdefault(match[1], Path(match[2]))
    # Its name in the archive must be the one that others look for.
    return [path.parent / name for name, path in sorted(found.items())]
