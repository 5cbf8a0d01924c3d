"""The columns of a message: their Spark types, and Arrow arrays made from the native reader's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from metaq._core import ScanBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PROPERTIES: Final = "properties"

_DDL: Final = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "keys": "string",
    "tags": "string",
    "body": "binary",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "sysFlag": "int",
    "reconsumeTimes": "int",
    PROPERTIES: "map<string,string>",
}

COLUMN_NAMES: Final = tuple(_DDL)
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMN_NAMES if name != PROPERTIES)


def spark_schema(columns: Sequence[str]) -> StructType:
    from pyspark.sql.types import (
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(name, types[_DDL[name]]) for name in columns])


@dataclass(frozen=True, slots=True)
class ArrowColumns:
    """Makes record batches from the native reader's buffers."""

    columns: tuple[str, ...]

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        types = {
            "string": pa.string(),
            "int": pa.int32(),
            "bigint": pa.int64(),
            "binary": pa.binary(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "map<string,string>": pa.map_(pa.string(), pa.string()),
        }
        return pa.schema([pa.field(name, types[_DDL[name]]) for name in self.columns])

    def record_batch(self, schema: pa.Schema, batch: ScanBatch) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [
            _array(field.type, batch.rows, missing, buffers)
            for field, (missing, buffers) in zip(schema, batch.columns(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: Any, rows: int, missing: int, buffers: list[bytes | None]) -> Any:
    import pyarrow as pa

    wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, rows, wrapped, null_count=missing)
    ends, name_ends, names, value_ends, values = wrapped
    entries = len(buffers[1] or b"") // 4 - 1
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), rows + 1, [None, ends]),
        pa.Array.from_buffers(pa.string(), entries, [None, name_ends, names]),
        pa.Array.from_buffers(pa.string(), entries, [None, value_ends, values]),
    )
