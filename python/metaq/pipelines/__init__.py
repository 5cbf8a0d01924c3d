"""Data pipelines: long-running jobs with a TOML file, run by `metaq pipeline run NAME --config FILE`.

A pipeline is a class with the methods of `Pipeline`. It is registered here by name, and imported when it is
asked for, because each has dependencies of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, Self, runtime_checkable

from metaq.errors import CommandError


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered pipeline."""

    summary: str
    place: str
    """`module:class`."""
    extra: str
    """The extra of the package that brings what it needs."""
    has_copy: bool = False
    """Whether it is `Verifiable`."""


PIPELINES: Final[Mapping[str, Entry]] = {
    "binlog-sync": Entry(
        "The tables of a MariaDB or MySQL server, and every change of them, into an ordered topic.",
        "metaq.pipelines.binlog_sync.pipeline:BinlogSync",
        "binlog",
    ),
    "binlog-mirror": Entry(
        "The topic of binlog-sync into Delta tables or another database, as the source's tables are.",
        "metaq.pipelines.binlog_mirror.pipeline:BinlogMirror",
        "binlog,spark",
        has_copy=True,
    ),
    "log-transport": Entry(
        "Lines of files that are followed, or of standard input, into a topic.",
        "metaq.pipelines.log_transport.pipeline:LogTransport",
        "",
    ),
    "log-lake": Entry(
        "Topics into a Delta or Parquet table by date and topic, bad records into a quarantine table.",
        "metaq.pipelines.log_lake.pipeline:LogLake",
        "spark",
    ),
    "stream-sql": Entry(
        "A stream job that is given as SQL: topics and tables into a topic or a table.",
        "metaq.pipelines.stream_sql.pipeline:StreamSql",
        "spark",
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do. Nothing in it is secret."""

    facts: Mapping[str, object]
    tables: Sequence[Mapping[str, object]] = ()
    """Rows of one table for people, with the same names in each."""
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class Progress:
    """How far a run is. Counters only grow."""

    phase: str = "starting"
    rows: int = 0
    bytes: int = 0
    lag_s: float | None = None
    """How far it is behind its source; None where that is not known."""
    rows_per_second: float = 0.0
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """A row that is not the same on both sides."""

    key: str
    """A JSON array of the columns of its primary key."""
    what: str


@dataclass(frozen=True, slots=True)
class TableVerification:
    """One table of the source and its copy."""

    table: str
    source_rows: int = 0
    mirror_rows: int = 0
    chunks: int = 0
    differing_chunks: int = 0
    unlisted_chunks: int = 0
    """Of those, how many have keys that were not looked for."""
    keys: tuple[DifferingKey, ...] = ()
    more_keys: int = 0
    """That differ besides those."""
    note: str = ""
    """Why it could not be compared row by row."""

    @property
    def is_same(self) -> bool:
        # A table that is gone is the same as one without rows.
        is_gone = self.chunks > 0 and self.mirror_rows == 0
        return not self.differing_chunks and (not self.note or is_gone)


@dataclass(frozen=True, slots=True)
class Verification:
    """All tables."""

    tables: tuple[TableVerification, ...]

    @property
    def is_same(self) -> bool:
        return all(table.is_same for table in self.tables)


Report = Callable[[Progress], None]


class Pipeline(Protocol):
    """What the command needs of one."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Reads and checks the configuration; raises ConfigError."""

    def plan(self) -> Plan:
        """Looks at source and target, and changes nothing; raises MetaqError."""

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until it is done or `stop` is set, and keeps how far it came; raises MetaqError.

        `report` is called about once a second.
        """


@runtime_checkable
class RunsOnSpark(Protocol):
    """A pipeline whose work is done by Spark."""

    def on(self, master: str) -> Pipeline:
        """The same, on another master than the file says."""


@runtime_checkable
class Verifiable(Protocol):
    """A pipeline whose copy can be compared with its source."""

    def verify(self, limit: int, wait_s: float) -> Verification:
        """At most `limit` keys for each table; what differs is looked at again for `wait_s`."""


def load(name: str) -> type[Pipeline]:
    """Raises CommandError."""
    entry = PIPELINES.get(name)
    if entry is None:
        raise CommandError(f"there is no pipeline {name}", hint=f"there are: {', '.join(PIPELINES)}")
    module, _, attribute = entry.place.partition(":")
    try:
        pipeline: type[Pipeline] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "metaq":
            raise
        raise CommandError(
            f"{name} needs the module {error.name}", hint=f"pip install 'pymetaq[{entry.extra}]'"
        ) from None
    return pipeline
