"""`df.writeStream.format("metaq")`: writes rows as messages, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq.spark.errors import OptionError
from metaq.spark.sink import exactly_once
from metaq.spark.sink.batch import TaskDone, half_batches_of, require_append, require_topic, write_rows
from metaq.spark.sink.columns import Layout
from metaq.spark.sink.exactly_once import Identity
from metaq.spark.sink.options import Guarantee, SinkOptions

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes batches. Spark makes one for the tasks, and another whenever it commits or aborts a batch."""

    def __init__(self, schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
        """Raises OptionError, and NoRoute if the topic does not exist, before any row is read."""
        require_append(overwrite)
        if options.app_id is not None:
            raise OptionError(
                "the options txnAppId and txnVersion are for df.write",
                hint="a query has an identity of its own",
            )
        self._options = options
        self._layout = Layout.of(schema, options.topic)
        require_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        identity = None
        if self._options.guarantee is Guarantee.EXACTLY_ONCE:
            identity = _identity()
        return write_rows(self._options, self._layout, identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        identity = _identity_of(messages)
        if identity is not None:
            exactly_once.commit(self._options, identity, half_batches_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        identity = _identity_of(messages)
        if identity is not None:
            exactly_once.abort(self._options, identity, half_batches_of(messages))


def _identity() -> Identity:
    """Returns the batch that this task belongs to."""
    context = TaskContext.get()
    query_id = context and context.getLocalProperty(QUERY_ID)
    batch_id = context and context.getLocalProperty(BATCH_ID)
    if not query_id or not batch_id:
        raise OptionError(f"Spark does not tell {QUERY_ID} and {BATCH_ID}: exactly once is not possible")
    return Identity(query_id, int(batch_id))


def _identity_of(messages: list[WriterCommitMessage | None]) -> Identity | None:
    """Returns the batch, which only tasks know; None if no task ended, or if it is not exactly once."""
    for message in messages:
        if isinstance(message, TaskDone):
            return message.identity
    return None
