"""Lines of a stream, and parts of lines that are too long."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.log_transport.standard_input import pieces


@given(data=st.binary(max_size=60).map(lambda data: data.replace(b"a", b"\n")), bytes_max=st.integers(1, 9))
def test_the_parts_of_a_line_make_the_line(data: bytes, bytes_max: int) -> None:
    lines, current = [], b""
    found = list(pieces(io.BytesIO(data), bytes_max))
    for piece in found:
        assert len(piece.body) <= bytes_max
        current += piece.body
        if not piece.is_cut:
            lines.append(current)
            current = b""
    assert current == b""
    expected = data.split(b"\n")
    assert lines == (expected[:-1] if expected[-1] == b"" else expected)
    assert [piece.number for piece in found] == list(range(len(found)))
