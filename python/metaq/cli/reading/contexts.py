"""Contexts: clusters that have a name, in one file of the user.

The file is `$XDG_CONFIG_HOME/metaq/contexts.toml` (by default below ~/.config), or METAQ_CONTEXTS. Only its
owner can read it, because contexts may hold credentials:

    current = "test"

    [contexts.test]
    namesrv = "10.0.0.1:9876;10.0.0.2:9876"
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.credentials import Credentials


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster: its name servers, and everything else that commands would otherwise ask for in flags."""

    namesrv: str
    cluster: str | None = None
    register: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    @property
    def credentials(self) -> Credentials | None:
        from metaq.credentials import Credentials

        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key)


@dataclass(slots=True)
class Contexts:
    """All contexts by name, and the one that commands use."""

    contexts: dict[str, Context] = field(default_factory=dict)
    current: str | None = None


def contexts_file() -> Path:
    if given := os.environ.get("METAQ_CONTEXTS"):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "metaq" / "contexts.toml"


def read_contexts() -> Contexts:
    """Returns no contexts if there is no file. Raises ConfigError."""
    import tomllib

    path = contexts_file()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    tables = document.get("contexts", {})
    current = document.get("current")
    if not isinstance(tables, dict) or not isinstance(current, str | None):
        raise ConfigError(f"{path}: `contexts` must be tables and `current` a name")
    return Contexts({name: _context(path, name, table) for name, table in tables.items()}, current)


def _context(path: Path, name: str, table: object) -> Context:
    known = {known.name for known in fields(Context)}
    if not isinstance(table, dict) or not isinstance(table.get("namesrv"), str):
        raise ConfigError(f"{path}: context {name} has no namesrv")
    for key, value in table.items():
        if key not in known or not isinstance(value, str):
            raise ConfigError(f"{path}: context {name}: {key} is not one of {', '.join(sorted(known))}")
    return Context(**table)


def write_contexts(contexts: Contexts) -> Path:
    """Replaces the file, in one step and for its owner alone. Raises ConfigError."""
    from metaq.durable import replace_file

    lines = [] if contexts.current is None else [f"current = {_quoted(contexts.current)}", ""]
    for name, context in sorted(contexts.contexts.items()):
        lines.append(f"[contexts.{_quoted(name)}]")
        lines += [f"{key} = {_quoted(value)}" for key, value in asdict(context).items() if value is not None]
        lines.append("")
    path = contexts_file()
    try:
        replace_file(path, "\n".join(lines).encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return path


def _quoted(text: str) -> str:
    """A TOML string; JSON's rules for quotes and control characters are those of TOML."""
    import msgspec

    return msgspec.json.encode(text).decode()


def chosen_context(name: str | None) -> tuple[str, Context] | None:
    """Returns the context of the flag, of METAQ_CONTEXT, or the one of `metaq context use`; None if there
    is none. Raises ConfigError for a name that is not there."""
    contexts = read_contexts()
    wanted = name or os.environ.get("METAQ_CONTEXT") or contexts.current
    if wanted is None:
        return None
    if wanted not in contexts.contexts:
        known = ", ".join(sorted(contexts.contexts)) or "none"
        raise ConfigError(
            f"there is no context {wanted}",
            hint=f"there are: {known}; `metaq context set {wanted} --namesrv HOST:PORT` makes it",
        )
    return wanted, contexts.contexts[wanted]
