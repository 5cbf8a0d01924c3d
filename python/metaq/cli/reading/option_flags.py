"""Flags of the commands that read the configuration: one for each option, the file, and --set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from metaq.config.options import OPTIONS


def flag(name: str, *, metavar: str | None = None) -> Any:
    """Returns the flag of one option, with its help and default. A flag that is not given is None, so that
    the environment and the configuration file count."""
    option = OPTIONS[name]
    default = "" if option.default in (None, ()) else f" (default {option.default})"
    return typer.Option(
        f"--{name.replace('_', '-')}", help=f"{option.help}{default}", metavar=metavar, show_default=False
    )


def switch(name: str) -> Any:
    """Returns the two flags of an option that is true or false: `--name` and `--no-name`."""
    option, word = OPTIONS[name], name.replace("_", "-")
    default = f" (default --{'' if option.default else 'no-'}{word})"
    return typer.Option(f"--{word}/--no-{word}", help=f"{option.help}{default}", show_default=False)


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="Configuration file: TOML, or a broker.conf of RocketMQ.",
        metavar="FILE",
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set any option that `metaq config show` lists; repeatable.",
        metavar="NAME=VALUE",
        show_default=False,
    ),
]
