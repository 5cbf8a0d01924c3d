"""Errors that `format("metaq")` raises on purpose.

ClientError
└── SparkError             the root
    ├── OptionError        an option is unknown, malformed or contradicts another; nothing was read or written
    ├── DataLost           messages that should be read no longer exist
    └── WrongCheckpoint    the checkpoint belongs to another subscription
"""

from __future__ import annotations

from metaq.errors import ClientError


class SparkError(ClientError):
    """The root of the errors that only the Spark source and sink raise."""


class OptionError(SparkError, ValueError):
    """An option is unknown, malformed or contradicts another; nothing was read or written."""


class DataLost(SparkError):
    """Messages that should be read no longer exist."""


class WrongCheckpoint(SparkError):
    """The checkpoint belongs to another subscription."""
