"""Numbers as people read them."""

from __future__ import annotations

import pytest

from metaq.console import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (0, "0"),
        (999, "999"),
        (9_999, "9,999"),
        (10_000, "10.0K"),
        (123_456, "123K"),
        (12_345_678, "12.3M"),
        (5_000_000_000, "5,000M"),
        (12_345_678_901, "12.3G"),
        (-12_000, "-12.0K"),
        (2.5, "2.5"),
    ],
)
def test_numbers(value: float | None, text: str | None) -> None:
    assert figures.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (0, "0"), (0.01, "<0.1"), (0.5, "0.5"), (9.96, "10.0"), (10.4, "10"), (52_000, "52.0K")],
)
def test_a_slow_rate_differs_from_none(value: float | None, text: str | None) -> None:
    assert figures.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (150 * 1024, "150 KiB"),
        (3 << 30, "3.0 GiB"),
    ],
)
def test_sizes(value: float | None, text: str | None) -> None:
    assert figures.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (0, "0 ms"),
        (999, "999 ms"),
        (12_000, "12 s"),
        (60_000, "1 min"),
        (185_000, "3 min 5 s"),
        (7_800_000, "2 h 10 min"),
        (86_400_000 * 4 + 3_600_000 * 3, "4 d 3 h"),
        (-5_000, "-5 s"),
    ],
)
def test_spans(value: float | None, text: str | None) -> None:
    assert figures.span(value) == text


def test_spans_are_in_the_reader_s_language() -> None:
    assert figures.span_in("en", 185_000) == "3 min 5 s"
    assert figures.span_in("zh", 185_000) == "3 分 5 秒"
    assert figures.span_in("zh", 86_400_000) == "1 天"
    assert figures.span_in("zh", None) is None


def test_moments_are_in_the_reader_s_zone_and_never_fail() -> None:
    assert figures.moment(1_700_000_000_000) == "2023-11-14 22:13:20"
    assert figures.moment(1_700_000_000_000, 480) == "2023-11-15 06:13:20"
    assert figures.moment(None) is None
    assert figures.moment(10**18) == str(10**18)
    assert figures.iso(10**18) == str(10**18)
    assert figures.iso(1_700_000_000_000) == "2023-11-14T22:13:20.000+00:00"
