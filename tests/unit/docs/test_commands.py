"""docs/commands.md: the table of mqadmin's commands, and the commands that the page names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metaq.cli.command_table import entries, load_command
from metaq.cli.mqadmin import COUNTERPARTS, WITHOUT
from scripts.commands import render
from tests.interop.mqadmin import NOT_TRIED, REFUSED, WORKING

PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")


def resolve(words: list[str]) -> object:
    """Returns the command that these words name, and checks the flags behind it."""
    command: object = load_command(words[0], dict(entries())[words[0]])
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    parameters = command.params  # type: ignore[attr-defined]
    flags = {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if re.match(r"--\w|-[a-z]$", word):
            assert word.partition("=")[0] in flags, f"{' '.join(words)}: {word}"
    return command


def test_every_command_of_mqadmin_is_in_the_table() -> None:
    known = {trial.command for trial in (*WORKING, *REFUSED)} | set(NOT_TRIED)
    assert set(COUNTERPARTS) | set(WITHOUT) == known
    assert not set(COUNTERPARTS) & set(WITHOUT)


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_counterparts_exist(name: str) -> None:
    for ours in COUNTERPARTS[name].split(", "):
        command = resolve(ours.split())
        assert not getattr(command, "commands", None), f"{ours} is a group of commands"


def test_the_table_is_up_to_date() -> None:
    assert render(PAGE) == PAGE


def test_the_commands_of_the_page_exist() -> None:
    lines = [
        found[1] for line in PAGE.splitlines() if (found := re.match(r"(?:    )?(?:\$ )?(metaq .*)", line))
    ]
    assert len(lines) > 30
    for line in lines:
        words = line.partition(" | ")[0].split()[1:]
        while words[0].startswith("-"):  # Flags before the command, each with its value.
            words = words[2:]
        resolve(words)


def test_every_command_is_on_the_page() -> None:
    for name, entry in entries():
        command = load_command(name, entry)
        for below in getattr(command, "commands", {}) or [""]:
            assert f"metaq {name} {below}".strip() in PAGE, f"{name} {below}"
