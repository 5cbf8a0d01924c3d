"""The codec as Python sees it: frames come back as they were encoded, and other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import _core

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(
    # From here on, 16 bits of a binary header may stand for a larger request code.
    code=st.integers(0, 3_000),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | TEXT,
    fields=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=200),
    binary=st.booleans(),
    cut=st.integers(0, 400),
)
def test_a_frame_comes_back_however_its_bytes_arrive(
    code: int, opaque: int, remark: str | None, fields: dict[str, str], body: bytes, binary: bool, cut: int
) -> None:
    data = _core.encode_frame(code, opaque=opaque, remark=remark, fields=fields, body=body, binary=binary)
    decoder = _core.FrameDecoder()
    frames = decoder.feed(data[:cut]) + decoder.feed(data[cut:])
    assert len(frames) == 1
    frame = frames[0]
    assert (frame.code, frame.opaque, frame.remark) == (code, opaque, remark)
    assert (frame.fields, frame.body) == (fields, body)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x7f\xff\xff\xff", "longer than any frame may be"),
        (b"\xff\xff\xff\xff", "a negative length"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x09{}      ", "a header past the frame's end"),
        (b"\x00\x00\x00\x06\x07\x00\x00\x02{}", "an unknown header encoding"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02[]", "a header that is not an object"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(_core.FrameError):
        _core.FrameDecoder().feed(data)


def test_the_tag_code_is_javas_string_hash() -> None:
    assert _core.tag_code("") == 0
    assert _core.tag_code("TagA") == 2598919
    assert _core.tag_code("polygenelubricants") == -(2**31)
