"""A batch reader that takes the filters of a query, if Spark is set up to push them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from metaq.spark.source.batch import BatchReader
from metaq.spark.source.options import SourceOptions
from metaq.spark.source.pushdown import narrow

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that Spark runs to push filters; only if spark.sql.python.filterPushdown.enabled is set."""


class FilteringReader(BatchReader):
    """A batch reader with the filters of one query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowed, left = narrow(self._options, filters)
        return left


def batch_reader(options: SourceOptions) -> BatchReader:
    """Returns a reader. Spark refuses readers with `pushFilters` if it is set up not to push filters."""
    return FilteringReader(options) if _filters_are_pushed() else BatchReader(options)


def _filters_are_pushed() -> bool:
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _WORKER in sys.modules or (program is not None and program.name == _WORKER)
