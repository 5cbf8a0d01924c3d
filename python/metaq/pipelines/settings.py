"""Reads the TOML file of a pipeline: sections of keys, each with a kind of value.

Every error names the file, the key and the accepted values.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq.config.kinds import Endpoints, Kind, Seconds, Text
from metaq.errors import ConfigError
from metaq.position_words import current_word


class _Required:
    pass


REQUIRED: Final = _Required()


@dataclass(frozen=True)
class Texts:
    """A list of texts, none of them empty."""

    says: str = 'a list of texts such as ["a", "b"]'

    def parse(self, raw: object) -> object:
        if not isinstance(raw, list) or not all(isinstance(part, str) and part.strip() for part in raw):
            raise ValueError(f"must be {self.describe()}")
        return tuple(part.strip() for part in raw)

    def describe(self) -> str:
        return self.says


@dataclass(frozen=True)
class StartPosition:
    """The position of the first run, in the words of the client and the command line."""

    def parse(self, raw: object) -> object:
        word = current_word(raw) if isinstance(raw, str) else raw
        if word in ("earliest", "latest"):
            return word
        raise ValueError(f"must be {self.describe()}")

    def describe(self) -> str:
        return "earliest or latest"


@dataclass(frozen=True)
class Key:
    """One key of a section."""

    kind: Kind
    default: object = REQUIRED
    is_secret: bool = False
    """Whether error messages hide the value."""


Sections = Mapping[str, Mapping[str, Key]]

NAMESRV: Final = Key(Endpoints(), ("127.0.0.1:9876",))
TOPIC_NAME: Final = Key(
    Text(r"[%|a-zA-Z0-9_-]{1,127}", "a name of letters, digits, _ and -, at most 127 of them")
)
START: Final = Key(StartPosition(), "earliest")
STATE_FILE: Final = Text(says="the path of a file, which the pipeline keeps")
"""Keys that several pipelines have."""

SHARED: Final[Sections] = {
    "report": {
        "interval_s": Key(Seconds(0, 3_600), 10.0),
        "name": Key(Text(r"[^\x00-\x1f]{1,200}", "a text of at most 200 characters"), None),
    }
}
"""Sections that the file of every pipeline may have."""


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """The section [report]."""

    interval_s: float
    """The time between two reports; 0 for none."""
    name: str | None
    """The name in reports; None for the name of the file."""


def read_report_settings(path: Path) -> ReportSettings:
    """Reads the section [report]; raises ConfigError."""
    return ReportSettings(**_section(path, "report", _document(path).get("report", {}), SHARED["report"]))


def read_sections(
    path: Path, sections: Sections, *, ignored: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Returns the value of every key by section; raises ConfigError.

    `ignored` are sections of other pipelines in the same file.
    """
    document, known = _document(path), {**sections, **SHARED}
    for section, entries in document.items():
        if section in ignored:
            continue
        if section not in known:
            raise ConfigError(f"{path}: there is no section {section}{_advice(section, known)}")
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {section} must be a section, [{section}]")
    for section, keys in SHARED.items():
        _section(path, section, document.get(section, {}), keys)
    return {name: _section(path, name, document.get(name, {}), keys) for name, keys in sections.items()}


def _section(
    path: Path, section: str, entries: Mapping[str, object], keys: Mapping[str, Key]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in entries:
        if name not in keys:
            raise ConfigError(f"{path}: there is no key {section}.{name}{_advice(name, keys)}")
    for name, key in keys.items():
        if name not in entries:
            if key.default is REQUIRED:
                raise ConfigError(f"{path}: {section}.{name} is missing", hint=f"it {_says(key)}")
            values[name] = key.default
            continue
        raw = entries[name]
        try:
            values[name] = key.kind.parse(raw)
        except ValueError as error:
            given = "" if key.is_secret else f" = {raw!r}"
            raise ConfigError(f"{path}: {section}.{name}{given}: it {error}") from None
    return values


def _says(key: Key) -> str:
    return f"must be {key.kind.describe()}"


def _advice(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else f"; there are: {', '.join(known)}"


def read_secret(path: Path, where: str, variable: str | None, file: str | None) -> str:
    """Reads a secret from an environment variable or a file; raises ConfigError, which never shows it."""
    if variable is not None and file is not None:
        raise ConfigError(f"{path}: {where}_env and {where}_file are both given; one is enough")
    if variable is not None:
        secret = os.environ.get(variable)
        if secret is None:
            raise ConfigError(f"{path}: {where}_env names {variable}, which is not in the environment")
        return secret
    if file is not None:
        # Editors add a line feed at the end of a file.
        return read_text_file(path, f"{where}_file", file).removesuffix("\n")
    return ""


def read_text_file(path: Path, key: str, file: str) -> str:
    """Reads the file that a key names, relative to the TOML file; raises ConfigError."""
    try:
        return (path.parent / file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {key} {file} cannot be read: {_reason(error)}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str | None:
    return error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"


def read_named_sections(
    path: Path, section: str, keys: Mapping[str, Key], beside: Sections
) -> dict[str, dict[str, Any]]:
    """Returns the sections `[section.NAME]` by name; raises ConfigError.

    `beside` are the other sections of the file, which `read_sections` reads.
    """
    document, known = _document(path), {section: keys, **beside, **SHARED}
    for name in document:
        if name not in known:
            raise ConfigError(f"{path}: there is no section {name}{_advice(name, known)}")
    found = document.get(section, {})
    if not isinstance(found, dict) or not all(isinstance(values, dict) for values in found.values()):
        raise ConfigError(f"{path}: {section} must hold sections, [{section}.NAME]")
    return {name: _section(path, f"{section}.{name}", values, keys) for name, values in found.items()}


def _document(path: Path) -> dict[str, Any]:
    """Parses the file; raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {_reason(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
