"""docs/admin.md names every command of mqadmin in the right table."""

from __future__ import annotations

import re
from pathlib import Path

from metaq.broker.state.run_time_options import APACHE_NAMES
from metaq.broker.state.stats import KEPT
from tests.interop.mqadmin import NOT_TRIED, REFUSED, WORKING

SWITCHES = ("server_side_reset", "store_replies")
PAGE = (Path(__file__).parents[3] / "docs" / "admin.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_commands_that_work() -> None:
    named = [name for _, commands in rows("Commands that work") for name in re.findall(r"`(\w+)`", commands)]
    assert len(named) == len(set(named))
    assert set(named) == {trial.command for trial in WORKING}
    assert len(named) >= 60


def test_commands_that_are_refused_with_their_reasons() -> None:
    told = {command.strip("`"): reason for command, reason in rows("Commands that are refused")}
    assert told == {trial.command: trial.reason for trial in REFUSED}


def test_commands_that_ask_no_server() -> None:
    assert {command.strip("`"): why for command, why in rows("Commands that ask no server")} == NOT_TRIED


def test_what_is_kept_and_what_may_be_switched() -> None:
    for name in (*KEPT, *(APACHE_NAMES[name] for name in SWITCHES)):
        assert f"`{name}`" in PAGE
