"""docs/cluster.md has the words and flags that the commands have."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from metaq.cli import app
from metaq.cli.command_table import entries, load_command
from metaq.protocol.commands.replication import STATES

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()


def test_every_state_is_explained_as_in_the_code() -> None:
    rows = dict(re.findall(r"^\| `([a-z ]+)` \| (.+) \|$", PAGE, flags=re.MULTILINE))
    assert {word: meaning for word, meaning in rows.items() if word in STATES} == STATES


def test_every_flag_of_dev_cluster_is_in_the_table() -> None:
    command = load_command("dev", dict(entries())["dev"]).commands["cluster"]
    flags = {flag for parameter in command.params for flag in parameter.opts} - {"--data", "--help", "-h"}
    assert flags == set(re.findall(r"^\| `(--[a-z-]+) ", PAGE, flags=re.MULTILINE))


def test_the_help_names_the_ready_line() -> None:
    shown = CliRunner().invoke(app, ["dev", "cluster", "--help"]).stdout
    assert "METAQ_READY" in shown and "METAQ_READY {" in PAGE
