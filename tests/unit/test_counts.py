"""Counts for people."""

from __future__ import annotations

import pytest

from metaq.counts import counted
from metaq.pipelines.topic_check import TopicCheck


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_000, "1,000 rows")]
)
def test_singular_and_plural_agree(number: int, text: str) -> None:
    assert counted(number, "row") == text


def test_a_check_of_a_topic_says_who_answers() -> None:
    text = str(TopicCheck("T", "a:1", queues=8, brokers=2))
    assert text == "topic T: a:1 answers, and 2 brokers with 8 queues answer"
    assert str(TopicCheck("T", "a:1", queues=1, brokers=1)) == (
        "topic T: a:1 answers, and 1 broker with 1 queue answers"
    )
    assert counted(2, "entry", "entries") == "2 entries"
