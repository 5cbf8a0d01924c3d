"""Data pipelines: long-running jobs with a TOML file, run by `metaq pipeline run NAME --config FILE`.

A pipeline is a class with the methods of `Pipeline`. `PIPELINES` registers it. It is imported only when it is
used, because each has its own dependencies. Each pipeline has a package: `binlog_sync`, `binlog_mirror`,
`log_transport`, `log_lake`, `stream_sql`. The modules here are shared: `settings.py` reads TOML files,
`spark_runtime.py` runs queries on Spark, `storage.py` lists files, `json_rows.py` parses JSON,
`source_columns.py` names the columns of messages, `topic_lag.py` measures how far a query is behind,
`topic_check.py` asks the servers of a topic, `metrics_page.py` serves metrics, `run_reports.py` reports a run
to its clusters, `report_timer.py`, `quiet_failures.py` and `send_errors.py` are small rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final, Literal, Protocol, Self, runtime_checkable

from metaq.errors import CommandError


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered pipeline."""

    summary: str
    class_path: str
    """`module:class`."""
    extra: str
    """The extra of the package that installs its dependencies."""
    has_copy: bool = False
    """Whether it is `Verifiable`."""
    reads_again: bool = False
    """Whether it is `Rereadable`."""
    counts: Literal["in", "out", "both"] = "both"
    """The rows that its progress counts: those that it reads, those that it writes, or every row is both."""


PIPELINES: Final[Mapping[str, Entry]] = {
    "binlog-sync": Entry(
        "Copies the tables of a MariaDB or MySQL server, and all their changes, into an ordered topic.",
        "metaq.pipelines.binlog_sync.pipeline:BinlogSync",
        "binlog",
        reads_again=True,
    ),
    "binlog-mirror": Entry(
        "Applies the topic of binlog-sync to Delta tables or another database, which then equal the source.",
        "metaq.pipelines.binlog_mirror.pipeline:BinlogMirror",
        "binlog,spark",
        has_copy=True,
        counts="out",
    ),
    "log-transport": Entry(
        "Follows files, or reads standard input, and sends each line to a topic.",
        "metaq.pipelines.log_transport.pipeline:LogTransport",
        "",
    ),
    "log-lake": Entry(
        "Writes topics to a Delta or Parquet table by date and topic, and bad records to a quarantine table.",
        "metaq.pipelines.log_lake.pipeline:LogLake",
        "spark",
        counts="out",
    ),
    "stream-sql": Entry(
        "Runs a stream job that is written in SQL: from topics and tables to a topic or a table.",
        "metaq.pipelines.stream_sql.pipeline:StreamSql",
        "spark",
        counts="in",
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run, without secrets."""

    facts: Mapping[str, object]
    tables: Sequence[Mapping[str, object]] = ()
    """Rows of a table for people, all with the same keys."""
    warnings: Sequence[str] = ()
    checks: Sequence[str] = ()
    """The servers that were asked, each with its answer. One that does not answer is an error."""


@dataclass(slots=True)
class Progress:
    """The progress of a run. Counters only grow."""

    phase: str = "starting"
    rows: int = 0
    bytes: int = 0
    lag_s: float | None = None
    """The time by which it is behind its source; None if that is unknown."""
    rows_per_second: float = 0.0
    batch_s: float | None = None
    """The duration of the last batch; None without one, or for a pipeline without batches."""
    restarts: int = 0
    """How often a query was started again in this run."""
    details: dict[str, object] = field(default_factory=dict)
    rows_in_per_second: float | None = None
    """The messages that a query reads, by Spark; None if that is unknown."""
    findings: tuple[str, ...] = ()
    """Faults that stay until somebody acts, such as a table that is left out."""


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """A row that differs between the two sides."""

    key: str
    """The values of its primary key, as a JSON array."""
    what: str


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The comparison of one table with its copy."""

    table: str
    source_rows: int = 0
    mirror_rows: int = 0
    chunks: int = 0
    differing_chunks: int = 0
    unlisted_chunks: int = 0
    """The number of differing chunks whose keys were not compared."""
    keys: tuple[DifferingKey, ...] = ()
    more_keys: int = 0
    """The number of differing keys that `keys` omits."""
    quarantined: int = 0
    """The number of rows that the copy refuses."""
    is_kept: bool = False
    """Whether the source has dropped the table, and its copy is kept on purpose."""
    note: str = ""
    """Why it could not be compared row by row."""

    @property
    def is_same(self) -> bool:
        # A table that was dropped equals a copy without rows.
        is_gone = self.chunks > 0 and self.mirror_rows == 0
        return self.is_kept or (not self.differing_chunks and (not self.note or is_gone))


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all tables."""

    tables: tuple[TableVerification, ...]

    @property
    def is_same(self) -> bool:
        return all(table.is_same for table in self.tables)


Report = Callable[[Progress], None]


class Pipeline(Protocol):
    """The interface of a pipeline."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Reads and checks the configuration; raises ConfigError."""

    def plan(self) -> Plan:
        """Inspects source and target, and changes nothing; raises MetaqError."""

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until it is done or `stop` is set, and saves how far it came; raises MetaqError.

        `report` is called about once a second.
        """


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """A cluster that a pipeline uses."""

    nameservers: str
    topics: tuple[str, ...]
    """The topics that it reads or writes; a pattern stands between slashes."""
    group: str | None = None
    """The consumer group that it commits offsets to."""


@runtime_checkable
class Reportable(Protocol):
    """A pipeline that says which clusters it uses, so that its runs can be reported to them."""

    def clusters(self) -> Sequence[ClusterUse]:
        """Returns each cluster once."""


@runtime_checkable
class RunsOnSpark(Protocol):
    """A pipeline that runs on Spark."""

    def on(self, master: str | None, environment: str | None = None) -> Pipeline:
        """Returns the same pipeline on another master, or with another packed environment. None keeps the one
        of the file."""


@runtime_checkable
class Verifiable(Protocol):
    """A pipeline whose copy can be compared with its source."""

    def verify(self, limit: int, wait_s: float) -> Verification:
        """Lists at most `limit` keys for each table; compares differing rows again for up to `wait_s`."""


@runtime_checkable
class Rereadable(Protocol):
    """A pipeline whose source can be read again on request."""

    def reread(self, table: str, first: int | None, last: int | None, *, dry_run: bool) -> int:
        """Asks the run, or the next one, to read a table again, or a range of its keys; returns how many rows
        that is about. A dry run only counts. Raises MetaqError."""


def load(name: str) -> type[Pipeline]:
    """Imports a pipeline; raises CommandError if there is none or a dependency is missing."""
    entry = PIPELINES.get(name)
    if entry is None:
        raise CommandError(f"there is no pipeline {name}", hint=f"there are: {', '.join(PIPELINES)}")
    module, _, attribute = entry.class_path.partition(":")
    try:
        pipeline: type[Pipeline] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "metaq":
            raise
        raise CommandError(
            f"{name} needs the module {error.name}",
            hint=f"install the extra {entry.extra}: docs/install.md shows the command",
        ) from None
    return pipeline
