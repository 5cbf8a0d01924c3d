"""The notes of a mirror only grow, and barriers give the same result in any order."""

from __future__ import annotations

from itertools import permutations
from typing import Any
from urllib.parse import unquote

import pytest

from metaq.pipelines.binlog_mirror.columns import evolution, spark_type, wider
from metaq.pipelines.binlog_mirror.delta import table_path
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Notes, barriers_by_table
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

ONE = Definition((Column("id", "int32", False),), ("id",))
TWO = Definition((Column("id", "int64", False), Column("v", "text", True)), ("id",))
NAME = ("shop", "t")


def message(kind: str, sequence: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "seq": sequence, "database": "shop", "table": "t", **more}


MESSAGES = [
    message("schema", "a1", schema=1, **ONE.document()),
    message("snapshot", "a2", state="end", begun="a1", queue=0, queues=2),
    message("snapshot", "a2", state="end", begun="a1", queue=1, queues=2),
    message("ddl", "a3", action="truncate", statement="TRUNCATE t", tables=["shop.t"]),
    message("schema", "b1", schema=1, **TWO.document()),
]


def test_every_order_gives_the_same_notes() -> None:
    outcomes = set()
    for messages in permutations(MESSAGES):
        notes = Notes("shop.t")
        for one in messages:
            found = barriers_by_table([one], lambda database: ())
            if found:
                found[NAME].add_to(notes)
        outcomes.add(notes.encode())
        assert notes.newest == TWO
        assert notes.definitions_of(1) == [("a1", ONE), ("b1", TWO)]
    assert len(outcomes) == 1
    assert Notes.decode(outcomes.pop()).floor == "a3"


def test_the_same_barriers_change_nothing_twice() -> None:
    notes = Notes("shop.t")
    barriers = barriers_by_table(MESSAGES, lambda database: ())[NAME]
    assert barriers.add_to(notes)
    assert not barriers.add_to(notes)
    assert barriers.may_empty


def test_a_snapshot_ends_with_its_last_queue() -> None:
    notes = Notes("shop.t")
    assert notes.end_snapshot("a1", 0, 2) and notes.floor == ""
    notes = Notes.decode(notes.encode())
    assert not notes.end_snapshot("a1", 0, 2) and notes.floor == ""
    assert notes.end_snapshot("a1", 1, 2) and notes.floor == "a1"


def test_notes_of_two_runs_are_merged() -> None:
    one, other = Notes("shop.t"), Notes("shop.t")
    one.define("a1", 1, ONE)
    one.end_snapshot("a5", 0, 2)
    other.define("b1", 2, TWO)
    other.end_snapshot("a5", 1, 2)
    other.end_snapshot("a1", 1, 2)
    other.raise_floor("a2")
    one.merge(other)
    assert (one.floor, one.newest, one.ends) == ("a2", TWO, {"a5": {0, 1}})
    assert one.definitions_of(1) == [("a1", ONE)]
    # The repeated end completes the snapshot.
    assert one.end_snapshot("a5", 1, 2) and one.floor == "a5"


def test_names_with_dots() -> None:
    drop = message(
        "ddl", "a9", action="table", statement="DROP TABLE t", tables=["a.b.c"], names=[["a.b", "c"]]
    )
    assert barriers_by_table([drop], lambda database: ()).keys() == {("a.b", "c")}
    del drop["names"]
    assert barriers_by_table([drop], lambda database: ()).keys() == {("a", "b.c")}


@pytest.mark.parametrize("name", ["..", "_hidden", ".hidden", "a/b", "a.b", "%2E"])
def test_every_name_has_its_own_directory(name: str) -> None:
    folder = table_path("root", (name, "t")).split("/")[1]
    assert not folder.startswith((".", "_"))
    assert unquote(folder) == name


def test_dropping_a_database_empties_all_its_tables() -> None:
    drop = message("ddl", "a9", action="database", statement="DROP DATABASE shop", tables=[])
    found = barriers_by_table([drop, MESSAGES[0]], lambda database: ("old",))
    assert {name: barriers.floors for name, barriers in found.items()} == {
        NAME: ["a9"],
        ("shop", "old"): ["a9"],
    }


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "table": "t"}'])
def test_damaged_notes_are_an_error(text: str) -> None:
    with pytest.raises(MirrorError, match="cannot be read"):
        Notes.decode(text)


def test_types() -> None:
    def kind(source_type: str, *, typed_dates: bool = True) -> str:
        return spark_type(Column("c", source_type, True), typed_dates=typed_dates)

    assert kind("int64 unsigned") == "decimal(20,0)"
    assert kind("decimal(38,2)") == "decimal(38,2)"
    assert kind("decimal(65,2)") == kind("time(3)") == kind("enum") == "string"
    assert (kind("bit(63)"), kind("bit(64)")) == ("bigint", "decimal(20,0)")
    assert kind("datetime(0)") == "timestamp_ntz"
    assert kind("datetime(0)", typed_dates=False) == "string"


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        ("int", "bigint", "bigint"),
        ("bigint", "tinyint", "bigint"),
        ("float", "double", "double"),
        ("decimal(9,2)", "decimal(8,4)", "decimal(11,4)"),
        ("int", "decimal(9,2)", "decimal(12,2)"),
        ("decimal(38,0)", "decimal(38,10)", "string"),
        ("int", "double", "string"),
        ("date", "timestamp", "string"),
    ],
)
def test_the_type_that_holds_both(before: str, after: str, both: str) -> None:
    assert wider(before, after) == wider(after, before) == both


def test_modes_of_schema_changes() -> None:
    there, wanted = {"id": "int", "gone": "int", "v": "int"}, {"ID": "bigint", "v": "string", "new": "date"}
    lenient = evolution("t", there, wanted, "lenient")
    assert (lenient.added, lenient.retyped) == ({"new": "date"}, {"id": "bigint", "v": "string"})
    assert lenient.dropped == ()
    assert evolution("t", there, wanted, "evolve").dropped == ("gone",)
    assert not evolution("t", there, wanted, "ignore")
    with pytest.raises(
        MirrorError, match="new date is new, id becomes bigint, v becomes string, gone is gone"
    ):
        evolution("t", there, wanted, "exception")
    assert not evolution("t", there, {"id": "int", "gone": "int", "V": "int"}, "exception")
