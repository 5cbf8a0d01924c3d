"""Topics as tables and streams: `spark.read.format("metaq")` and `spark.readStream.format("metaq")`.

`session()` gives a Spark session that knows the format; `register(spark)` makes it known to another one.
What is left to read, a query tells with its progress: `lags(query.lastProgress)`. `archive(path)` packs
what executors of a cluster need.

Needs the extra `spark` of the distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.spark import stderr_logging as telling

# Imported here and now: otherwise the module of that name would take the function's place.
from metaq.spark.session import register, session
from metaq.spark.shipping import archive
from metaq.spark.source.lag import Lag, lags

if TYPE_CHECKING:
    from metaq.spark.source.listener import GroupOffsets

__all__ = ["GroupOffsets", "Lag", "archive", "lags", "register", "session"]

# Every process that has to do with the format comes by here.
telling.attach()


def __getattr__(name: str) -> object:
    # Needs pyspark, which is not there wherever a part of this package is.
    if name == "GroupOffsets":
        from metaq.spark.source.listener import GroupOffsets

        return GroupOffsets
    raise AttributeError(f"module 'metaq.spark' has no attribute {name!r}")
