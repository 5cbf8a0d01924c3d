"""Verification: which differences remain when tables are compared again."""

from __future__ import annotations

import pytest

from metaq.pipelines import DifferingKey, TableVerification, Verification
from metaq.pipelines.binlog_mirror import verify
from metaq.pipelines.binlog_mirror.verify import _differences, _listed, _merged


def found(*keys: str, unlisted: int = 0, note: str = "") -> Verification:
    table = TableVerification(
        "shop.t",
        chunks=16,
        differing_chunks=len(keys) + unlisted,
        unlisted_chunks=unlisted,
        keys=tuple(DifferingKey(key, "different") for key in keys),
        mirror_rows=1,
        note=note,
    )
    return Verification((table,))


def keys_of(verification: Verification) -> list[str]:
    return [key.key for table in verification.tables for key in table.keys]


def test_only_keys_that_differ_twice_count() -> None:
    first = found("1", "2")
    assert _merged(first, first, found()).is_same
    assert _merged(first, first, found("3")).is_same
    again = _merged(first, first, found("2", "3"))
    assert not again.is_same
    assert keys_of(again) == ["2"]


def test_a_key_counts_from_its_first_pass() -> None:
    first, second = found("1"), found("1", "2")
    merged = _merged(first, first, second)
    assert not _merged(merged, second, found("2")).is_same


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (found("1", unlisted=1), found("2")),
        (found("1"), found("2", unlisted=1)),
        (found(unlisted=3), found("2")),
        (found(note="it has no mirror"), found("2")),
    ],
)
def test_with_unlisted_keys_every_difference_counts(first: Verification, second: Verification) -> None:
    again = _merged(first, first, second)
    assert not again.is_same
    assert keys_of(again) == ["2"]
    assert _merged(first, first, found()).is_same


def test_kinds_of_differences() -> None:
    mirrored = {"a": (1, 1, 7), "b": (2, 2, 0), "c": (3, 1, 5), "same": (3, 1, 5)}
    sourced = {"a": (1, 1, 8), "b": (2, 1, 9), "d": (4, 1, 5), "same": (3, 1, 5)}
    assert _differences(mirrored, sourced) == {
        DifferingKey("a", "different"): 1,
        DifferingKey("b", "more than once in the mirror"): 2,
        DifferingKey("c", "only in the mirror"): 3,
        DifferingKey("d", "only in the source"): 4,
    }


def test_keys_are_listed_up_to_a_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LISTED_ROWS_MAX", 10)
    mirrored, sourced = {1: (4, 0), 2: (1, 0), 4: (1, 0)}, {2: (6, 0), 3: (1, 0)}
    assert _listed([1, 2, 3, 4], mirrored, sourced) == [1, 2]
    assert _listed([1], {1: (99, 0)}, {}) == [1]
    assert _listed([], {}, {}) == []
