"""The record of a scrub survives restarts, and a damaged one does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.broker.scrubbing.record import FILE_NAME, ScrubRecord, load, save


def test_a_record_survives_a_restart(tmp_path: Path) -> None:
    assert load(tmp_path) == ScrubRecord()
    record = ScrubRecord(7, 1, 2, True, 3, 4, 5, ((8, 9),), 6)
    save(tmp_path, record)
    assert load(tmp_path) == record


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"position":-1}', b"\xff" * 40])
def test_a_damaged_file_counts_as_a_new_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert load(tmp_path) == ScrubRecord()
