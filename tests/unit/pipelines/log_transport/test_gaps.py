"""Files that were written while no agent ran, and that it does not send."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metaq.pipelines.log_transport.followed import Head
from metaq.pipelines.log_transport.found_files import find_files
from metaq.pipelines.log_transport.gaps import RECENT_NS, find_gaps, is_rotated_name
from metaq.pipelines.log_transport.positions import FilePosition

SAVED_NS = 1_800_000_000 * 10**9


def write(path: Path, after_save_s: int) -> Path:
    path.write_text("line\n")
    os.utime(path, ns=(0, SAVED_NS + after_save_s * 10**9))
    return path


def position(path: Path) -> FilePosition:
    status = path.stat()
    return FilePosition("id", str(path), status.st_dev, status.st_ino, Head(), 5, status.st_mtime_ns)


def gaps(folder: Path, *kept: FilePosition, pattern: str = "*.log") -> list[str]:
    return find_gaps(kept, find_files([str(folder / pattern)]), SAVED_NS)


def test_a_file_that_was_made_and_renamed_away_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "app.log", -10)
    kept = position(path)
    assert gaps(tmp_path, kept) == []
    path.rename(tmp_path / "app.log.2")
    write(tmp_path / "app.log.1", 20)
    write(path, 30)
    (gap,) = gaps(tmp_path, kept)
    assert (
        "app.log.1 was written while log-transport was down" in gap and f"add {path}* to files.paths" in gap
    )
    assert gaps(tmp_path, kept, pattern="*.log*") == [], "the patterns match it"


def test_files_of_others_and_older_ones_are_no_gap(tmp_path: Path) -> None:
    path = write(tmp_path / "app.log", -10)
    kept = position(path)
    path.rename(tmp_path / "app.log.2")
    write(tmp_path / "app.log.3", -5_000)
    write(tmp_path / "other.log.1", 20)
    write(tmp_path / "application.log.1", 20)
    write(path, 30)
    assert gaps(tmp_path, kept) == []


def test_a_file_that_is_gone_is_a_gap_if_somebody_may_have_written_to_it(tmp_path: Path) -> None:
    path = write(tmp_path / "app.log", -10)
    kept = position(path)
    path.rename(tmp_path / "moved")
    write(path, 30)
    assert gaps(tmp_path, kept) == [], "it is there, under another name"
    (tmp_path / "moved").unlink()
    (gap,) = gaps(tmp_path, kept)
    assert "app.log was sent up to byte 5, and is gone" in gap


def test_old_files_may_be_deleted(tmp_path: Path) -> None:
    oldest, next_one = write(tmp_path / "app.log.2", -20), write(tmp_path / "app.log.1", -10)
    kept = position(oldest), position(next_one)
    next_one.replace(oldest)
    write(next_one, 20)
    assert gaps(tmp_path, *kept, pattern="*.log*") == [], "the next one has its name"
    dated = write(tmp_path / "app-20260131.log", -2 * RECENT_NS // 10**9)
    quiet = position(dated)
    dated.unlink()
    assert gaps(tmp_path, quiet) == [], "nobody had written to it for long"


def test_compressed_files_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "app.log.1", 0)
    write(tmp_path / "app.log.2.gz", 0)
    assert [file.path.name for file in find_files([str(tmp_path / "app.log*")]).values()] == ["app.log.1"]


@pytest.mark.parametrize(
    ("other", "rotated"),
    [
        ("app.log.1", True),
        ("app.log-20260131.gz", True),
        ("app-20260131.log", True),
        ("app.1.log", True),
        ("app.log", False),
        ("app.login", False),
        ("app.json", False),
        ("apple.log", False),
        ("web.log.1", False),
    ],
)
def test_names_of_rotated_files(other: str, rotated: bool) -> None:
    assert is_rotated_name("app.log", other) is rotated
