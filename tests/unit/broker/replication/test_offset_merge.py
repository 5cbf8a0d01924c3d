"""The file of the offsets that a replica with a fixed role keeps for its master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq.broker.replication.offset_merge import FILE_NAME, OffsetMerge

OFFSETS = [("g", "orders", 0, 7), ("größe", "orders", 3, 2**40)]


def written(path: Path) -> bytes:
    kept = OffsetMerge(path)
    kept.keep(OFFSETS)
    kept.keep([("g", "orders", 0, 5)])
    asyncio.run(kept.save())
    return path.read_bytes()


def test_the_highest_offsets_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "config" / FILE_NAME
    written(path)
    kept = OffsetMerge(path)
    assert kept and kept.all() == OFFSETS
    assert kept.take() == OFFSETS and not kept
    assert OffsetMerge(path).all() == OFFSETS, "until that is saved"
    asyncio.run(kept.save())
    assert OffsetMerge(path).all() == []


def test_any_changed_byte_is_noticed_and_the_file_set_aside(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    content = written(path)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert OffsetMerge(path).all() == [], place
        assert path.with_suffix(".damaged").read_bytes() == changed
        assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"\n", b"[]", b"00000000\n"])
def test_other_content_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    assert OffsetMerge(path).all() == []
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config" / FILE_NAME
    kept = OffsetMerge(path)
    path.parent.write_text("in the way")
    kept.keep(OFFSETS)
    for _ in range(2):
        asyncio.run(kept.save())
    assert caplog.text.count("cannot be written") == 1
    path.parent.unlink()
    asyncio.run(kept.save())
    assert OffsetMerge(path).all() == OFFSETS
