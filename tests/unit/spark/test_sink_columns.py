"""Rows that were read from a topic, as rows of the sink."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from metaq.spark.errors import OptionError
from metaq.spark.schema import COLUMN_NAMES, spark_schema
from metaq.spark.sink.columns import Layout

READ = spark_schema(COLUMN_NAMES)
PROPERTIES = pa.map_(pa.string(), pa.string())
SYSTEM = ("UNIQ_KEY", "a")


def batch(properties: list[list[tuple[str, str]] | None]) -> pa.RecordBatch:
    """Returns rows as they are read, sliced, so that arrays do not begin at their first value."""
    count = len(properties)
    columns = {name: pa.array([None] * (count + 1), pa.string()) for name in COLUMN_NAMES}
    columns["body"] = pa.array([b"skipped"] + [b"%d" % number for number in range(count)], pa.binary())
    columns["properties"] = pa.array([[("skipped", "x")], *properties], PROPERTIES)
    return pa.RecordBatch.from_pydict(columns).slice(1)


def test_rows_go_back_to_their_queue_or_to_the_topic_that_is_named() -> None:
    back = Layout.of(READ, None)
    assert set(back.places) == {"topic", "brokerName", "queueId", "keys", "tags", "body", "properties"}
    assert set(Layout.of(READ, "copies").places) == {"keys", "tags", "body", "properties"}
    assert set(Layout.of(StructType().add("body", "string").add("topic", "string"), "t").places) == {
        "body",
        "topic",
    }
    with pytest.raises(OptionError, match="takes no column price"):
        Layout.of(spark_schema(COLUMN_NAMES).add("price", "integer"), "copies")


def test_properties_of_the_system_are_left_out() -> None:
    rows = Layout.of(READ, "copies").rows(
        batch([[SYSTEM, ("b", "1")], None, [], [("c", "2"), SYSTEM, ("d", "3")]])
    )
    pairs = rows.properties
    assert pairs is not None
    assert struct.unpack("<5i", pairs.offsets) == (0, 1, 1, 1, 3)
    assert pairs.names.data == b"bcd" and pairs.values.data == b"123"
    assert pairs.validity is not None and pairs.validity[0] & 0b1111 == 0b1101
