"""Writes the files of docs/testing.md and runs them as a reader would."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.testing import AsyncLocalClock, AsyncLocalMetaq, LocalClock, LocalMetaq, StoredMessage

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Returns the page's files by name; the first line of each is its name."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    written = {}
    for block in blocks:
        named = re.match(r"# (\w+\.py)\n", block)
        assert named, block
        written[named[1]] = tmp_path / named[1]
        written[named[1]].write_text(block, encoding="utf-8")
    return written


def run(directory: Path, *command: str) -> str:
    outcome = subprocess.run(
        [sys.executable, *command], cwd=directory, capture_output=True, text=True, timeout=300, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def test_the_files_pass_as_tests_and_as_programs(files: dict[str, Path], tmp_path: Path) -> None:
    tests = [name for name in files if name.startswith("test_")]
    assert (len(files), len(tests)) == (4, 2)
    shown = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert "4 passed" in shown
    run(tmp_path, "plain.py")


def test_a_users_type_checker_is_content(files: dict[str, Path], tmp_path: Path) -> None:
    run(tmp_path, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *files)


def test_the_table_names_everything() -> None:
    table = "".join(line for line in PAGE.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`(?:clock\.)?(\w+)", table))
    fields = {field.name for field in dataclasses.fields(StoredMessage)} - {"topic"}
    for kind in (LocalMetaq, AsyncLocalMetaq, LocalClock, AsyncLocalClock):
        assert {name for name in vars(kind) if not name.startswith("_")} | fields <= named


def test_without_the_plugin_there_is_no_fixture(files: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:metaq", "-p", "no:cacheprovider"]
    outcome = subprocess.run([*command, "test_shop.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "fixture 'metaq_server' not found" in outcome.stdout
