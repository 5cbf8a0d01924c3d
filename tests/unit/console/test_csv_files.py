"""CSV that no spreadsheet takes for a program."""

from __future__ import annotations

import csv
import io

import pytest

from metaq.console.csv_files import csv_text, safe_cell


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1", " =1", "\n=1", "\n\n-x"])
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize(("value", "cell"), [(None, ""), (-5, "-5"), (1.5, "1.5"), ("a=b", "a=b"), ("", "")])
def test_other_cells_stay_as_they_are(value: object, cell: str) -> None:
    assert safe_cell(value) == cell


def test_rows_are_read_back() -> None:
    text = csv_text(("a", "b"), [{"a": 'x"y\n,z', "b": "=HYPERLINK(1)"}, {"a": "中"}])
    assert text.startswith("\ufeff")
    rows = list(csv.reader(io.StringIO(text[1:], newline="")))
    assert rows == [["a", "b"], ['x"y\n,z', "'=HYPERLINK(1)"], ["中", ""]]
