"""Command lines and variables that files in deploy/ give to metaq."""

from __future__ import annotations

import typer

from metaq.cli import app
from metaq.config.options import OPTIONS

KNOWN_VARIABLES = {"METAQ_CONFIG", *(option.variable for option in OPTIONS.values())}


def parse(arguments: list[str]) -> str:
    """Parses a command line of metaq without running it; returns the name of the command."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="metaq")
    name, command, rest = group.resolve_command(context, list(arguments))
    command.make_context(name, rest, parent=context)
    return str(name)
