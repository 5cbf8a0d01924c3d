"""metaq cluster and metaq broker drain: help and refusals."""

from __future__ import annotations

from typer.testing import CliRunner

from metaq.cli import app
from metaq.errors import ConfigError
from metaq.protocol.commands.replication import STATES


def test_the_help_explains_every_word() -> None:
    shown = " ".join(CliRunner().invoke(app, ["cluster", "status", "--help"]).stdout.split())
    assert [word for word in STATES if f'"{word}"' not in shown] == []


def test_force_needs_a_register() -> None:
    outcome = CliRunner().invoke(app, ["cluster", "switch", "broker-a", "--to", "2", "--force"])
    assert isinstance(outcome.exception, ConfigError)
    assert "--force needs --register" in str(outcome.exception)


def test_flags_of_a_broker_are_not_lost_before_drain() -> None:
    outcome = CliRunner().invoke(app, ["broker", "--name", "x", "drain", "127.0.0.1:1"])
    assert isinstance(outcome.exception, ConfigError)
    assert str(outcome.exception).startswith("--name is a flag of `metaq broker` itself")
