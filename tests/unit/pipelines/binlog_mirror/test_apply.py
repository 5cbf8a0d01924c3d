"""Batches with refused rows and dropped tables, without Spark and without a store."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from metaq.pipelines.binlog_mirror import apply
from metaq.pipelines.binlog_mirror.apply import Applier, BatchId, BatchProgress
from metaq.pipelines.binlog_mirror.config import read_mirror_config
from metaq.pipelines.binlog_mirror.errors import Unmirrored
from metaq.pipelines.binlog_mirror.left_out import LeftOut
from metaq.pipelines.binlog_mirror.notes import Notes
from metaq.pipelines.binlog_mirror.refusals import Refusal, RefusedRow
from metaq.pipelines.binlog_sync.config import SECTIONS
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

ONE = Definition((Column("id", "int32", False),), ("id",))
NAME = ("shop", "t")


class FakeTable:
    """A mirror that records what is done to it."""

    def __init__(self, target: FakeTarget, notes: Notes, columns: dict[str, str]) -> None:
        self._target = target
        self.name = NAME
        self.notes = notes
        self.columns = columns

    def save_notes(self) -> None:
        self._target.saved = self.notes.encode()

    def drop_below_floor(self) -> None:
        self._target.done.append(f"empty below {self.notes.floor}")

    def ensure_index(self) -> None:
        pass

    def evolve(self, evolution: object) -> None:
        raise AssertionError

    def merge(self, changes: str, query: str, batch: int, *, quarantines: bool) -> int:
        if self._target.refuses and not quarantines:
            raise RefusedRow(Refusal("shop.t", '["7"]', "v", '"x"', "too long"))
        self._target.done.append(f"merge {changes}")
        return int(self._target.refuses)

    def archive(self, sequence: str) -> None:
        self._target.done.append(f"archive {sequence}")

    def discard(self) -> None:
        self._target.done.append("discard")
        self._target.saved = None


class FakeTarget:
    """A store of one table, of which only the notes are kept."""

    def __init__(self) -> None:
        self.saved: str | None = None
        self.done: list[str] = []
        self.refuses = False
        self.unmirrored: dict[tuple[str, str], LeftOut] = {}
        self.other_tables: list[tuple[str, str]] = []

    def tables(self) -> list[tuple[str, str]]:
        return self.other_tables + ([NAME] if self.saved is not None else [])

    def require(self, name: tuple[str, str], columns: Collection[str]) -> None:
        if any(len(part) > 20 for part in (*name, *columns)):
            raise Unmirrored("too long a name")

    def left_out(self) -> dict[tuple[str, str], LeftOut]:
        return self.unmirrored

    def save_left_out(self, tables: dict[tuple[str, str], LeftOut]) -> None:
        self.unmirrored = dict(tables)

    def table_names(self, database: str) -> list[str]:
        return []

    def native_types(self) -> frozenset[str]:
        return frozenset()

    def open(self, name: tuple[str, str]) -> FakeTable | None:
        if name != NAME:
            return None
        return None if self.saved is None else FakeTable(self, Notes.decode(self.saved), {"id": "int"})

    def create(self, name: tuple[str, str], notes: Notes, columns: dict[str, str]) -> FakeTable:
        self.saved = notes.encode()
        return FakeTable(self, notes, columns)


class Found:
    """The messages of a batch: barriers only, because rows are in the summary."""

    def __init__(self, barriers: list[dict[str, Any]]) -> None:
        self._texts = [
            Row(barrier=json.dumps({"v": 1, **barrier}), queueId=0, queueOffset=number)
            for number, barrier in enumerate(barriers)
        ]

    def where(self, condition: object) -> Found:
        return self

    def select(self, *names: str) -> Found:
        return self

    def collect(self) -> list[Row]:
        return self._texts


class Mirror:
    """Applies batches. Every batch is a new run, because a run may have ended after any batch."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
        path = tmp_path / "sync.toml"
        path.write_text(f'[topic]\nname = "changes"\n[mirror]\npath = "mirror"\n{lines}\n')
        self._config = read_mirror_config(path, SECTIONS)
        self.target = FakeTarget()
        self._monkeypatch = monkeypatch

    def __call__(self, *barriers: dict[str, Any], rows: tuple[str, str] | None = None) -> list[str]:
        """Applies barriers, and rows from one sequence number to another; returns what was done."""
        summary = [Row(readable=True, kind="ddl", newer=None, messages=1, bytes=1)] if barriers else []
        if rows is not None:
            first, last = rows
            names: dict[str, Any] = {
                "database": "shop",
                "table": "t",
                "schema": 1,
                "kind": "rows",
                "readable": True,
            }
            counts = {"messages": 1, "bytes": 1, "rows": 3, "committed_s": 1}
            summary.append(Row(**names, **counts, lowest=first, highest=last, newer=None))
        anything: Any = self.target
        applier: Any = Applier(self._config, lambda spark: anything)
        self._monkeypatch.setattr(apply, "_summary", lambda found: summary)
        self._monkeypatch.setattr(apply.f, "col", lambda name: _Anything())
        self._monkeypatch.setattr(Applier, "_changes", lambda *_: f"{rows[0]} to {rows[1]}" if rows else "")
        self.target.done.clear()
        applier._apply_all(anything, Found(list(barriers)), BatchProgress(0.0), BatchId("query", 1))
        self.applied = applier.applied
        return list(self.target.done)


class _Anything:
    def isNotNull(self) -> None:
        return None

    def __and__(self, other: object) -> None:
        return None


def barrier(kind: str, sequence: str, queue: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "seq": sequence,
        "database": "shop",
        "table": "t",
        "queue": queue,
        "queues": 2,
        **more,
    }


def defined(sequence: str) -> dict[str, Any]:
    return barrier("schema", sequence, schema=1, **ONE.document())


def dropped(sequence: str, queue: int) -> dict[str, Any]:
    return barrier(
        "ddl", sequence, queue, action="table", statement="DROP TABLE t", names=[NAME], tables=["shop.t"]
    )


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda lines: Mirror(tmp_path, monkeypatch, lines)


def test_a_refused_row_stops_the_run_unless_told_otherwise(make: Any) -> None:
    mirror = make("")
    mirror.target.refuses = True
    with pytest.raises(RefusedRow, match=r"column v of row \[\"7\"\] of shop.t is refused: too long"):
        mirror(defined("a1"), rows=("a1", "a2"))
    mirror = make('refused = "quarantine"')
    mirror.target.refuses = True
    assert mirror(defined("a1"), rows=("a1", "a2")) == ["merge a1 to a2"]
    assert mirror.applied.quarantined == 1


def test_a_barrier_that_binlog_sync_does_not_write_is_left_out(make: Any) -> None:
    """It would have emptied the table: no queue is left that has to bring it."""
    mirror = make("")
    forged = barrier("snapshot", "a9", state="end", begun="a9", queues=0)
    assert mirror(defined("a1"), *[forged] * 20, rows=("a1", "a2")) == ["merge a1 to a2"]
    assert mirror.applied.foreign == 20
    assert mirror.target.saved is not None and Notes.decode(mirror.target.saved).floor == ""


def unknown(**more: Any) -> dict[str, Any]:
    """A definition of an invented table."""
    return barrier("schema", "ff", **{"database": "x", "table": "y", "schema": 1, **ONE.document(), **more})


@pytest.mark.parametrize(
    "columns",
    [
        [{"name": "id", "type": "bit(x)", "nullable": False}],
        [{"name": "id", "type": f"decimal({'9' * 5_000},1)", "nullable": False}],
        [{"name": "id", "type": "decimal(0,7)", "nullable": False}],
        [{"name": name, "type": "int32", "nullable": False} for name in ("id", "ID")],
    ],
)
def test_a_definition_that_no_source_has_does_not_stop_other_tables(make: Any, columns: Any) -> None:
    """Each of these ended the run, and again after every restart."""
    mirror = make("")
    assert mirror(defined("a1"), unknown(columns=columns), rows=("a1", "a2")) == ["merge a1 to a2"]
    assert (mirror.applied.foreign, mirror.target.unmirrored) == (1, {})


@pytest.mark.parametrize("name", ["metaq_key", "a_name_that_the_target_refuses"])
def test_a_table_that_the_target_cannot_hold_is_left_out_alone(make: Any, name: str) -> None:
    mirror = make("")
    columns = [{"name": each, "type": "int32", "nullable": False} for each in ("id", name)]
    assert mirror(defined("a1"), unknown(columns=columns), rows=("a1", "a2")) == ["merge a1 to a2"]
    assert (mirror.applied.foreign, mirror.applied.skipped) == (0, {"x.y"})
    (left,) = mirror.target.unmirrored.values()
    assert left.sequence == "ff" and "name" in left.reason
    # The next run shows it too.
    assert mirror(rows=("a3", "a4")) == ["merge a3 to a4"]
    assert mirror.applied.skipped == {"x.y"}


def test_a_mirror_that_lacks_changes_waits_for_a_snapshot(make: Any) -> None:
    """Otherwise it would differ from its source, and nobody would know."""
    mirror = make("")
    columns = [{"name": each, "type": "int32", "nullable": False} for each in ("id", "metaq_key")]
    bad = barrier("schema", "a1", schema=1, columns=columns, key=["id"])
    assert mirror(bad, rows=("a1", "a2")) == []
    assert mirror(rows=("a3", "a4")) == []
    assert mirror.target.unmirrored[NAME].sequence == "a4"
    # The source has renamed the column. The mirror is made, but it lacks the rows from before.
    assert mirror(defined("a5"), rows=("a5", "a6")) == []
    assert (mirror.target.unmirrored, mirror.applied.skipped) == ({}, {"shop.t"})
    begin = barrier("snapshot", "b1", state="begin", begun="b0")
    assert mirror(begin, rows=("b1", "b2")) == ["merge b1 to b2"]
    assert mirror.applied.skipped == set()


def test_a_mirror_whose_table_cannot_be_held_any_more_is_skipped_alone(make: Any) -> None:
    mirror = make("")
    mirror(defined("a1"), rows=("a1", "a2"))
    columns = [{"name": each, "type": "int32", "nullable": False} for each in ("id", "metaq_seq")]
    assert mirror(barrier("schema", "a3", schema=2, columns=columns, key=["id"]), rows=("a3", "a4")) == []
    assert mirror.applied.skipped == {"shop.t"}
    notes = Notes.decode(mirror.target.saved)
    assert (notes.skipped, len(notes.definitions)) == ("a4", 1)


def test_names_that_no_server_allows_reach_no_target(make: Any) -> None:
    mirror = make("")
    names = [["shop", name] for name in ("", "x" * 65, "a\0", "a ", "\U0001f600")]
    statement = "DROP TABLE " + ", ".join("`" + name + "`" for _, name in names)
    drop = barrier("ddl", "a3", action="table", statement=statement, names=names, tables=[])
    mirror.target.open = None
    assert mirror(drop, *(unknown(table=name) for _, name in names)) == []
    assert mirror.applied.foreign == len(names)


def test_a_skipped_table_resumes_with_a_later_snapshot(make: Any) -> None:
    mirror = make('refused = "skip"')
    mirror.target.refuses = True
    assert mirror(defined("a1"), rows=("a1", "a4")) == []
    assert mirror.applied.skipped == {"shop.t"}
    mirror.target.refuses = False
    assert mirror(rows=("a5", "a7")) == []
    # This snapshot began before changes that were left out.
    assert mirror(barrier("snapshot", "a9", state="begin", begun="a6"), rows=("a8", "a8")) == []
    begin = barrier("snapshot", "b1", state="begin", begun="b0")
    assert mirror(begin, rows=("b1", "b2")) == ["merge b1 to b2"]
    assert mirror.applied.skipped == set()


def test_a_drop_is_followed_when_every_queue_has_brought_it(make: Any) -> None:
    for policy, followed in (("drop", ["discard"]), ("archive", ["archive b5", "discard"]), ("keep", [])):
        mirror = make(f'dropped = "{policy}"')
        mirror(defined("a1"), rows=("a1", "a2"))
        assert mirror(dropped("b5", 0)) == ["empty below "]
        # The other queue still brings rows from before the drop.
        assert mirror(dropped("b5", 1), rows=("a3", "a4")) == ["empty below ", "merge a3 to a4", *followed]
        assert (mirror.target.saved is None) is (policy != "keep")


def test_a_batch_whose_table_was_dropped_may_be_applied_again(make: Any) -> None:
    mirror = make('dropped = "drop"')
    mirror(defined("a1"), rows=("a1", "a2"))
    mirror(dropped("b5", 0))
    assert mirror(dropped("b5", 1), rows=("a3", "a4"))[-1] == "discard"
    assert mirror(dropped("b5", 1), rows=("a3", "a4")) == []
    # Rows after the drop need a definition. Without one they are left out, and the run goes on.
    assert mirror(dropped("b5", 1), rows=("a3", "b6")) == []
    assert mirror.applied.foreign == 1


@pytest.mark.parametrize(
    ("policy", "followed"),
    [("empty", []), ("drop", []), ("keep", []), ("archive", ["archive b5"])],
)
def test_a_table_that_is_created_again_has_none_of_its_old_rows(
    make: Any, policy: str, followed: list[str]
) -> None:
    mirror = make(f'dropped = "{policy}"')
    mirror(defined("a1"), rows=("a1", "a2"))
    done = mirror(dropped("b5", 0), defined("b6"), rows=("b6", "b7"))
    assert done == [*followed, "empty below b5", "merge b6 to b7"]
    # The drop from the other queue changes nothing any more.
    assert mirror(dropped("b5", 1), rows=("b8", "b9")) == ["empty below b5", "merge b8 to b9"]
    assert Notes.decode(mirror.target.saved).floor == "b5"


def test_a_copy_of_a_message_may_lack_its_time() -> None:
    anything: Any = None
    applier = Applier(anything, anything)
    row = Row(database="shop", table="t", kind="rows", messages=1, bytes=1, committed_s=None)
    applier._count([row])
    assert (applier.applied.messages, applier.applied.committed_s) == (1, 0)
