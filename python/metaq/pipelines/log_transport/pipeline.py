"""The pipeline that `metaq pipeline run log-transport` plans and runs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Final, Self

from metaq.config.kinds import Bytes, Text
from metaq.errors import ConfigError
from metaq.pipelines import ClusterUse, Plan, Progress, Report
from metaq.pipelines.log_transport.agent import AgentSettings, LogAgent
from metaq.pipelines.log_transport.found_files import find_files
from metaq.pipelines.log_transport.gaps import find_gaps
from metaq.pipelines.log_transport.positions import FilePosition, Positions
from metaq.pipelines.log_transport.standard_input import send_stream
from metaq.pipelines.settings import (
    NAMESRV,
    START,
    STATE_FILE,
    TOPIC_NAME,
    Key,
    Sections,
    Texts,
    read_sections,
)
from metaq.pipelines.topic_check import check_topic, missing_topic

STANDARD_INPUT: Final = "-"

SECTIONS: Final[Sections] = {
    "files": {
        "paths": Key(Texts('a list of files, * and ** as in a shell, or ["-"] for standard input')),
        "start": START,
        "line_bytes": Key(Bytes(1, 3 * 1024 * 1024), 1024 * 1024),
    },
    "topic": {
        "namesrv": NAMESRV,
        "name": TOPIC_NAME,
        "tag": Key(Text(r"[^\s|]+", "a text without spaces and |"), None),
    },
    "state": {"file": Key(STATE_FILE, "log-transport.json")},
}
LAKE_SECTIONS: Final = ("records", "lake", "spark")
"""Sections of log-lake, which may share the file."""


class LogTransport:
    """Sends lines of files, or of standard input, to a topic."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises ConfigError."""
        values = read_sections(path, SECTIONS, ignored=LAKE_SECTIONS)
        files, topic = values["files"], values["topic"]
        if not files["paths"]:
            raise ConfigError(f"{path}: files.paths is empty; name at least one file")
        if STANDARD_INPUT in files["paths"] and len(files["paths"]) > 1:
            raise ConfigError(f'{path}: files.paths has "-" and other files; standard input must stand alone')
        return cls(
            AgentSettings(
                nameserver=";".join(topic["namesrv"]),
                topic=topic["name"],
                tag=topic["tag"],
                # Paths are relative to the TOML file, so that the working directory does not matter.
                paths=tuple(
                    name if name == STANDARD_INPUT else str(path.parent / name) for name in files["paths"]
                ),
                start=files["start"],
                line_bytes_max=files["line_bytes"],
                state=path.parent / values["state"]["file"],
            )
        )

    def clusters(self) -> list[ClusterUse]:
        return [ClusterUse(self._settings.nameserver, (self._settings.topic,))]

    def plan(self) -> Plan:
        """Asks the servers of the topic, and lists the files and how far each was sent; raises MetaqError."""
        settings = self._settings
        topic = check_topic(settings.nameserver, settings.topic)
        checks, missing = [str(topic)], missing_topic(topic)
        facts: dict[str, object] = {"topic": f"{settings.topic} at {settings.nameserver}"}
        if self._reads_standard_input:
            return Plan({**facts, "reads": "standard input, to its end"}, warnings=missing, checks=checks)
        found = find_files(settings.paths)
        with Positions(settings.state) as positions:
            known = {(kept.device, kept.inode): kept for kept in positions.kept}
            gaps = [] if positions.saved_ns is None else find_gaps(positions.kept, found, positions.saved_ns)
        rows = [
            {
                "file": str(file.path),
                "bytes": file.size_bytes,
                "sent": self._begins(known.get(key), file.size_bytes, is_first_run=not known),
            }
            for key, file in sorted(found.items(), key=lambda item: item[1].path)
        ]
        warnings = [] if rows else [f"no file matches {' or '.join(settings.paths)} yet"]
        return Plan({**facts, "state": str(settings.state)}, rows, [*missing, *warnings, *gaps], checks)

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until `stop` is set, or to the end of standard input; raises MetaqError."""
        if self._reads_standard_input:
            return send_stream(sys.stdin.buffer, self._settings, report, stop)
        return LogAgent(self._settings).run(report, stop)

    @property
    def _reads_standard_input(self) -> bool:
        return self._settings.paths == (STANDARD_INPUT,)

    def _begins(self, kept: FilePosition | None, size_bytes: int, *, is_first_run: bool) -> int:
        if kept is not None:
            return kept.sent_bytes
        return size_bytes if is_first_run and self._settings.start == "latest" else 0
