"""Filter functions are found in folders and modules, and bad ones are refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.filters import FilterMessage, FunctionError, function
from metaq.filters.declared import describe, load


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Removes the modules that a folder has added to the process."""
    names, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - names:
        del sys.modules[name]


def put(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(f"from metaq.filters import FilterMessage, function\n{text}\n")
    return str(folder)


def test_a_folder_and_what_it_leaves_out(tmp_path: Path) -> None:
    folder = put(
        tmp_path / "f",
        first="from _shared import LIMIT\n@function\ndef large(message):\n"
        "    return len(message.body) > LIMIT",
        # The name of a standard module: neither hides the other.
        json="@function(name='shop.paid')\ndef paid(message: FilterMessage, *kinds: str) -> bool:\n"
        "    'Paid ones.'\n    return True\ndef unmarked(message):\n    return True",
        _shared="LIMIT = 3\n@function\ndef from_shared(message):\n    return True",
    )
    found = load([folder])
    assert sorted(found) == ["from_shared", "large", "shop.paid"]
    assert found["large"].function(FilterMessage("t", b"1234")) is True
    description = found["shop.paid"].description
    assert (description.signature, description.doc) == ("shop.paid([*kinds: text])", "Paid ones.")
    import json

    assert json.loads("1") == 1


def test_the_page_about_filters_shows_one_that_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "filters.md").read_text(encoding="utf-8")
    text = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    shown = load([put(tmp_path / "f", orders=text)])["larger_than"]
    assert shown.description.signature == "larger_than(amount: number, [*regions: text])"
    message = FilterMessage("Orders", b"17;100.0", {"region": "eu"})
    arguments: list[tuple[object, ...]] = [(99.5, "eu", "it's elsewhere"), (99.5,), (99.5, "us"), (100, "eu")]
    assert [shown.function(message, *some) for some in arguments] == [True, True, False, False]


def test_a_module_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, only_here="@function\ndef there(message, size: int = 3):\n    return True")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load(["only_here"])["there"].description.signature == "there([size: whole number])"


def test_a_folder_without_functions_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(FunctionError, match="has no function with the decorator"):
        load([put(tmp_path / "f", a="x = 1")])
    with pytest.raises(FunctionError, match="is not a folder"):
        load([str(tmp_path / "absent")])


def test_two_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    text = "@function\ndef same(message):\n    return True"
    with pytest.raises(FunctionError, match="two filter functions are called same: a same and b same"):
        load([put(tmp_path / "f", a=text, b=text)])


def _of(text: str) -> None:
    namespace: dict[str, object] = {"function": function}
    exec(text, namespace)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@function\ndef f(): return True", "must take the message"),
        ("@function\ndef f(*, message): return True", "must take the message"),
        ("@function\nasync def f(message): return True", "plain function"),
        ("@function\ndef f(message):\n    yield True", "plain function"),
        ("@function\ndef f(message, *, size): return True", "size is keyword-only"),
        ("@function\ndef _f(message): return True", "not a valid name"),
        ("@function(name='a b')\ndef f(message): return True", "not a valid name"),
        ("@function(name='a..b')\ndef f(message): return True", "not a valid name"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(text: str, says: str) -> None:
    with pytest.raises(FunctionError, match=says):
        _of(text)


def test_hints_that_cannot_be_resolved_are_left_out() -> None:
    def body(message: FilterMessage, size: int) -> bool:
        return True

    body.__annotations__["size"] = "OnlyForTheChecker"
    assert describe("body", body).signature == "body(size)"
