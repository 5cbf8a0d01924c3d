"""Commands that run in the process of the test, which is much quicker than a process for each."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from metaq.cli import app
from metaq.errors import MetaqError


class CommandLine:
    """The `metaq` command with the name servers of one cluster."""

    def __init__(self, nameserver: str) -> None:
        self._environment = {"METAQ_NAMESRV": nameserver}

    def invoke(self, *arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=text, env=self._environment)

    def printed(self, *arguments: str, text: str | None = None) -> str:
        """Returns the standard output of a command that succeeds."""
        outcome = self.invoke(*arguments, text=text)
        assert outcome.exit_code == 0, (outcome.output, outcome.exception)
        return outcome.stdout

    def document(self, *arguments: str) -> Any:
        """Returns what a command prints with `-o json`."""
        return json.loads(self.printed(*arguments, "-o", "json"))

    def refused(self, *arguments: str, text: str | None = None) -> MetaqError:
        """Returns the error of a command that fails."""
        error = self.invoke(*arguments, text=text).exception
        assert isinstance(error, MetaqError), error
        return error


def cells(printed: str) -> list[list[str]]:
    """Returns the words of each line of a table."""
    return [line.split() for line in printed.splitlines()]
