"""One option, and how a section of the table is written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from metaq.config.kinds import Bytes, Kind, Number, Text, write_bytes
from metaq.settings import BrokerSettings, NameServerSettings, ServerSettings, StoreSettings

SECTIONS: dict[str, str] = {
    "address": "The addresses that the roles listen on and advertise",
    "nameserver": "Limits of a name server's tables",
    "broker": "The broker's identity, and what it allows clients to do",
    "replication": "The group of a broker: its replicas, and who becomes master",
    "store": "Where messages are stored, the sizes of files, and retention",
    "server": "Limits of one listener",
    "monitoring": "Metrics and health over HTTP",
    "console": "The console in the browser, beside `metaq serve`",
    "log": "Logging",
}
SETTINGS: dict[str, type] = {
    "nameserver": NameServerSettings,
    "store": StoreSettings,
    "server": ServerSettings,
    "broker": BrokerSettings,
}

PORT = Number(0, 65_535)
NAME = Text(r"[A-Za-z0-9_.%|-]{1,127}", "up to 127 letters, digits or any of _ - . % |")


class Change(Enum):
    """The broker of a group that changes an option at run time."""

    NODE = "node"
    MASTER = "master"


RUN_TIME: Final = Change.NODE
"""At the end of a row: a broker can change the option while it runs."""
RUN_TIME_MASTER: Final = Change.MASTER
"""The same for an option that only a master uses. A replica passes the change on to its master."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    section: str
    kind: Kind
    default: Any
    help: str
    change: Change | None = None
    """The broker that changes it at run time (`metaq config set`); None: only a start sets it."""

    @property
    def at_run_time(self) -> bool:
        return self.change is not None

    @property
    def variable(self) -> str:
        return f"METAQ_{self.name.upper()}"


Row: TypeAlias = (
    tuple[str, Kind, Any, str]
    | tuple[str, Kind, str]
    | tuple[str, Kind, Any, str, Change]
    | tuple[str, Kind, str, Change]
)
"""Name, kind, default, help, and who changes it at run time."""


def section(name: str, *rows: Row) -> list[Option]:
    """Makes options from rows. A row without a default takes it from the section's settings class."""
    options = []
    for row in rows:
        change = row[-1] if isinstance(row[-1], Change) else None
        cells: tuple[Any, ...] = row[:-1] if change else row
        option, kind, *default, text = cells
        value = default[0] if default else _default(SETTINGS[name], option)
        options.append(Option(option, name, kind, value, text, change))
    return options


def written(value: object) -> str:
    """Writes the value of an option as its kind reads it; an option without a value as an empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ";".join(str(part) for part in value)
    return str(value)


def shown(option: Option, value: object) -> str:
    """The same for people: with units for sizes, and a dash if there is no value."""
    if isinstance(option.kind, Bytes) and isinstance(value, int):
        return write_bytes(value)
    return written(value) or "–"


def _default(settings: type, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(settings) if field.name == name)
