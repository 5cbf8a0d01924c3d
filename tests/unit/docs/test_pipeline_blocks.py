"""The TOML files and pipeline commands in the documentation are valid."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from metaq import pipelines
from metaq.cli import app
from metaq.pipelines import Plan, Progress, Report, Verification

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
SYNC = ("binlog-sync",)
BOTH = ("binlog-sync", "binlog-mirror")

READ_BY: dict[str, list[tuple[str, ...]]] = {
    "operation.md": [()],
    "configuration.md": [()],
    "pipelines.md": [SYNC, BOTH, BOTH, BOTH],
    "log-transport.md": [("log-transport",)],
    "log-lake.md": [("log-lake",)],
    "stream-sql.md": [("stream-sql",)],
}
"""The pipelines that read each TOML block of a page. A block without a pipeline configures a broker."""


def blocks(page: Path, *languages: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


PAGES = {page.name: page for page in sorted((ROOT / "docs").glob("*.md"))}
TOML = {name: found for name, page in PAGES.items() if (found := blocks(page, "toml"))}


def test_every_toml_block_has_its_reader() -> None:
    assert {name: len(found) for name, found in TOML.items()} == {
        name: len(readers) for name, readers in READ_BY.items()
    }


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page, found in TOML.items() for number in range(len(found))]
)
def test_toml_blocks_are_configurations(
    page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("METAQ_SOURCE_PASSWORD", "METAQ_TARGET_PASSWORD"):
        monkeypatch.setenv(variable, "secret")
    file = tmp_path / "page.toml"
    text = TOML[page][number]
    readers = READ_BY[page][number]
    if readers == BOTH:
        # The block adds sections to the first file of the page.
        text = f"{TOML[page][0]}\n{text}"
    file.write_text(text, encoding="utf-8")
    for name in readers:
        pipelines.load(name).from_file(file)
    if not readers:
        outcome = CliRunner().invoke(app, ["config", "show", "--config", str(file)], catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        assert str(file) in outcome.stdout.replace("\n", "")
        assert outcome.stderr == ""


class Anything:
    """A pipeline that accepts every command and does nothing."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        assert path.suffix == ".toml"
        return cls()

    def on(self, master: str | None, environment: str | None = None) -> Self:
        return self

    def plan(self) -> Plan:
        return Plan({})

    def run(self, report: Report, stop: threading.Event) -> Progress:
        return Progress()

    def reread(self, table: str, first: int | None, last: int | None, *, dry_run: bool) -> int:
        return 1

    def verify(self, limit: int, wait_s: float) -> Verification:
        return Verification(())


LINES = {
    line.partition("metaq pipeline ")[2]
    for page in PAGES.values()
    for block in blocks(page, "bash", "text")
    for line in block.splitlines()
    if "metaq pipeline " in line
}


@pytest.mark.parametrize("line", sorted(LINES))
def test_commands_of_pipelines_are_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "load", lambda name: Anything)
    words = shlex.split(line, comments=True)
    assert words[0] == "list" or words[1] in pipelines.PIPELINES
    outcome = CliRunner().invoke(app, ["pipeline", *words])
    assert outcome.exit_code == 0, outcome.output
