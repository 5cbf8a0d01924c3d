"""The kinds of values that an option can have: how a text becomes a value, and how to write it.

A kind raises ValueError with half a sentence ("must be …"), and the caller adds the name of the option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from metaq.server_logging import LEVELS, LogLevels

TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})
SIZE = re.compile(r"(\d[\d_]*)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Kind(Protocol):
    def parse(self, raw: object) -> object:
        """Returns the value of a text or of a TOML value. Raises ValueError."""

    def describe(self) -> str:
        """Says what may be written, for help and documentation."""


@dataclass(frozen=True)
class Text:
    """A word or a path."""

    pattern: str = r".+"
    says: str = "text"

    def parse(self, raw: object) -> object:
        # Only ASCII digits are digits: Rust reads no others.
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw, re.ASCII):
            raise ValueError(f"must be {self.says}")
        return raw

    def describe(self) -> str:
        return self.says


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def parse(self, raw: object) -> object:
        if not isinstance(raw, str) or raw.lower() not in self.words:
            raise ValueError(f"must be {' or '.join(self.words)}")
        return raw.lower()

    def describe(self) -> str:
        return " or ".join(self.words)


@dataclass(frozen=True)
class Levels:
    """A log level, and levels of single loggers: `info,metaq.broker.replication=debug`."""

    def parse(self, raw: object) -> object:
        return str(LogLevels.parse(str(raw)))

    def describe(self) -> str:
        return f"{' or '.join(LEVELS)}, then LOGGER=LEVEL after commas"


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def parse(self, raw: object) -> object:
        if isinstance(raw, bool):
            return raw
        word = str(raw).lower()
        if word in TRUE:
            return True
        if word in FALSE:
            return False
        raise ValueError("must be true or false")

    def describe(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Number:
    """A whole number; its unit is in the option's name."""

    minimum: int = 0
    maximum: int = 2**31 - 1

    def parse(self, raw: object) -> object:
        if isinstance(raw, str) and re.fullmatch(r"-?\d[\d_]*", raw):
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.minimum <= raw <= self.maximum:
            raise ValueError(f"must be {self.describe()}")
        return raw

    def describe(self) -> str:
        if self.maximum == 2**31 - 1:
            return f"a whole number from {self.minimum}"
        return f"a whole number from {self.minimum} to {self.maximum}"


@dataclass(frozen=True)
class Seconds:
    """A duration in seconds, which may have a fraction."""

    minimum: float
    maximum: float

    def parse(self, raw: object) -> object:
        try:
            value = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else None
        except ValueError:
            value = None
        if value is None or not self.minimum <= value <= self.maximum:
            raise ValueError(f"must be {self.describe()}")
        return value

    def describe(self) -> str:
        return f"seconds from {self.minimum:g} to {self.maximum:g}"


@dataclass(frozen=True)
class Bytes:
    """A size in bytes. The units in `16k`, `1MiB` and `1GB` are powers of 1024."""

    minimum: int
    maximum: int

    def parse(self, raw: object) -> object:
        size = raw
        if isinstance(raw, str) and (found := SIZE.fullmatch(raw.strip())):
            size = int(found[1]) * UNIT_BYTES[found[2].lower()]
        if not isinstance(size, int) or isinstance(size, bool) or not self.minimum <= size <= self.maximum:
            raise ValueError(f"must be {self.describe()}")
        return size

    def describe(self) -> str:
        return f"a size from {write_bytes(self.minimum)} to {write_bytes(self.maximum)}"


def write_bytes(size: int) -> str:
    """Writes a size with the largest unit that leaves a whole number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = UNIT_BYTES[unit[0].lower()]
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


@dataclass(frozen=True)
class Listen:
    """An address to listen on: `HOST:PORT`, `[V6]:PORT`, or only a port, with `host` as the address."""

    def parse(self, raw: object) -> object:
        text = str(raw)
        if text.isdecimal():
            text = f":{text}"
        split_endpoint(text)
        return text

    def describe(self) -> str:
        return "HOST:PORT or PORT"


@dataclass(frozen=True)
class Endpoint:
    """An address to connect to: `HOST:PORT` or `[V6]:PORT`."""

    def parse(self, raw: object) -> object:
        host, port = split_endpoint(str(raw))
        if not host or not port:
            raise ValueError("must be HOST:PORT")
        return str(raw)

    def describe(self) -> str:
        return "HOST:PORT"


@dataclass(frozen=True)
class Endpoints:
    """Name servers: `HOST:PORT`, separated by `;`."""

    def parse(self, raw: object) -> object:
        parts = raw if isinstance(raw, list | tuple) else re.split(r"[;,]", str(raw))
        endpoints = tuple(str(part).strip() for part in parts if str(part).strip())
        for endpoint in endpoints:
            host, _ = split_endpoint(endpoint)
            if not host:
                raise ValueError("must be HOST:PORT;HOST:PORT…")
        return endpoints

    def describe(self) -> str:
        return "HOST:PORT;HOST:PORT…"


@dataclass(frozen=True)
class Ids:
    """Ids of nodes, separated by commas."""

    def parse(self, raw: object) -> object:
        words = raw if isinstance(raw, list | tuple) else [word for word in str(raw).split(",") if word]
        try:
            ids = tuple(int(word) for word in words)
        except ValueError:
            raise ValueError(f"must be {self.describe()}") from None
        if not all(0 < node_id < 2**31 - 1 for node_id in ids) or len(set(ids)) != len(ids):
            raise ValueError(f"must be {self.describe()}")
        return ids

    def describe(self) -> str:
        return "different ids from 1 on, separated by commas"


@dataclass(frozen=True)
class Sources:
    """Folders and modules, separated by `;`."""

    def parse(self, raw: object) -> object:
        parts = raw if isinstance(raw, list | tuple) else str(raw).split(";")
        return tuple(str(part).strip() for part in parts if str(part).strip())

    def describe(self) -> str:
        return "FOLDER;package.module…"


class Paths(Sources):
    """Folders and files, separated by `;`."""

    def describe(self) -> str:
        return "PATH;PATH…"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Splits `host:port`; an IPv6 address is in brackets. Raises ValueError."""
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]\s]*)):(\d{1,5})", endpoint)
    if not found or int(found[3]) > 65_535:
        raise ValueError("must be HOST:PORT")
    return found[1] or found[2], int(found[3])


def join_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
