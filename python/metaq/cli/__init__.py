"""The `metaq` command.

`command_table.py` lists all commands and imports each one when it is used. `invocation.py` keeps the flags
that may stand before the command. `suggestions.py` knows what a person may have meant, and `mqadmin.py` our
commands for those of Apache's tool. `exits.py` turns errors into lines and exit codes. Rooms have the rest:

commands/   one file for each command or group of commands
reading/    reads arguments, and finds the cluster to ask
printing/   prints tables, JSON, CSV and messages
work/       longer work of single commands, such as the load of `metaq bench`

A command reads arguments, calls `metaq.admin` (or the client, the servers or a pipeline) and prints; it asks
no server itself. It imports what it needs only when it runs, because `metaq --help` must start quickly; a
test checks that. Tests are in tests/unit/cli and tests/integration/cli.
"""

from __future__ import annotations

from typing import Annotated

import typer

from metaq import __version__
from metaq.cli.command_table import RootCommands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import ContextName, NameServers, Output

HELP = "MetaQ: a message queue that unmodified RocketMQ clients talk to."

app = typer.Typer(
    name="metaq",
    cls=RootCommands,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"metaq {__version__}")
        raise typer.Exit


@app.callback()
def metaq(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    namesrv: NameServers = None,
    context: ContextName = None,
    output: Output = Format.table,
) -> None:
    """Takes the flags that may stand before a command."""


def main() -> None:
    """Runs the command line. An expected error is one line and an exit code, never a traceback."""
    from metaq.cli.exits import run_to_exit

    run_to_exit(app)
