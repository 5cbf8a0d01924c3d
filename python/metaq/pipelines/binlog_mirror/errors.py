"""Errors of binlog-mirror."""

from __future__ import annotations

from metaq.errors import MetaqError


class MirrorError(MetaqError):
    """The mirror cannot be made equal to its source."""
