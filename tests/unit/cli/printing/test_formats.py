"""Values for people."""

from __future__ import annotations

import pytest

from metaq.cli.printing.formats import attributes_text, moment, plain, rate, share, size, span
from metaq.counts import some


def test_unknown_is_never_zero() -> None:
    assert {show(None) for show in (plain, rate, share, size, span)} == {"–"}


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (7, "7 ms"),
        (1500, "1.5 s"),
        (61_000, "1 min 1 s"),
        (7_260_000, "2 h 1 min"),
        (259_200_000, "3.0 days"),
    ],
)
def test_spans(milliseconds: float, text: str) -> None:
    assert span(milliseconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**60, "1048576.0 TiB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


def test_long_lists_are_cut() -> None:
    assert some(["a", "b"], 2) == "a, b"
    assert some(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_attributes_are_one_line() -> None:
    assert attributes_text({"b": "2", "a": "1", "c": "3"}, ("c",)) == "a=1, b=2"
    assert attributes_text({}) is None


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), 10**15, -(10**15)])
def test_any_number_may_be_a_time(timestamp_ms: int) -> None:
    """Producers choose when a message was born."""
    assert moment(timestamp_ms) == f"{timestamp_ms} ms"
