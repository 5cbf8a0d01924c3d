"""Metadata files are always complete, and damage is reported."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.metadata import MetadataDamaged, MetadataFile


def decode(content: bytes) -> bytes:
    """A format that detects truncation and changes: the content, its length and its checksum."""
    text, _, tail = content.rpartition(b"|")
    if tail != b"%d-%d" % (len(text), sum(text)):
        raise ValueError("damaged")
    return text


def encode(text: bytes) -> bytes:
    return text + b"|%d-%d" % (len(text), sum(text))


def test_a_file_that_never_was_is_nothing(tmp_path: Path) -> None:
    assert MetadataFile(tmp_path / "a.json").load(decode) is None


def test_a_written_state_is_read_and_the_previous_one_is_kept(tmp_path: Path) -> None:
    file = MetadataFile(tmp_path / "config" / "a.json")
    for text in (b"one", b"two", b"three"):
        file.write(encode(text))
    assert MetadataFile(file.path).load(decode) == b"three"
    assert decode(file.backup.read_bytes()) == b"two"
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["a.json", "a.json.bak"]


@pytest.mark.parametrize("damage", [b"", b"\0" * 7, b"thr"])
def test_a_damaged_file_gives_way_to_its_backup(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = MetadataFile(tmp_path / "a.json")
    file.write(encode(b"one"))
    file.write(encode(b"two"))
    file.path.write_bytes(damage)
    again = MetadataFile(tmp_path / "a.json")
    with caplog.at_level(logging.WARNING):
        assert again.load(decode) == b"one"
    assert "a.json.bak" in caplog.text
    again.write(encode(b"three"))
    assert decode(again.backup.read_bytes()) == b"one", "a damaged file never becomes the backup"


def test_a_missing_file_gives_way_to_its_backup(tmp_path: Path) -> None:
    file = MetadataFile(tmp_path / "a.json")
    file.write(encode(b"one"))
    file.write(encode(b"two"))
    file.path.unlink()
    assert MetadataFile(tmp_path / "a.json").load(decode) == b"one"


def test_nothing_is_forgotten_in_silence(tmp_path: Path) -> None:
    file = MetadataFile(tmp_path / "a.json")
    file.write(encode(b"one"))
    file.path.write_bytes(b"?")
    with pytest.raises(MetadataDamaged) as raised:
        MetadataFile(tmp_path / "a.json").load(decode)
    assert "a.json" in str(raised.value)
    assert raised.value.hint


def test_an_older_state_that_comes_late_is_passed_over(tmp_path: Path) -> None:
    """Happens when a task that writes is cancelled and its thread continues."""
    file = MetadataFile(tmp_path / "a.json")
    file.write(encode(b"new"), 2)
    file.write(encode(b"old"), 1)
    assert file.load(decode) == b"new"


def test_threads_take_turns(tmp_path: Path) -> None:
    file = MetadataFile(tmp_path / "a.json")
    texts = [b"%d" % number * 5000 for number in range(10)]
    threads = [
        threading.Thread(target=file.write, args=(encode(text), number)) for number, text in enumerate(texts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert MetadataFile(file.path).load(decode) == texts[-1]


STEPS: list[tuple[Any, str]] = [
    (Path, "open"),
    (os, "fsync"),
    (Path, "unlink"),
    (Path, "hardlink_to"),
    (Path, "replace"),
]


@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[step for _, step in STEPS])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_stop_at_any_step_leaves_the_old_state_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, nth: int
) -> None:
    file = MetadataFile(tmp_path / "a.json")
    file.write(encode(b"one"))
    file.write(encode(b"two"))
    original: Callable[..., Any] = getattr(owner, step)
    calls = 0

    def stop(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(28, "no space left")
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, stop)
        try:
            file.write(encode(b"three"))
            failed = False
        except OSError:
            failed = True
    state = MetadataFile(tmp_path / "a.json").load(decode)
    assert state in ((b"two", b"three") if failed else (b"three",))
    file.write(encode(b"four"))
    assert MetadataFile(tmp_path / "a.json").load(decode) == b"four"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kept=st.integers(min_value=0, max_value=40),
    texts=st.lists(st.binary(max_size=20), min_size=2, max_size=5),
)
def test_a_cut_file_is_never_taken_for_a_whole_one(tmp_path: Path, kept: int, texts: list[bytes]) -> None:
    for leftover in tmp_path.iterdir():
        leftover.unlink()
    file = MetadataFile(tmp_path / "a.json")
    for text in texts:
        file.write(encode(text))
    content = file.path.read_bytes()
    file.path.write_bytes(content[:kept])
    expected = texts[-1] if kept >= len(content) else texts[-2]
    assert MetadataFile(tmp_path / "a.json").load(decode) == expected
