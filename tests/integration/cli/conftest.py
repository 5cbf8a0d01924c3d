"""Runs commands in this process, which costs less than a process for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from metaq.cli import app
from tests.support.metaq import Metaq

Run = Callable[..., Result]


@pytest.fixture
def metaq(served: Metaq, tmp_path: Path) -> Run:
    """Runs a command against the shared broker, with contexts of this test alone."""

    def run(*arguments: str, text: str | None = None, **environment: str) -> Result:
        variables = {"METAQ_NAMESRV": served.nameserver, "METAQ_CONTEXTS": str(tmp_path / "contexts.toml")}
        return CliRunner().invoke(app, arguments, input=text, env={**variables, **environment})

    return run
