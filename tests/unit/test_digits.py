"""Numbers that others have written."""

from __future__ import annotations

import pytest

from metaq.digits import LONG_MAX, number_in


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        (str(LONG_MAX), LONG_MAX),
        (str(LONG_MAX + 1), None),
        ("9" * 5_000, None),
        ("", None),
        ("-1", None),
        ("1_0", None),
        ("٣", None),
    ],
)
def test_only_plain_digits_within_the_range_are_a_number(text: str, number: int | None) -> None:
    assert number_in(text, LONG_MAX) == number
