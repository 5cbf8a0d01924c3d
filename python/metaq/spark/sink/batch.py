"""`df.write.format("metaq")`: writes rows as messages, task by task."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq.client.producer.row_sender import HalfBatch, RowSender, route_of
from metaq.spark.errors import OptionError
from metaq.spark.sink import exactly_once
from metaq.spark.sink.client import client_of, run, session_of
from metaq.spark.sink.columns import Layout
from metaq.spark.sink.exactly_once import Identity
from metaq.spark.sink.options import Guarantee, SinkOptions
from metaq.spark.sink.peers import require_metaq

JOB_PREFIX = "job-"


@dataclass
class TaskDone(WriterCommitMessage):
    """The result of one task, which Spark brings to the driver."""

    identity: Identity | None
    row_count: int
    half_batches: list[HalfBatch] = field(default_factory=list)


class SinkWriter(DataSourceArrowWriter):
    """One write. Tasks get a copy of it."""

    def __init__(self, schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
        """Raises OptionError, and NoRoute if the topic does not exist, before any row is read."""
        require_append(overwrite)
        self._options = options
        self._layout = Layout.of(schema, options.topic)
        self._identity: Identity | None = None
        if options.guarantee is Guarantee.EXACTLY_ONCE:
            if options.app_id is None:
                self._identity = Identity(
                    JOB_PREFIX + uuid.uuid4().hex, 0, is_job=True, made_ms=time.time_ns() // 1_000_000
                )
            else:
                assert options.version is not None
                self._identity = Identity(options.app_id, options.version)
        require_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return write_rows(self._options, self._layout, self._identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._identity is not None:
            exactly_once.commit(self._options, self._identity, half_batches_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._identity is not None:
            exactly_once.abort(self._options, self._identity, half_batches_of(messages))


def require_append(overwrite: bool) -> None:
    """Raises OptionError for a mode that would overwrite a topic."""
    if overwrite:
        raise OptionError("a topic cannot be overwritten", hint='use mode("append")')


def require_topic(options: SinkOptions) -> None:
    """Raises NoRoute if no broker has the topic or would create it, and OptionError if a broker cannot write
    exactly once and that is wanted."""
    if options.topic is not None:
        client = client_of(options.nameservers)
        if options.guarantee is Guarantee.EXACTLY_ONCE:
            run(client, require_metaq, session_of(client), [options.topic], options.timeout_s)
        else:
            run(client, route_of, session_of(client), options.topic, options.timeout_s)


def write_rows(
    options: SinkOptions, layout: Layout, identity: Identity | None, batches: Iterable[pa.RecordBatch]
) -> TaskDone:
    """Sends all rows of a task and returns when every one is acknowledged; raises if one is not."""
    client = client_of(options.nameservers)
    half_properties = None
    if identity is not None:
        exactly_once.answer_checks(client, options)
        half_properties = exactly_once.half_properties(identity, options)
    sender = RowSender(client, options.producer(half_properties))
    sender.start()
    row_count = 0
    checked: set[str] = set()
    try:
        for batch in batches:
            if batch.num_rows:
                topics = layout.topics(batch)
                if identity is not None and not checked.issuperset(topics):
                    # Rows may name topics that were not checked yet.
                    run(client, require_metaq, session_of(client), topics, options.timeout_s)
                    checked.update(topics)
                sender.know(topics)
                sender.put(layout.rows(batch))
                row_count += batch.num_rows
        sender.flush()
        return TaskDone(identity, row_count, sender.take_half_batches())
    except BaseException:
        if identity is not None:
            # Spark runs the task again with other half messages. Brokers would roll these back later.
            exactly_once.roll_back_quietly(client, options, sender.take_half_batches())
        raise
    finally:
        sender.close(0.0)


def half_batches_of(messages: Iterable[WriterCommitMessage | None]) -> list[HalfBatch]:
    """Returns the half messages of all tasks that ended."""
    return [
        half_batch
        for message in messages
        if isinstance(message, TaskDone)
        for half_batch in message.half_batches
    ]
