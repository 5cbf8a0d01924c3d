"""Positions as options write them, and ranges as tasks get them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.session.routes import Queue
from metaq.spark.errors import WrongCheckpoint
from metaq.spark.source.offsets import (
    Range,
    Time,
    nested,
    parse_assignment,
    parse_positions,
    parse_time,
    plan,
    share,
)
from metaq.spark.source.stream_offset import QueuePosition, dump, load

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
queues = st.builds(Queue, names, names, st.integers(0, 10_000))
offsets = st.integers(0, 2**63 - 1)


@given(st.dictionaries(queues, offsets, min_size=1))
def test_offsets_come_back_as_they_were_written(positions: dict[Queue, int]) -> None:
    assert parse_positions(json.dumps(nested(positions)), lowest=0) == positions


@given(st.dictionaries(queues, offsets, min_size=1), st.randoms(use_true_random=False))
def test_the_same_offsets_are_always_the_same_text(positions: dict[Queue, int], random: object) -> None:
    shuffled = list(positions.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert json.dumps(nested(dict(shuffled))) == json.dumps(nested(positions))


@given(
    st.dictionaries(
        queues, st.builds(QueuePosition, offsets, st.integers(-1, 2**63 - 1), st.none() | offsets)
    )
)
def test_a_checkpoint_comes_back_as_it_was_written(places: dict[Queue, QueuePosition]) -> None:
    assert load(json.loads(json.dumps(dump(places)))) == places


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"metaq": 2, "queues": {}},
        {"metaq": 1},
        {"metaq": 1, "queues": []},
        {"metaq": 1, "queues": {"t": {"b": {"x": [1, 2]}}}},
        {"metaq": 1, "queues": {"t": {"b": {"0": [1]}}}},
        {"metaq": 1, "queues": {"t": {"b": {"0": [1, "2"]}}}},
        {"metaq": 1, "queues": {"t": {"b": {"0": [-2, 0]}}}},
        {"t": {"0": 5}},
    ],
)
def test_what_we_did_not_write_is_no_checkpoint(stored: dict[str, object]) -> None:
    with pytest.raises(WrongCheckpoint, match="checkpoint"):
        load(stored)


@given(st.text(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (lambda text: parse_positions(text, lowest=-2), parse_assignment, parse_time):
        try:
            parse(text)
        except (ValueError, OverflowError) as error:
            assert isinstance(error, ValueError), f"{error!r} is not expected"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "the whole is not a JSON object"),
        ('{"t": 5}', "t is not a JSON object"),
        ('{"t": {"b": 5}}', "t.b is not a JSON object"),
        ('{"t": {"b": {"-1": 5}}}', "t.b has a queue '-1'"),
        ('{"t": {"b": {"0": -3}}}', "t.b.0 is -3: it is a whole number from -2 on"),
        ('{"t": {"b": {"0": true}}}', "t.b.0 is True"),
        ('{"t": {"b": {"0": 1.5}}}', "t.b.0 is 1.5"),
        ('{"t": {"b": {"0": 9223372036854775808}}}', "t.b.0 is 9223372036854775808"),
        ('{"t": {"b": {"0": 1, "0": 2}}}', "a name twice"),
        ("{}", "names no queue"),
    ],
)
def test_what_is_wrong_with_offsets_is_said(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_positions(text, lowest=-2)


def test_times() -> None:
    assert parse_time("1700000000000") == Time(1_700_000_000_000)
    assert parse_time("2023-11-14T22:13:20Z") == Time(1_700_000_000_000)
    assert parse_time("2023-11-14T22:13:20") == Time(1_700_000_000_000), "a time without a zone is UTC"
    assert parse_time("2023-11-15T00:13:20+02:00") == Time(1_700_000_000_000)
    assert parse_time("-10 minutes") == Time(600_000, is_relative=True)
    assert parse_time("-1 hour 30 minutes").at(10_000_000) == 10_000_000 - 5_400_000
    assert parse_time("-2 days").at(5) == 0
    assert parse_time("-10m") == parse_time("-10 minutes"), "the units of the command line"
    assert parse_time("-500ms") == parse_time("-500 milliseconds")
    for wrong in (
        "",
        "yesterday",
        "-",
        "-10",
        "-10 fortnights",
        "-5 minutes ago",
        "10 minutes",
        "1960-01-01",
    ):
        with pytest.raises(ValueError):
            parse_time(wrong)


ranges = st.dictionaries(queues, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=6).map(
    lambda found: [Range(queue, first, first + length) for queue, (first, length) in found.items()]
)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(50_000, 10**6))
def test_tasks_cover_every_range_once(
    wanted: list[Range], partitions_min: int | None, records_max: int | None
) -> None:
    tasks = plan(wanted, partitions_min=partitions_min, records_max=records_max)
    by_queue: dict[Queue, list[Range]] = {}
    for task in tasks:
        assert task.length > 0
        assert records_max is None or task.length <= records_max
        by_queue.setdefault(task.queue, []).append(task)
    for part in wanted:
        pieces = by_queue.pop(part.queue, [])
        assert sum(piece.length for piece in pieces) == part.length
        edges = [part.from_offset, *(piece.to_offset for piece in pieces)]
        assert [piece.from_offset for piece in pieces] == edges[:-1]
        assert max((piece.length for piece in pieces), default=0) - min(
            (piece.length for piece in pieces), default=0
        ) in (0, 1)
    assert by_queue == {}
    messages = sum(part.length for part in wanted)
    assert len(tasks) >= min(partitions_min or 0, messages)


def test_long_ranges_are_split_first() -> None:
    long, short = Range(Queue("t", "b", 0), 0, 900), Range(Queue("t", "b", 1), 5, 105)
    tasks = plan([short, long], partitions_min=4, records_max=None)
    assert [str(task) for task in tasks] == [
        "t/b/0 [0, 300)",
        "t/b/0 [300, 600)",
        "t/b/0 [600, 900)",
        "t/b/1 [5, 105)",
    ]


@given(st.dictionaries(queues, st.integers(0, 10**9), max_size=8), st.integers(0, 10**9))
def test_a_limit_is_met_exactly_and_shared_in_proportion(available: dict[Queue, int], limit: int) -> None:
    taken = share(available, limit)
    total = sum(available.values())
    assert sum(taken.values()) == min(limit, total)
    for queue, count in available.items():
        assert 0 <= taken[queue] <= count
        assert total <= limit or abs(taken[queue] - count * limit / total) <= 1
