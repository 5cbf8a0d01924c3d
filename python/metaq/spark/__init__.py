"""Topics as tables and streams: `spark.read.format("metaq")` and `spark.readStream.format("metaq")`.

`session()` returns a Spark session that knows the format; `register(spark)` adds it to another one.
`lags(query.lastProgress)` tells how far behind a query is, `report_queries(spark)` shows all queries of a
session in `metaq pipeline status`. `archive(path)` packs what the executors of a cluster need.

Spark calls `datasource.py`, which only reads options; `source` reads topics, `sink` writes them, `schema.py`
has the columns of a message. `session.py` sets up Spark: `launch.py` starts its JVM, with jars that
`maven_jars.py` finds if need be, and `interpreters.py` chooses the Python of its processes. `shipping.py` and
`environment.py` bring MetaQ to executors; `packing.py` writes its archive. `worker_failures.py`
explains why a Python process failed, `stderr_logging.py` shows warnings of processes that nobody has set up
logging for. The modules that Spark's processes import must not import the servers
(tests/unit/spark/test_imports.py). It needs the extra `spark` of the distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.spark import stderr_logging

# Imported at once, because the module `session` would otherwise replace the function.
from metaq.spark.session import register, session
from metaq.spark.shipping import archive
from metaq.spark.source.lag import Lag, lags

if TYPE_CHECKING:
    from metaq.spark.query_reports import QueryReports, report_queries
    from metaq.spark.source.listener import GroupOffsets

__all__ = [
    "GroupOffsets",
    "Lag",
    "QueryReports",
    "archive",
    "lags",
    "register",
    "report_queries",
    "session",
]

# Every process that uses the format imports this module.
stderr_logging.attach()


if not TYPE_CHECKING:  # With it, type checkers would accept every misspelt name.

    def __getattr__(name: str) -> object:
        # They need pyspark, which not every user of this package has.
        if name == "GroupOffsets":
            from metaq.spark.source.listener import GroupOffsets

            return GroupOffsets
        if name in ("QueryReports", "report_queries"):
            from metaq.spark import query_reports

            return getattr(query_reports, name)
        raise AttributeError(f"module 'metaq.spark' has no attribute {name!r}")
