"""Writes warnings to stderr in processes without logging.

Spark starts Python processes for planning and for tasks. The logging that a user's program sets up has no
effect there. Their stderr is shown, though: in the driver's own, and in the `stderr` of each executor.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

PACKAGE: Final = "metaq.spark"


class StderrFallback(logging.Handler):
    """Writes records to stderr that no other handler gets. It checks every time, because logging may be set
    up later."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._has_handler(record.name):
            return
        try:
            # sys.stderr is read now: the stream that it was at import may be closed.
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)

    def _has_handler(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            for handler in logger.handlers:
                if not isinstance(handler, StderrFallback | logging.NullHandler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


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
