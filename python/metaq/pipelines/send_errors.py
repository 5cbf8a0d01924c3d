"""Decides whether a failed send is worth another attempt."""

from __future__ import annotations

from metaq.errors import MetaqError, NotDurable


def is_final(error: BaseException) -> bool:
    """Returns whether a retry is useless. A message that may not be durable is sent again."""
    return not isinstance(error, MetaqError) or not (error.retriable or isinstance(error, NotDurable))
