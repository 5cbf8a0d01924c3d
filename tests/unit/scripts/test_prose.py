"""scripts/prose.py finds sentences that read badly, and lets ordinary English pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import SCRIPTS, load_script


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    return load_script("prose")


@pytest.mark.parametrize(
    "line",
    [
        "# What is asked of a broker.",  # prose: ok
        "    /// Where the record lies.",  # prose: ok
        "//! Of every record that is made.",  # prose: ok
        '    """Those that wait."""',  # prose: ok
        '    """That of the master."""',  # prose: ok
        "-- Who wins.",  # prose: ok
        "a client is told when it moved",  # prose: ok
        "whether it was written cannot be told",  # prose: ok
        'raise ValueError("yesterday is no point in time")',  # prose: ok
        "a header that is no JSON",  # prose: ok
        "Takes up to so many messages.",  # prose: ok
        "The same by name, for tools.",  # prose: ok
    ],
)
def test_it_finds_bad_lines(prose: ModuleType, line: str) -> None:
    assert prose.is_bad(line)


@pytest.mark.parametrize(
    "line",
    [
        "# Whatever the peer sends, the connection goes on.",
        "# What if the disk is full? The append fails.",
        "if there is no queue, it is no longer pulled",
        "the offset is no newer than the last one",
        "there are so many queues that the start would take long",
        "the header of the request, and those of the answers",
        "files are sorted by name, oldest first",
        "Sends a request to a broker, by name or address.",
        "somebody told the operator",
        "What = 1",
        "# What is kept on purpose  prose: ok",
    ],
)
def test_ordinary_english_passes(prose: ModuleType, line: str) -> None:
    assert not prose.is_bad(line)


def test_headings_of_pages_may_open_with_what(prose: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What is not there yet\n\nA broker is told.\n", encoding="utf-8")  # prose: ok
    assert list(prose.findings(page)) == [(3, "A broker is told.")]  # prose: ok


def test_the_repository_passes() -> None:
    outcome = subprocess.run([sys.executable, SCRIPTS / "prose.py"], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stdout) == (0, "")
