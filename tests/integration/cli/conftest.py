"""Commands run in the test's own process, because a process for each would cost much more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from metaq.cli import app
from tests.support.metaq import Metaq

Run = Callable[..., Result]


@pytest.fixture
def metaq(served: Metaq, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command against the served cluster."""
    monkeypatch.setenv("METAQ_NAMESRV", served.nameserver)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return run
