"""The notes of a mirror only grow, and barriers give the same result in any order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any
from urllib.parse import unquote

import pytest

from metaq.pipelines.binlog_mirror.columns import evolution, spark_type, wanted_columns, wider
from metaq.pipelines.binlog_mirror.delta import table_path
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_mirror.notes import Barriers, Notes, TableName, barriers_by_table
from metaq.pipelines.binlog_mirror.policies import ARCHIVE, DROP, KEEP
from metaq.pipelines.binlog_sync.envelope import decode_barrier
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

ONE = Definition((Column("id", "int32", False),), ("id",))
TWO = Definition((Column("id", "int64", False), Column("v", "text", True)), ("id",))
NAME = ("shop", "t")


def message(kind: str, sequence: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "seq": sequence, "database": "shop", "table": "t", "queue": 0, **more}


def grouped(messages: Iterable[dict[str, Any]], *tables: str) -> dict[TableName, Barriers]:
    """Groups the barriers of messages; `tables` are the mirrors of every database."""
    return barriers_by_table(map(decode_barrier, messages), lambda database: tables)


MESSAGES = [
    message("schema", "a1", schema=1, **ONE.document()),
    message("snapshot", "a2", state="end", begun="a1", queue=0, queues=2),
    message("snapshot", "a2", state="end", begun="a1", queue=1, queues=2),
    message("ddl", "a3", action="truncate", statement="TRUNCATE t", tables=["shop.t"], queue=0),
    message("schema", "b1", schema=1, **TWO.document()),
]


def test_every_order_gives_the_same_notes() -> None:
    outcomes = set()
    for messages in permutations(MESSAGES):
        notes = Notes("shop.t")
        for one in messages:
            found = grouped([one])
            if found:
                found[NAME].add_to(notes)
        outcomes.add(notes.encode())
        assert notes.newest == TWO
        assert notes.definitions_of(1) == [("a1", ONE), ("b1", TWO)]
    assert len(outcomes) == 1
    assert Notes.decode(outcomes.pop()).floor == "a3"


def test_the_same_barriers_change_nothing_twice() -> None:
    notes = Notes("shop.t")
    barriers = grouped(MESSAGES)[NAME]
    assert barriers.add_to(notes)
    assert not barriers.add_to(notes)
    assert barriers.may_empty


@pytest.mark.parametrize(
    ("statement", "empties", "gone", "is_floor", "is_drop"),
    [
        # binlog-sync knows what a statement did. The mirror could not read these.
        ("SET STATEMENT max_statement_time=100 FOR TRUNCATE TABLE t", True, [], True, False),
        ('DROP TABLE "t"', True, [["shop", "t"]], False, True),
        ("TRUNCATE t", False, [], False, False),
        # Older messages leave it to the mirror.
        ("SET STATEMENT a=1 FOR TRUNCATE t", None, [], True, False),
        ("DROP TABLE t", None, [], False, True),
        ("ALTER TABLE t COMMENT 'x'", None, [], False, False),
    ],
)
def test_the_message_says_what_a_statement_did(
    statement: str, empties: bool | None, gone: list[list[str]], is_floor: bool, is_drop: bool
) -> None:
    known = {} if empties is None else {"empties": empties, "gone": gone}
    names = {"tables": ["shop.t"], "names": [["shop", "t"]]}
    ddl = message("ddl", "a3", action="table", statement=statement, **names, **known)
    barriers = grouped([ddl]).get(NAME, Barriers())
    assert (bool(barriers.floors), bool(barriers.drops)) == (is_floor, is_drop)


@pytest.mark.parametrize("wrong", [{"empties": "yes"}, {"empties": True, "gone": [["shop", 5]]}])
def test_a_message_with_wrong_effects_is_refused(wrong: dict[str, Any]) -> None:
    ddl = message("ddl", "a3", action="table", statement="DROP TABLE t", tables=["shop.t"], **wrong)
    with pytest.raises(TypeError):
        decode_barrier(ddl)


def test_a_range_is_complete_with_its_last_queue_even_if_it_comes_again() -> None:
    ends = [
        message("range", "a5", column="id", first=1, last=None, begun="a4", queue=queue, queues=2)
        for queue in (0, 1)
    ]
    notes = Notes("shop.t")
    one, both = (grouped(found)[NAME] for found in (ends[:1], ends))
    assert one.add_to(notes) and not one.complete_ranges(notes)
    assert both.add_to(notes) and not both.add_to(notes)
    # The notes were saved and the run was killed: the batch comes again.
    again = Notes.decode(notes.encode())
    assert not one.add_to(again)
    (found,) = one.complete_ranges(again)
    assert (found.column, found.first, found.last, found.begun) == ("id", 1, None, "a4")
    assert again.raise_floor("a6") and not again.range_ends


def test_a_range_with_a_number_of_another_form_is_refused() -> None:
    wrong = message("range", "a5", column="id", first=1, last=None, begun="a'; DROP", queue=0, queues=1)
    with pytest.raises(ValueError, match="not a sequence number"):
        grouped([wrong])


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
        "ddl", "a9", action="table", statement="DROP TABLE t", tables=["a.b.c"], names=[["a.b", "c"]], queue=0
    )
    assert grouped([drop]).keys() == {("a.b", "c")}
    del drop["names"]
    assert grouped([drop]).keys() == {("a", "b.c")}


@pytest.mark.parametrize("name", ["..", "_hidden", ".hidden", "a/b", "a.b", "%2E"])
def test_every_name_has_its_own_directory(name: str) -> None:
    folder = table_path("root", (name, "t")).split("/")[1]
    assert not folder.startswith((".", "_"))
    assert unquote(folder) == name


def test_dropping_a_database_empties_all_its_tables() -> None:
    drop = message(
        "ddl", "a9", action="database", statement="DROP DATABASE shop", tables=[], queue=1, queues=2
    )
    found = grouped([drop, MESSAGES[0]], "old")
    assert {name: barriers.drops for name, barriers in found.items()} == {
        NAME: [("a9", 1, 2)],
        ("shop", "old"): [("a9", 1, 2)],
    }
    notes = Notes("shop.t")
    assert found[NAME].add_to(notes) and notes.floor == "a9"


def ddl(statement: str, sequence: str, *names: str, queue: int = 0) -> dict[str, Any]:
    pairs = [["shop", name] for name in names]
    return message(
        "ddl", sequence, action="table", statement=statement, names=pairs, queue=queue, queues=2, tables=[]
    )


@pytest.mark.parametrize(
    ("statement", "names", "dropped", "emptied"),
    [
        ("DROP TABLE a, b", ("a", "b"), {"a", "b"}, set()),
        ("/* why */ DROP TABLE IF EXISTS a", ("a",), {"a"}, set()),
        ("TRUNCATE a", ("a",), set(), {"a"}),
        ("RENAME TABLE a TO b", ("a", "b"), {"a"}, {"b"}),
        ("RENAME TABLE a TO b, c TO a", ("a", "b", "c"), {"c"}, {"a", "b"}),
        ("ALTER TABLE A RENAME TO b", ("a", "b"), {"a"}, {"b"}),
        ("CREATE OR REPLACE TABLE a (id INT)", ("a",), set(), {"a"}),
    ],
)
def test_tables_that_a_statement_takes_away(
    statement: str, names: tuple[str, ...], dropped: set[str], emptied: set[str]
) -> None:
    found = grouped([ddl(statement, "a9", *names)])
    assert {name for (_, name), barriers in found.items() if barriers.drops} == dropped
    assert {name for (_, name), barriers in found.items() if barriers.floors} == emptied


def dropped_in(*queues: int) -> Barriers:
    drops = [ddl("DROP TABLE t", "b5", "t", queue=queue) for queue in queues]
    return grouped(drops)[NAME]


@pytest.mark.parametrize("policy", [KEEP, DROP, ARCHIVE])
def test_a_drop_waits_for_every_queue(policy: str) -> None:
    notes = Notes("shop.t")
    notes.define("a1", 1, ONE)
    assert dropped_in(0).add_to(notes, policy)
    assert (notes.floor, notes.dropped) == ("", "b5") and not notes.drops["b5"].is_complete
    notes = Notes.decode(notes.encode())
    assert not dropped_in(0).add_to(notes, policy)
    assert dropped_in(1).add_to(notes, policy) and notes.drops["b5"].is_complete
    again = grouped([message("schema", "b6", schema=1, **ONE.document())])[NAME]
    assert again.recreates(notes.dropped) and not dropped_in(0).recreates(notes.dropped)
    notes.raise_floor("b5")
    assert not notes.drops and not dropped_in(1).add_to(notes, policy)


def test_a_skipped_table_resumes_where_everything_is_known() -> None:
    notes = Notes("shop.t")
    notes.skip("b5", "column v: too long")
    notes.skip("b7", "another")
    notes = Notes.decode(notes.encode())
    assert (notes.skipped, notes.skip_reason) == ("b7", "column v: too long")
    for begun in ("b6", "b7"):
        # A snapshot that began before some of the changes that were left out.
        begin = message("snapshot", "c0", state="begin", begun=begun, queue=0, queues=2)
        assert not grouped([begin])[NAME].add_to(notes)
    begin = message("snapshot", "c1", state="begin", begun="b8", queue=0, queues=2)
    assert grouped([begin])[NAME].add_to(notes)
    assert not notes.skipped
    notes.skip("c2", "again")
    assert grouped([ddl("TRUNCATE t", "c3", "t")])[NAME].add_to(notes)
    assert not notes.skipped


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "table": "t"}'])
def test_damaged_notes_are_an_error(text: str) -> None:
    with pytest.raises(MirrorError, match="cannot be read"):
        Notes.decode(text)


def test_notes_leave_out_a_definition_that_no_source_has() -> None:
    """An older version has saved what a stranger had sent. The mirror must open all the same."""
    notes = Notes("shop.t")
    notes.define("a1", 1, ONE)
    notes.define("ff", 2, Definition((Column("id", "bit(x)", False),), ("id",)))
    assert Notes.decode(notes.encode()).definitions == {("a1", 1): ONE}


def test_rows_without_a_key_cannot_be_mirrored() -> None:
    with pytest.raises(MirrorError, match="no primary key"):
        wanted_columns(Definition(ONE.columns, ()), typed_dates=True)


def test_types() -> None:
    def kind(source_type: str, *, typed_dates: bool = True) -> str:
        return spark_type(Column("c", source_type, True), typed_dates=typed_dates)

    assert kind("int64 unsigned") == "decimal(20,0)"
    assert kind("decimal(38,2)") == "decimal(38,2)"
    assert kind("decimal(65,2)") == kind("time(3)") == kind("enum") == "string"
    # Spark has no types for these; some databases do.
    assert kind("uuid") == kind("inet4") == kind("inet6") == "string"
    column = Column("c", "uuid", True)
    assert spark_type(column, typed_dates=True, native={"uuid"}) == "uuid"
    assert wider("uuid", "string") == wider("inet4", "inet6") == "string"
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
