"""The form of properties on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol.properties import decode_properties, encode_properties, number_of

plain = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1)


@given(properties=st.dictionaries(plain, plain, max_size=5))
def test_properties_read_back_as_they_were(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_the_last_separator_may_be_missing() -> None:
    assert decode_properties("a\x01b\x02c\x01d") == {"a": "b", "c": "d"}
    assert decode_properties("nonsense\x02\x01x\x02") == {}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("15", 15),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, 0),
        ("9" * 5_000, 0),
        ("-1", 0),
        ("\u0663", 0),
        ("x", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_number_that_a_sender_wrote_is_read_within_bounds(value: str | None, number: int) -> None:
    assert number_of(value) == number
