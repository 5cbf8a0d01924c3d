"""The generator of requests: it leaves no command out, uses the ranges of types, and can be repeated."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from msgspec import inspect

from metaq._core import FrameDecoder
from metaq.protocol.command import Fields, commands
from tests.support.hostile.catalogue import UNKNOWN_CODES, catalogue
from tests.support.hostile.generation import (
    Generator,
    binary_frame,
    json_frame,
)
from tests.support.hostile.restarts import complaints
from tests.support.hostile.values import Pairs, as_text, integers_within, limits

TURN_FRAMES = 600
"""More than the generator needs for one turn through all commands."""


def made(generator: Generator, count: int) -> list[bytes]:
    return [generator.next()[0] for _ in range(count)]


@pytest.mark.parametrize("to", ["broker", "nameserver"])
def test_every_registered_command_and_unknown_codes_are_sent(to: str) -> None:
    generator = Generator(to, seed=1)
    made(generator, TURN_FRAMES)
    registered = {command.code for command in commands()}
    assert {10, 11, 34, 103, 310, 320, 361} <= registered
    assert {known.command.code for known in catalogue()} == registered
    assert generator.counts.keys() == registered | set(UNKNOWN_CODES)
    assert not registered & set(UNKNOWN_CODES)


def test_a_seed_makes_the_same_requests_again() -> None:
    assert made(Generator("broker", 7), 300) == made(Generator("broker", 7), 300)
    assert made(Generator("broker", 7), 300) != made(Generator("broker", 8), 300)


def test_both_encodings_and_answers_are_made_and_can_be_read() -> None:
    generator = Generator("broker", 3)
    kinds = set()
    read = 0
    for _ in range(TURN_FRAMES):
        frame, goes_on = generator.next()
        kinds.add("binary" if frame[4] else "JSON")
        if goes_on:
            [found] = FrameDecoder().feed(frame)
            kinds.add("answer" if found.flag & 1 else "oneway" if found.flag & 2 else "request")
            read += 1
    assert kinds == {"binary", "JSON", "answer", "oneway", "request"}
    assert read > TURN_FRAMES * 0.9


class Ranged(Fields):
    number: Annotated[int, msgspec.Meta(ge=3, le=9)]


def test_the_range_of_a_type_is_used() -> None:
    [field] = msgspec.structs.fields(Ranged)
    kind = inspect.type_info(field.type)
    assert isinstance(kind, inspect.IntType)
    assert set(integers_within(kind)) == {3, 4, 6, 8, 9}
    assert limits(kind) == [2, 3, 9, 10]


def test_java_writes_numbers_and_queues_as_keys() -> None:
    queue = Pairs([("queueId", 1)])
    value = Pairs([(1, [True, None]), (queue, "x")])
    assert as_text(value, bare_integer_keys=True) == '{1:[true,null],{"queueId":1}:"x"}'
    assert as_text(value, bare_integer_keys=False) == '{"1":[true,null],{"queueId":1}:"x"}'


@pytest.mark.parametrize("encode", [json_frame, binary_frame])
def test_a_field_may_come_twice(encode: type) -> None:
    frame = encode(310, 513, 7, 0, [("a", "1"), ("a", "2")], b"body")
    assert frame.count(b"a") >= 2
    [found] = FrameDecoder().feed(frame)
    assert (found.code, found.opaque, found.body) == (310, 7, b"body")


@pytest.mark.parametrize(
    ("log", "count"),
    [
        ("INFO started\n", 0),
        ("ERROR request 25 failed\nTraceback (most recent call last):\n  File\nValueError\n", 1),
        ("thread 'x' panicked at src/lib.rs\n", 1),
    ],
)
def test_tracebacks_and_panics_are_found_with_the_line_before(log: str, count: int) -> None:
    found = complaints(log)
    assert len(found) == count
    assert all(log.splitlines()[0] in text for text in found)
