"""What is kept beside the rows of a mirror: it grows, in whatever order it comes."""

from __future__ import annotations

from itertools import permutations
from typing import Any
from urllib.parse import unquote

import pytest

from metaq.pipelines.binlog_mirror.columns import evolution, spark_type, wider
from metaq.pipelines.binlog_mirror.delta import table_path
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Notes, barriers_by_table
from metaq.pipelines.binlog_sync.columns import Column, Definition

ONE = Definition((Column("id", "int32", False),), ("id",))
TWO = Definition((Column("id", "int64", False), Column("v", "text", True)), ("id",))
NAME = ("shop", "t")


def told(kind: str, sequence: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "seq": sequence, "database": "shop", "table": "t", **more}


MESSAGES = [
    told("schema", "a1", schema=1, **ONE.document()),
    told("snapshot", "a2", state="end", begun="a1", queue=0, queues=2),
    told("snapshot", "a2", state="end", begun="a1", queue=1, queues=2),
    told("ddl", "a3", action="truncate", statement="TRUNCATE t", tables=["shop.t"]),
    told("schema", "b1", schema=1, **TWO.document()),
]


def test_every_order_comes_to_the_same() -> None:
    outcomes = set()
    for messages in permutations(MESSAGES):
        notes = Notes("shop.t")
        for message in messages:
            found = barriers_by_table([message], lambda database: ())
            if found:
                found[NAME].note(notes)
        outcomes.add(notes.encode())
        assert notes.newest == TWO
        assert notes.told(1) == [("a1", ONE), ("b1", TWO)]
    assert len(outcomes) == 1
    assert Notes.decode(outcomes.pop()).floor == "a3"


def test_nothing_is_new_twice() -> None:
    notes = Notes("shop.t")
    barriers = barriers_by_table(MESSAGES, lambda database: ())[NAME]
    assert barriers.note(notes)
    assert not barriers.note(notes)
    assert barriers.may_empty


def test_a_snapshot_ends_with_its_last_queue() -> None:
    notes = Notes("shop.t")
    assert notes.end_snapshot("a1", 0, 2) and notes.floor == ""
    notes = Notes.decode(notes.encode())
    assert not notes.end_snapshot("a1", 0, 2) and notes.floor == ""
    assert notes.end_snapshot("a1", 1, 2) and notes.floor == "a1"


def test_notes_of_two_runs_are_united() -> None:
    one, other = Notes("shop.t"), Notes("shop.t")
    one.define("a1", 1, ONE)
    one.end_snapshot("a5", 0, 2)
    other.define("b1", 2, TWO)
    other.end_snapshot("a5", 1, 2)
    other.end_snapshot("a1", 1, 2)
    other.raise_floor("a2")
    one.unite(other)
    assert (one.floor, one.newest, one.ends) == ("a2", TWO, {"a5": {0, 1}})
    assert one.told(1) == [("a1", ONE)]
    # Told again, the snapshot is over.
    assert one.end_snapshot("a5", 1, 2) and one.floor == "a5"


def test_names_with_dots() -> None:
    drop = told("ddl", "a9", action="table", statement="DROP TABLE t", tables=["a.b.c"], names=[["a.b", "c"]])
    assert barriers_by_table([drop], lambda database: ()).keys() == {("a.b", "c")}
    del drop["names"]
    assert barriers_by_table([drop], lambda database: ()).keys() == {("a", "b.c")}


@pytest.mark.parametrize("name", ["..", "_hidden", ".hidden", "a/b", "a.b", "%2E"])
def test_every_name_has_a_place_of_its_own(name: str) -> None:
    folder = table_path("root", (name, "t")).split("/")[1]
    assert not folder.startswith((".", "_"))
    assert unquote(folder) == name


def test_a_dropped_database_empties_all_of_its_tables() -> None:
    drop = told("ddl", "a9", action="database", statement="DROP DATABASE shop", tables=[])
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
    def kind(told: str, *, typed_dates: bool = True) -> str:
        return spark_type(Column("c", told, True), typed_dates=typed_dates)

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


def test_what_the_modes_do() -> None:
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
