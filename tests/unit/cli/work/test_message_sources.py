"""The messages that lines become."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO

import pytest

from metaq.cli.work import message_sources
from metaq.cli.work.message_sources import from_json_lines, from_lines, repeated


def test_a_line_that_is_too_long_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_sources, "LINE_BYTES_MAX", 10)
    found = list(from_lines(BytesIO(b"short\n" + b"x" * 35 + b"\nlast one\n"), {}))
    assert [(message.number, message.body) for message in found if message.fault is None] == [
        (1, b"short"),
        (3, b"last one"),
    ]
    assert [message.number for message in found if message.fault] == [2]


def test_repetitions_are_numbered() -> None:
    assert [message.body for message in repeated(b"n%d", {}, 3)] == [b"n1", b"n2", b"n3"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"[1]", "is not a JSON object"),
        (b"{", "is not JSON"),
        (b'{"keys": ["a"]}', "has no body"),
        (b'{"body": "x", "tags": "a"}', "tags: unknown field"),
        (b'{"body": "x", "tag": 1}', "tag must be text"),
        (b'{"body": "x", "keys": [1]}', "keys must be text"),
        (b'{"body": "x", "keys": 7}', "keys must be"),
        (b'{"body": "x", "delay": "soon"}', "is not a duration"),
        (b'{"body_base64": "!"}', ""),
    ],
)
def test_faults_of_json_lines(line: bytes, fault: str) -> None:
    [message] = from_json_lines(BytesIO(line + b"\n"), {})
    assert message.fault is not None and fault in message.fault


def test_an_object_overrides_the_flags() -> None:
    line = b'{"body": "x", "tag": "own", "properties": {"a": "2", "KEYS": "k1 k2"}, "delay": 5}'
    [message] = from_json_lines(BytesIO(line), {"tag": "flag", "properties": {"a": "1", "b": "1"}})
    assert message.options == {
        "tag": "own",
        "keys": ["k1", "k2"],
        "properties": {"a": "2", "b": "1"},
        "delay": timedelta(seconds=5),
    }
