"""Sources of values. The first of these wins: flag, --set, environment, kept, file, default.

A value is kept by `metaq config set --persist`, in the folder of the store (`kept.py`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from metaq.config.option import SECTIONS, Option
from metaq.config.options import OPTIONS
from metaq.errors import ConfigError

# Other code reads these, so they are not misspelt options.
OTHER_VARIABLES = frozenset({"METAQ_CLIENT_DIRECTORY", "METAQ_CONFIG", "METAQ_CONTEXT", "METAQ_CONTEXTS"})

SUGGESTIONS_MAX = 3


class Source(IntEnum):
    """The kinds of sources; a higher one wins."""

    DEFAULT = 0
    FILE = 1
    KEPT = 2
    ENVIRONMENT = 3
    SET = 4
    FLAG = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source."""

    option: Option
    value: Any
    origin: str
    """The file, the variable or the flag that says so."""
    source: Source = Source.DEFAULT
    beneath: Setting | None = None
    """The setting that a kept value hides."""


@dataclass(frozen=True, slots=True)
class Config:
    """The value of every option, and notes about entries that had no effect."""

    settings: Mapping[str, Setting]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    def is_default(self, name: str) -> bool:
        return self.settings[name].origin == "default"


def load(
    flags: Mapping[str, object] | None = None,
    *,
    assignments: Iterable[str] = (),
    file: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Merges all sources but the kept values, which are in the folder that `data` names. A flag with the
    value None was not given. Raises ConfigError."""
    settings = {name: Setting(option, option.default, "default") for name, option in OPTIONS.items()}
    notes: list[str] = []

    def put(name: str, raw: object, origin: str, source: Source) -> None:
        option = OPTIONS[name]
        try:
            settings[name] = Setting(option, option.kind.parse(raw), origin, source)
        except ValueError as error:
            raise ConfigError(f"{name}={raw} ({origin}) {error}") from None

    file = file or environment.get("METAQ_CONFIG")
    if file:
        entries, ignored = read_file(Path(file))
        notes += ignored
        for name, raw in entries.items():
            put(name, raw, file, Source.FILE)
    for variable, raw in environment.items():
        if not variable.startswith("METAQ_") or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix("METAQ_").lower()
        if name in OPTIONS:
            put(name, raw, variable, Source.ENVIRONMENT)
        elif close := suggested(name):
            meant = " or ".join(OPTIONS[option].variable for option in close)
            notes.append(f"{variable} is not a setting and is ignored (did you mean {meant}?)")
    for assignment in assignments:
        key, equals, raw = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment} has no '='", hint="write --set name=value")
        put(resolve(key.strip(), "--set"), raw.strip(), "--set", Source.SET)
    for name, value in (flags or {}).items():
        if value is not None:
            put(name, value, f"--{name.replace('_', '-')}", Source.FLAG)
    return Config(settings, tuple(notes))


def nearest(name: str) -> str | None:
    found = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.6)
    return found[0] if found else None


def suggested(name: str) -> list[str]:
    """Returns the options that a wrong name may stand for: the most similar one, or those that end in it."""
    close = nearest(name)
    return (
        [close] if close else [option for option in OPTIONS if option.endswith(f"_{name}")][:SUGGESTIONS_MAX]
    )


def resolve(key: str, origin: str) -> str:
    """Returns the name of an option that was written as `flush`, `store.flush` or `broker-port`."""
    section, dot, name = key.rpartition(".")
    name = name.replace("-", "_")
    if name in OPTIONS and (not dot or OPTIONS[name].section == section):
        return name
    advice = ""
    if name in OPTIONS:
        advice = f" (it is {OPTIONS[name].section}.{name})"
    elif close := nearest(name):
        advice = f" (did you mean {close}?)"
    raise ConfigError(
        f"{origin}: there is no setting {key}{advice}", hint="`metaq config show` lists all settings"
    )


def read_file(path: Path) -> tuple[dict[str, object], list[str]]:
    """Returns the entries of a configuration file, by our names, and notes about those without effect."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}") from None
    if path.suffix in (".conf", ".properties"):
        from metaq.config.upstream import translate

        return translate(text, str(path))
    return _read_toml(text, path), []


def _read_toml(text: str, path: Path) -> dict[str, object]:
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: {error}", hint="a RocketMQ properties file must end in .conf or .properties"
        ) from None
    entries: dict[str, object] = {}
    for key, value in document.items():
        if isinstance(value, dict) and key in SECTIONS:
            entries.update({resolve(f"{key}.{name}", str(path)): raw for name, raw in value.items()})
        else:
            entries[resolve(key, str(path))] = value
    return entries
