"""The table of commands agrees with the commands, and costs little to load."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import metaq.cli
from metaq.cli import app
from metaq.cli.command_table import Entry, entries, load_command
from metaq.cli.suggestions import SYNONYMS, near_commands

ROOT = typer.main.get_command(app)


def commands() -> Iterator[tuple[str, object]]:
    """Every command with its path, groups and their commands."""
    for name, entry in entries():
        command = load_command(name, entry)
        yield name, command
        for below in getattr(command, "commands", {}).values():
            yield f"{name} {below.name}", below
            for last in getattr(below, "commands", {}).values():
                yield f"{name} {below.name} {last.name}", last


@pytest.mark.parametrize(("name", "entry"), list(entries()), ids=[name for name, _ in entries()])
def test_the_table_has_the_help_of_the_command(name: str, entry: Entry) -> None:
    command = load_command(name, entry)
    assert command.help.partition("\n\n")[0].replace("\n", " ") == entry.help


def test_every_command_and_flag_has_help() -> None:
    for path, command in commands():
        assert getattr(command, "help", None), path
        for parameter in getattr(command, "params", ()):
            assert getattr(parameter, "help", None), f"{path} {parameter.name}"


def test_every_command_takes_the_same_form_of_output() -> None:
    # These run until they are stopped, or print a script.
    without = {"serve", "nameserver", "broker", "dev cluster", "completion"}
    for path, command in commands():
        if getattr(command, "commands", None) or path in without:
            continue
        assert any("-o" in parameter.opts for parameter in command.params), path  # type: ignore[attr-defined]


def test_commands_print_results_by_the_shared_functions() -> None:
    """With these, every command has the same JSON, CSV and fractions; `print_json` would forget CSV."""
    sources = Path(metaq.cli.__file__).parent
    for file in (*sources.glob("commands/*.py"), *sources.glob("work/*.py")):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\bprint_json\(|msgspec\.json\.encode\(record", text), file.name


def test_synonyms_lead_to_commands() -> None:
    known = {word for path, _ in commands() for word in path.split()}
    assert {word for meant in SYNONYMS.values() for word in meant.split()} <= known
    assert not set(SYNONYMS) & {name for name, _ in entries()}
    assert near_commands("produce", ["send", "tail"]) == ["send"]
    assert near_commands("taill", ["send", "tail"]) == ["tail"]
    assert near_commands("describe", ["list"]) == []
    assert near_commands("clusterList", ["cluster", "topic"]) == ["cluster status", "cluster"]


def test_a_start_loads_no_command() -> None:
    """Instead of a time: the modules that cost most are not loaded for the help."""
    script = "import sys, metaq.cli; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names = set(loaded.stdout.split())
    assert "metaq.cli" in names
    heavy = {"asyncio", "rich", "metaq._core", "metaq.admin", "metaq.config", "msgspec"}
    assert not heavy & names
    assert not [name for name in names if name.startswith("metaq.cli.commands")]
