"""The `metaq` command.

Each file is one command or one group of commands. It reads arguments, calls `metaq.admin` (or the client, the
servers or a pipeline) and prints; it asks no server itself. `flags.py` has the flags that commands share,
`output.py` prints tables and JSON, `connection.py` finds the cluster, `limits.py` reads and prints limits,
`group_tables.py` prints broker groups, and `forced_switch.py` asks before it replaces a group's record.
`take_over.py` ends a move from an Apache master.

A command imports what it needs only when it runs, because `metaq --help` must start quickly; a test checks
that. Expected errors are `MetaqError`: `main` prints one line with the hint and exits with 1, or with 2 for a
wrong setting. Tests are in tests/unit/cli and tests/integration/test_commands.py.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from metaq import __version__
from metaq.cli import (
    broker,
    cluster,
    config,
    dev,
    dlq,
    filter,
    group,
    message,
    parked,
    pipeline,
    serve,
    topic,
)
from metaq.errors import ConfigError, MetaqError

app = typer.Typer(
    name="metaq",
    help="MetaQ: a message queue that unmodified RocketMQ clients talk to.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
) -> None:
    """MetaQ: a message queue that unmodified RocketMQ clients talk to."""


app.command("serve")(serve.serve)
app.command("nameserver")(serve.nameserver)
app.add_typer(broker.app, name="broker")
app.add_typer(cluster.app, name="cluster")
app.add_typer(dev.app, name="dev")
app.add_typer(config.app, name="config")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(filter.app, name="filter")
app.add_typer(parked.app, name="parked")
app.add_typer(pipeline.app, name="pipeline")
app.command("send")(message.send)
app.command("tail")(message.tail)


def main() -> None:
    """Runs the command line. An expected error is one line and an exit code, never a traceback."""
    try:
        app()
    except MetaqError as error:
        # The text of some errors ends with their hint.
        text = error.args[0] if error.args else str(error)
        hint = f"; {error.hint}" if error.hint and error.hint not in text else ""
        print(f"metaq: {text}{hint}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except PermissionError as error:
        from metaq.private_files import whose

        hint = whose(error.filename, error) if error.filename else ""
        print(f"metaq: {hint or error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of the pipe has seen enough. Buffered output must not fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
