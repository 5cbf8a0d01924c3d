"""Questions before a command destroys something."""

from __future__ import annotations

import sys

import typer


def confirm(question: str) -> None:
    """Asks on standard error, so that results in a pipe stay clean. Raises Abort unless the answer is yes."""
    # typer.confirm writes a blank to standard output even if it asks on standard error.
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise typer.Abort
