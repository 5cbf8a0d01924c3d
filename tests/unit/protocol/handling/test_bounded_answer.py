"""Answers that list are counted while they are collected."""

from __future__ import annotations

import pytest

from metaq.protocol.bodies import TopicList
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.errors import Refused
from metaq.protocol.handling.bounded_answer import BoundedAnswer, listed_once


class Listing(Command):
    answer_max = AnswerMax(lines=10, size_bytes=100, instead="ask for less")


def test_lines_are_refused_before_they_are_collected() -> None:
    answer = BoundedAnswer(Listing)
    collected: list[int] = []
    with pytest.raises(Refused) as raised:
        for number in answer.counted(range(1_000_000)):
            collected.append(number)
    assert collected == list(range(10))
    assert (raised.value.code, answer.lines) == (29, 10)
    assert raised.value.remark == (
        "the answer to Listing would have 11 lines or more, the limit is 10 lines; "
        "10 lines were counted: ask for less"
    )


def test_many_lines_at_once_are_refused_before_the_first() -> None:
    answer = BoundedAnswer(Listing)
    with pytest.raises(Refused, match="11 lines or more"):
        answer.add(lines=11)
    answer.add(lines=10)


def test_bytes_are_counted_as_expected_and_as_encoded() -> None:
    answer = BoundedAnswer(Listing)
    answer.add(100)
    with pytest.raises(Refused, match="101 bytes or more, the limit is 100 bytes"):
        answer.add(1)
    assert BoundedAnswer(Listing).encoded(TopicList(topic_list=["a"]))
    with pytest.raises(Refused, match="the limit is 100 bytes"):
        BoundedAnswer(Listing).encoded(TopicList(topic_list=["a" * 100]))


def test_a_name_that_is_repeated_counts_once() -> None:
    assert listed_once(";".join(["b", "a", "", "b"] * 500), ";") == ["b", "a"]
