"""The log of a server: lines for people on a terminal, JSON lines otherwise, and levels that can change.

A line of JSON has these keys: `time` (RFC 3339 in UTC, with milliseconds), `level` (debug, info, warning,
error or critical), `logger`, `message`, and, if an error was logged with its traceback, `exception`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

LogFormat = Literal["auto", "text", "json"]

PACKAGE: Final = "metaq"
LEVELS: Final = ("debug", "info", "warning", "error")
LOGGERS_MAX: Final = 32
"""Loggers that may have a level of their own."""
_LOGGER: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_COLOURS: Final = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


@dataclass(frozen=True, slots=True)
class LogLevels:
    """The minimum level of MetaQ's loggers, and of single loggers with everything below them."""

    default: str = "info"
    loggers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> LogLevels:
        """Reads `info` or `info,metaq.broker.replication=debug`. Raises ValueError with half a sentence."""
        default, loggers = cls().default, {}
        for number, part in enumerate(word.strip() for word in text.split(",")):
            logger, equals, level = part.rpartition("=")
            logger, level = logger.strip(), level.strip().lower()
            if (
                level not in LEVELS
                or (equals and not _LOGGER.fullmatch(logger))
                or not (equals or number == 0)
            ):
                raise ValueError(
                    f"must be one of {', '.join(LEVELS)}; LOGGER=LEVEL may follow, separated by commas"
                )
            if equals:
                loggers[logger] = level
            else:
                default = level
        if len(loggers) > LOGGERS_MAX:
            raise ValueError(f"has more than {LOGGERS_MAX} loggers")
        return cls(default, loggers)

    def __str__(self) -> str:
        return ",".join((self.default, *(f"{logger}={level}" for logger, level in self.loggers.items())))


class LevelControl:
    """Sets the levels of this process's loggers, and forgets those that were set before."""

    def __init__(self) -> None:
        self.levels = LogLevels()

    def set(self, levels: LogLevels) -> None:
        for logger in self.levels.loggers:
            logging.getLogger(logger).setLevel(logging.NOTSET)
        self.levels = levels
        logging.getLogger(PACKAGE).setLevel(levels.default.upper())
        for logger, level in levels.loggers.items():
            logging.getLogger(logger).setLevel(level.upper())


level_control: Final = LevelControl()
"""The one of this process."""


def unknown_loggers(levels: LogLevels) -> list[str]:
    """Returns the loggers that no module has asked for so far, such as misspelt ones."""
    known = logging.root.manager.loggerDict
    return [logger for logger in levels.loggers if logger not in known]


class TextFormatter(logging.Formatter):
    """Lines for people: time, level, the part of MetaQ, text."""

    default_msec_format = "%s.%03d"

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__("%(asctime)s %(shown_level)s %(component)s: %(message)s")
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        record.component = record.name.removeprefix(f"{PACKAGE}.")
        level = f"{record.levelname:<7}"
        code = _COLOURS.get(record.levelname) if self._colour else None
        record.shown_level = level if code is None else f"\x1b[{code}m{level}\x1b[0m"
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def is_json(log_format: LogFormat, stream: TextIO) -> bool:
    """Returns whether lines on this stream are JSON."""
    return log_format == "json" or (log_format == "auto" and not stream.isatty())


def set_up(levels: LogLevels, log_format: LogFormat = "auto", stream: TextIO | None = None) -> bool:
    """Sends all records to standard error from now on, and returns whether the lines are JSON. A program that
    has set up logging already keeps its own handlers and levels."""
    stream = stream or sys.stderr
    writes_json = is_json(log_format, stream)
    if logging.root.handlers:
        return writes_json
    handler = logging.StreamHandler(stream)
    if writes_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(colour=stream.isatty() and not os.environ.get("NO_COLOR")))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    level_control.set(levels)
    return writes_json
