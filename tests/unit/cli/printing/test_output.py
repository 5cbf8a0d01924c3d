"""Lists and single things in each form."""

from __future__ import annotations

import json

import pytest

from metaq.cli.exits import fail
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import size
from metaq.cli.printing.output import Column, Rows, note, print_one, print_rows, print_table, say

COLUMNS = (
    Column("name"),
    Column("lag", right=True),
    Column("bytes", "size", show=size, right=True, is_optional=True),
)
ROWS = [
    {"name": "a,b", "lag": 1200, "bytes": 2048, "tags": ["x"]},
    {"name": "[red]c", "lag": None, "bytes": None, "tags": []},
]


def printed(capsys: pytest.CaptureFixture[str], output: Format, rows: list[dict[str, object]]) -> str:
    print_rows(output, rows, COLUMNS, empty="There is nothing.")
    return capsys.readouterr().out


def test_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, Format.json, ROWS)) == ROWS
    assert printed(capsys, Format.csv, ROWS).splitlines() == [
        "name,lag,bytes,tags",
        '"a,b",1200,2048,x',
        "[red]c,,,",
    ]
    lines = [line.split() for line in printed(capsys, Format.table, ROWS).splitlines()]
    assert lines == [["name", "lag", "size"], ["a,b", "1,200", "2.0", "KiB"], ["[red]c", "–", "–"]]


def test_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, Format.json, []) == "[]\n"
    assert printed(capsys, Format.csv, []) == "name,lag,bytes\n"
    assert printed(capsys, Format.table, []) == "There is nothing.\n"


def test_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for output in Format:
        print_one(output, {"topic": "a", "queues": [1, 2]}, "a has 2 queues")
        outputs.append(capsys.readouterr().out)
    assert outputs == ["a has 2 queues\n", '{"topic":"a","queues":[1,2]}\n', "topic,queues\na,1;2\n"]


def test_rows_that_come_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    for output, expected in (
        (Format.table, "<1>\n<2>\n"),
        (Format.json, '[\n{"n":1},\n{"n":2}\n]\n'),
        (Format.csv, "n\n1\n2\n"),
    ):
        with Rows(output, ["n"], lambda number: f"<{number}>", empty="None.") as rows:
            for number in (1, 2):
                rows.print(number, lambda number=number: {"n": number})  # type: ignore[misc]
        assert capsys.readouterr().out == expected
    for output, expected in ((Format.table, "None.\n"), (Format.json, "[]\n"), (Format.csv, "n\n")):
        with Rows(output, ["n"], str, empty="None."):
            pass
        assert capsys.readouterr().out == expected


def test_a_list_that_breaks_off_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError), Rows(Format.json, ["n"], str, empty="") as rows:
        rows.print(1, lambda: {"n": 1})
        raise OSError
    with pytest.raises(json.JSONDecodeError):
        json.loads(capsys.readouterr().out)


def test_fractions_and_fields_of_csv(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "rate": 1.9900000000000002,
        "third": 1 / 3,
        "names": ["a", "b;c", "d=e"],
        "settings": {"x": 1, "y": None, "is": True},
        "queues": [{"topic": "t", "at": [1, 2.1000000000000001]}, {"topic": "a\\b", "at": []}],
    }
    print_one(Format.csv, record, "")
    assert capsys.readouterr().out.splitlines() == [
        "rate,third,names,settings,queues",
        r"1.99,0.333333,a;b\;c;d\=e,x=1;y=;is=true,0.topic=t;0.at.0=1;0.at.1=2.1;1.topic=a\\b",
    ]
    print_one(Format.json, {"rate": 1.9900000000000002}, "")
    assert capsys.readouterr().out == '{"rate":1.99}\n'


def test_a_narrow_terminal_leaves_optional_columns_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "18")
    print_rows(Format.table, ROWS, COLUMNS, empty="")
    shown = capsys.readouterr()
    assert "lag" in shown.out and "size" not in shown.out
    assert shown.err == "metaq: the terminal is too narrow for: size (-o csv has everything)\n"


HOSTILE = "a\x1b]0;owned\x07\x9b2J\rb"
HARMLESS = r"a\x1b]0;owned\x07\x9b2J\rb"


def test_names_of_others_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(Format.table, [{"name": HOSTILE, "tags": [HOSTILE]}], (Column("name"),), empty="")
    print_one(Format.table, {}, ["first", HOSTILE])
    print_table(("head",), [(HOSTILE,)])
    Rows(Format.table, ("name",), str, empty="").print(HOSTILE, dict)
    say(f"one\n\ttwo {HOSTILE}")
    note(HOSTILE)
    with pytest.raises(SystemExit):
        fail(HOSTILE, HOSTILE, 1, "CommandError")
    printed = capsys.readouterr()
    assert printed.out.count(HARMLESS) == 5 and printed.err.count(HARMLESS) == 2
    assert "one\n\ttwo " in printed.out
    assert not {"\x1b", "\x9b", "\x07", "\r"} & {*printed.out, *printed.err}
