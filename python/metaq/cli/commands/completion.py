"""metaq completion."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


ADVICE = {
    Shell.bash: 'add this line to ~/.bashrc:  eval "$(metaq completion bash)"',
    Shell.zsh: 'add this line to ~/.zshrc:  eval "$(metaq completion zsh)"',
    Shell.fish: "run:  metaq completion fish > ~/.config/fish/completions/metaq.fish",
}


def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.", show_default=False)],
) -> None:
    """Print a script for the completion of a shell.

    It completes commands and flags, and topics, groups and contexts with their live names.

    bash: add `eval "$(metaq completion bash)"` to ~/.bashrc.
    zsh: add `eval "$(metaq completion zsh)"` to ~/.zshrc.
    fish: run `metaq completion fish > ~/.config/fish/completions/metaq.fish`.
    """
    from typer._completion_shared import get_completion_script

    from metaq.cli.exits import COMPLETING

    typer.echo(get_completion_script(prog_name="metaq", complete_var=COMPLETING, shell=shell.value))
    if sys.stdout.isatty():
        typer.echo(f"To install it, {ADVICE[shell]}", err=True)
