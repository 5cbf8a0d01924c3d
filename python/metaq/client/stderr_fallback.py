"""Shows problems that need the user on stderr in programs that have not set up logging, each of them once.

If a program has not set up logging, Python prints all warnings of a library, or none if the library has a
handler. Both are wrong for a consumer that cannot reach its name server: without a word, users look for the
error in their own code, and one line per second is too much. So important log records carry a key, and the
handler below prints the first record of each key, if no other handler gets it.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

KEYS_MAX: Final = 1000
_ATTRIBUTE: Final = "metaq_once"


def once(*key: object) -> dict[str, object]:
    """Returns the `extra` of a log record that is also shown on stderr, once for each key."""
    return {_ATTRIBUTE: key}


class StderrFallback(logging.Handler):
    """Prints records to stderr that no other handler gets. It checks every time, because logging may be set
    up later."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._has_others(record.name):
            return
        try:
            # sys.stderr is read now: the stream that it was at import may be closed.
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)

    def _has_others(self, name: str) -> bool:
        """Returns whether a handler that the program has added gets the record."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(not isinstance(handler, StderrFallback) for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


class OnceOnStderr(StderrFallback):
    """The handler of the logger `metaq`. It prints the first record of each key."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("metaq: %(message)s"))
        self._shown: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        key = getattr(record, _ATTRIBUTE, None)
        if key is None or key in self._shown or len(self._shown) >= KEYS_MAX or self._has_others(record.name):
            return
        self._shown.add(key)
        super().emit(record)
