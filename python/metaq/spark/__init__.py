"""Topics as tables and streams: `spark.read.format("metaq")` and `spark.readStream.format("metaq")`.

`session()` gives a Spark session that knows the format; `register(spark)` makes it known to another one.
What is left to read, a query tells with its progress: `lags(query.lastProgress)`.

Needs the extra `spark` of the distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.spark.lag import Lag, lags
    from metaq.spark.listener import GroupOffsets
    from metaq.spark.session import register, session

__all__ = ["GroupOffsets", "Lag", "lags", "register", "session"]

_HOMES = {
    "GroupOffsets": "metaq.spark.listener",
    "Lag": "metaq.spark.lag",
    "lags": "metaq.spark.lag",
    "register": "metaq.spark.session",
    "session": "metaq.spark.session",
}


def __getattr__(name: str) -> object:
    # Parts of it are of use without pyspark, and executors need only their own.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'metaq.spark' has no attribute {name!r}")
