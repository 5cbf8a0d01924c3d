"""Where warnings go in processes that nobody has set up logging for.

Spark starts Python processes of its own, for planning and for tasks, and what the program of the user does
with its logging has no effect there. Their stderr is shown, though: in the driver's own, and in the `stderr`
of each executor.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

PACKAGE: Final = "metaq.spark"


class Otherwise(logging.Handler):
    """Writes to stderr what no other handler gets; it looks each time, as logging may be set up later."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_heard(record.name):
            return
        try:
            # As it is now: the stream of the moment of import may be closed.
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)

    def _is_heard(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            for handler in logger.handlers:
                if not isinstance(handler, Otherwise | logging.NullHandler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


def attach() -> None:
    """Once for a process, however often it is called."""
    logger = logging.getLogger(PACKAGE)
    if any(isinstance(handler, Otherwise) for handler in logger.handlers):
        return
    handler = Otherwise(logging.WARNING)
    # Spark's own shape, among whose lines it is found.
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")
    )
    logger.addHandler(handler)
