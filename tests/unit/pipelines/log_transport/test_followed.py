"""A followed file: whole lines, parts of long lines, truncation and replacement."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.pipelines.log_transport.followed import FollowedFile, Head


def follow(path: Path, read_bytes_max: int = 64, line_bytes_max: int = 1000) -> FollowedFile:
    return FollowedFile(path, read_bytes_max=read_bytes_max, line_bytes_max=line_bytes_max)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_line_counts_once_its_line_feed_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    file = follow(path)
    assert [(line.at, line.end, line.body) for line in file.lines()] == [(0, 4, b"one")]
    assert file.lines() == []
    append(path, b"o\n\nfour")
    assert [line.body for line in file.lines()] == [b"two", b""]
    assert [line.body for line in file.rest()] == [b"four"]
    assert file.position == path.stat().st_size
    assert file.rest() == []
    file.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    writes=st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\x00", b"\n")), max_size=12),
    read_bytes_max=st.integers(1, 50),
    line_bytes_max=st.integers(1, 20),
)
def test_nothing_is_lost_however_it_was_written(
    tmp_path: Path, writes: list[bytes], read_bytes_max: int, line_bytes_max: int
) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(b"")
    file = follow(path, read_bytes_max, line_bytes_max)
    found = []
    for data in writes:
        append(path, data)
        assert file.change() is None
        while lines := file.lines():
            found += lines
    while lines := file.rest():
        found += lines
    file.close()
    content = path.read_bytes()
    assert b"".join(line.body if line.is_cut else content[line.at : line.end] for line in found) == content
    assert all(len(line.body) <= line_bytes_max for line in found)
    bodies, current = [], b""
    for line in found:
        current += line.body
        if not line.is_cut:
            bodies.append(current)
            current = b""
    expected = content.split(b"\n")
    assert [*bodies, current] == expected or [*bodies] == expected


def test_a_truncated_file_is_noticed_even_if_it_grew_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"the first content\n")
    file = follow(path)
    assert len(file.lines()) == 1
    path.write_bytes(b"")
    assert file.change() == "truncated"
    path.write_bytes(b"another content, longer than the first\n")
    assert file.change() == "replaced"
    file.begin_again()
    assert file.change() is None
    assert [line.body for line in file.lines()] == [b"another content, longer than the first"]
    file.close()


@pytest.mark.parametrize("beginning", [b"", b"x", b"x" * 300])
def test_a_head_recognises_its_file_after_it_has_grown(beginning: bytes) -> None:
    head = Head.of(beginning[:256])
    assert head.begins((beginning + b"more")[:256])
    assert not beginning or not head.begins(b"y" + beginning[1:256])
