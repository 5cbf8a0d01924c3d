"""The `metaq` command.

`command_table.py` lists all commands; each file is one command or one group of commands, and is imported
when it is used. A command reads arguments, calls `metaq.admin` (or the client, the servers or a pipeline)
and prints; it asks no server itself. `flags.py` has the flags that commands share, `option_flags.py` those
of configuration options, `invocation.py` those that may stand before the command. `connection.py` finds the
cluster with the help of `contexts.py`, `output.py` prints tables, JSON and CSV, `formats.py` writes values
for people, `progress.py` shows how far long work is, `suggestions.py` knows what a person may have meant,
and `completions.py` what a shell completes. `exits.py` turns errors into lines and exit codes.

`message_views.py` prints messages, `templates.py` fills in the templates of `tail` and `consume`, and
`message_flags.py` has their flags. `message_sources.py` reads the messages that `send` sends, `send_many.py`
sends many.

`limits.py` reads and prints limits, `attributes.py` attributes. `topic_tables.py` prints topics,
`consumer_tables.py` consumer groups, `group_moves.py` their resets, and `group_tables.py` broker groups.
`patterns.py` chooses names in lists. `health_wait.py` checks the health of a cluster and `health_tables.py`
prints it; `client_checks.py` checks this machine for `metaq doctor`. `broker_settings.py` has the commands
for settings of running brokers, and `bundle_command.py` writes support bundles. `forced_switch.py` asks
before it replaces a group's record, and `take_over.py` ends a move from an Apache master.

A command imports what it needs only when it runs, because `metaq --help` must start quickly; a test checks
that. Tests are in tests/unit/cli and tests/integration/cli.
"""

from __future__ import annotations

from typing import Annotated

import typer

from metaq import __version__
from metaq.cli.command_table import RootCommands
from metaq.cli.flags import ContextName, NameServers, Output
from metaq.cli.invocation import Format

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
