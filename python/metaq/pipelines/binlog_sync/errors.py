"""Errors of binlog-sync."""

from __future__ import annotations

from metaq.errors import MetaqError


class BinlogError(MetaqError):
    """The binlog holds, or lacks, something that stops the pipeline."""


class Unsuitable(Exception):
    """A table cannot be synchronised exactly; the text says why."""


class NoSuchTable(Unsuitable):
    """A table does not exist, or no longer."""


class StreamLost(Exception):
    """The connection to the database is gone; the binlog can be read on from the last position."""
