"""Writes warnings to stderr in processes without logging.

Spark starts Python processes for planning and for tasks. The logging that a user's program sets up has no
effect there. Their stderr is shown, though: in the driver's own, and in the `stderr` of each executor.
"""

from __future__ import annotations

import logging
from typing import Final

from metaq.client.stderr_fallback import StderrFallback

PACKAGE: Final = "metaq.spark"


def attach() -> None:
    """Adds the handler. Safe to call twice."""
    logger = logging.getLogger(PACKAGE)
    if any(isinstance(handler, StderrFallback) for handler in logger.handlers):
        return
    handler = StderrFallback(logging.WARNING)
    # The format of Spark's own lines.
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")
    )
    logger.addHandler(handler)
