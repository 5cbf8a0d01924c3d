"""Marks log lines that are routine remarks, so that reports do not show them as errors."""

from __future__ import annotations

import logging
from typing import Final

_MARK: Final = "is_metaq_remark"
REMARK: Final = {_MARK: True}
"""Given as `extra` with a warning: something that users should know, while the work goes on as it should."""


def is_remark(record: logging.LogRecord) -> bool:
    return bool(getattr(record, _MARK, False))
