"""Positions that a person may write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import metaq
from metaq.admin.positions import milliseconds, parse_position
from metaq.errors import UsageError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        (" latest ", "latest"),
        ("0", 0),
        ("42", 42),
        ("-10m", datetime(2026, 1, 31, 11, 50, tzinfo=UTC)),
        ("-90s", datetime(2026, 1, 31, 11, 58, 30, tzinfo=UTC)),
        ("-2h", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("-1d", datetime(2026, 1, 30, 12, tzinfo=UTC)),
        ("2026-01-31T12:00", datetime(2026, 1, 31, 12)),
        ("2026-01-31 12:00:00.123", datetime(2026, 1, 31, 12, 0, 0, 123_000)),
        ("2026-01-31T12:00Z", NOW),
    ],
)
def test_every_form(text: str, position: object) -> None:
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize("text", ["yesterday", "", "-", "-10", "-10x", "10m", "middle", "-999999999d", "٣"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_position(text, NOW)
    assert str(refused.value) == f'"{text}" is not a valid time; use -10m, 2026-01-31T12:00 or an offset'


def test_times_as_brokers_count_them() -> None:
    assert milliseconds(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)) == 1_500
    assert milliseconds(datetime(1960, 1, 1, tzinfo=UTC)) == 0


@pytest.mark.parametrize(
    ("old", "new"), [("first", "earliest"), ("begin", "earliest"), ("last", "latest"), ("end", "latest")]
)
def test_older_words_are_still_accepted(old: str, new: str) -> None:
    assert parse_position(old) == new
    client = metaq.Client("127.0.0.1:1")
    with pytest.warns(DeprecationWarning, match=f"'{old}' is called '{new}' now"):
        client.subscribe("t", group="g", start=old)  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning):
        assert client.puller(start=old)._puller._start == new  # type: ignore[arg-type]
