"""The spans of a histogram of due times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.admin.waiting.due_buckets import STEPS_MS, Spans
from metaq.admin.waiting.results import DueBucket

MINUTE_MS = 60_000
TIMES = st.integers(0, 4_000_000_000_000)


def test_spans_have_a_length_that_people_read_easily() -> None:
    noon = 1_750_000_000_000 // (24 * 60 * MINUTE_MS) * 24 * 60 * MINUTE_MS + 12 * 60 * MINUTE_MS
    assert Spans.covering(noon + 5, noon + 5, 48) == Spans(noon, MINUTE_MS, 1)
    assert Spans.covering(noon + 5, noon + 60 * MINUTE_MS, 20) == Spans(noon, 5 * MINUTE_MS, 13)
    assert Spans.covering(noon, noon + 40 * 24 * 60 * MINUTE_MS, 48).step_ms == 24 * 60 * MINUTE_MS


@given(TIMES, TIMES, st.integers(1, 1_000))
def test_spans_reach_from_the_first_time_to_the_last(one: int, other: int, count_max: int) -> None:
    first, last = sorted((one, other))
    spans = Spans.covering(first, last, count_max)
    assert 1 <= spans.count <= count_max
    assert spans.step_ms in STEPS_MS and spans.from_ms % spans.step_ms == 0
    assert spans.from_ms <= first
    # Beyond the longest step, the last span has the rest.
    if spans.step_ms < STEPS_MS[-1]:
        assert last < spans.from_ms + spans.count * spans.step_ms


def test_the_counts_of_brokers_are_added() -> None:
    spans = Spans(0, MINUTE_MS, 2)
    assert spans.buckets([[1, 2], [10, 20]]) == (
        DueBucket(0, MINUTE_MS, 11),
        DueBucket(MINUTE_MS, 2 * MINUTE_MS, 22),
    )
    assert [bucket.messages for bucket in spans.buckets([])] == [0, 0]
    assert [bucket.messages for bucket in spans.buckets([[5]])] == [5, 0]
