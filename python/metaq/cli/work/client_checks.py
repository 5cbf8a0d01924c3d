"""Checks of this machine for `metaq doctor`: contexts, environment, configuration and data directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.admin import Finding


def check_here() -> Iterator[Finding]:
    """Yields what is wrong on this machine. Nothing of it needs a server."""
    yield from _of_contexts()
    yield from _of_configuration()


def _of_contexts() -> Iterator[Finding]:
    from metaq.admin import Finding
    from metaq.cli.invocation import current
    from metaq.cli.reading.contexts import chosen_context, contexts_file
    from metaq.errors import ConfigError

    path = contexts_file()
    try:
        chosen_context(current().context)
    except ConfigError as error:
        text = f"{error.args[0]}."
        yield Finding("critical", "contexts-unreadable", str(path), text, "metaq context list")
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"Other accounts may read {path}, which can hold credentials."
        yield Finding("warning", "contexts-public", str(path), text, f"chmod 600 '{path}'")


def _of_configuration() -> Iterator[Finding]:
    from metaq.admin import Finding
    from metaq.config import load
    from metaq.errors import ConfigError

    try:
        config = load()
    except ConfigError as error:
        hint = f"; {error.hint}" if error.hint else ""
        text = f"The configuration cannot be read: {error.args[0]}{hint}."
        yield Finding("critical", "configuration-unreadable", "configuration", text, "metaq config show")
        return
    for note in config.notes:
        yield Finding("warning", "configuration", "configuration", f"{note}.", "metaq config show")
    if not config.is_default("data"):
        yield from _of_data(Path(config["data"]).expanduser())


def _of_data(directory: Path) -> Iterator[Finding]:
    """Checks the directory that the configuration names; a broker on another machine has its own."""
    from metaq.admin import Finding

    if not directory.exists():
        return
    if not directory.is_dir():
        text = f"{directory} is the data directory of the configuration, but it is a file."
        yield Finding("critical", "data-not-a-directory", str(directory), text, "metaq config show")
    elif not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        text = f"This account may not write to the data directory {directory}."
        yield Finding("warning", "data-not-writable", str(directory), text, f"ls -ld '{directory}'")
