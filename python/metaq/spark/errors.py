"""Errors that `format("metaq")` raises on purpose.

ClientError
└── SparkError             the root
    ├── OptionError        an option is unknown, malformed or contradicts another; nothing was read or written
    ├── DataLost           messages that should be read no longer exist
    └── WrongCheckpoint    the checkpoint belongs to another subscription
"""

from __future__ import annotations

import re
from typing import Final

from metaq.errors import ClientError

_RAISED: Final = re.compile(r"[\w.]+(?:Error|Exception): ")
"""The begin of the last line of a Python traceback."""

_CALLING: Final = "An error occurred while calling "
"""The begin of an error of the bridge between Python and Java."""


class SparkError(ClientError):
    """The root of the errors that only the Spark source and sink raise."""


class OptionError(SparkError, ValueError):
    """An option is unknown, malformed or contradicts another; nothing was read or written."""


class DataLost(SparkError):
    """Messages that should be read no longer exist."""


class WrongCheckpoint(SparkError):
    """The checkpoint belongs to another subscription."""


def error_summary(text: str) -> str:
    """Returns the error of Spark without the stacks of Java and Python."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith(_CALLING):
        # The session itself could not be created. The exception follows, and then its Java stack.
        thrown = next((line[2:].strip() for line in lines[1:] if line.startswith(": ")), lines[0])
        # The message of a Python process that does not start begins in the next line.
        causes = [line.strip() for line in lines[1:] if _RAISED.match(line.strip())]
        return causes[-1] if thrown.endswith(":") and causes else thrown
    # Our own errors come back through Java with a traceback, whose last line is the error.
    ours = [line for line in lines if line.startswith("metaq.")]
    if ours:
        return ours[-1].partition(": ")[2]
    raised = [line for line in lines[1:] if _RAISED.match(line)]
    return "; ".join(line.strip() for line in (raised[-1:] or lines[:3]))
