"""One option, and how a section of the table is written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from metaq.config.kinds import Kind, Number, Text
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


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    section: str
    kind: Kind
    default: Any
    help: str

    @property
    def variable(self) -> str:
        return f"METAQ_{self.name.upper()}"


def section(name: str, *rows: tuple[str, Kind, Any, str] | tuple[str, Kind, str]) -> list[Option]:
    """Makes options from rows. A row without a default takes it from the section's settings class."""
    options = []
    for row in rows:
        if len(row) == 4:
            option, kind, default, text = row
        else:
            (option, kind, text), default = row, _default(SETTINGS[name], row[0])
        options.append(Option(option, name, kind, default, text))
    return options


def _default(settings: type, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(settings) if field.name == name)
