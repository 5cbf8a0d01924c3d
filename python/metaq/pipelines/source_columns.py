"""Columns of the Spark source under the names that rows of log-lake and stream-sql have."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f


def message_columns() -> list[Column]:
    """Returns the position, the labels and the times of a message."""
    return [
        f.col("topic"),
        f.col("brokerName").alias("broker"),
        f.col("queueId").alias("queue_id"),
        f.col("queueOffset").alias("queue_offset"),
        f.col("msgId").alias("msg_id"),
        f.col("tags"),
        f.col("keys"),
        f.col("bornTimestamp").alias("born_at"),
        f.col("storeTimestamp").alias("stored_at"),
        f.col("properties"),
    ]
