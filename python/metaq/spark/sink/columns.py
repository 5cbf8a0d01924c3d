"""The columns of the sink: their types, and how they become rows for the data plane."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from metaq.client.producer.arrow_rows import Numbers, Pairs, Rows, Texts
from metaq.errors import InvalidMessage
from metaq.protocol.properties import SYSTEM_NAMES
from metaq.spark.errors import OptionError
from metaq.spark.schema import COLUMN_NAMES

_T = TypeVar("_T")

WHOLE_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True)
class Column:
    """One column of the sink."""

    accepted: str
    is_accepted: Callable[[DataType], bool]


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_texts(kind: DataType) -> bool:
    return _is_text(kind) or (isinstance(kind, ArrayType) and _is_text(kind.elementType))


def _is_pairs(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


_TEXT: Final = Column("string", _is_text)
_NUMBER: Final = Column("int or bigint", lambda kind: isinstance(kind, WHOLE_NUMBERS))

COLUMNS: Final[dict[str, Column]] = {
    "body": Column("binary or string", lambda kind: isinstance(kind, (BinaryType, StringType))),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": Column("string or array<string>", _is_texts),
    "properties": Column("map<string,string>", _is_pairs),
    "shardingKey": _TEXT,
    "queueId": _NUMBER,
    "brokerName": _TEXT,
    "delayLevel": _NUMBER,
    "deliverAt": Column("timestamp", lambda kind: isinstance(kind, TimestampType)),
}
_BY_LOWER_NAME: Final = {name.lower(): name for name in COLUMNS}
ONLY_READ: Final = frozenset(COLUMN_NAMES) - COLUMNS.keys()
"""Columns that the source has and the sink does not."""
_ONLY_READ_LOWER: Final = {name.lower() for name in ONLY_READ}
_ORIGIN: Final = ("topic", "brokerName", "queueId")
"""Columns that say where a message was read."""


@dataclass(frozen=True)
class Layout:
    """The places of the sink's columns in a table."""

    places: dict[str, int]
    topic: str | None
    """The topic of rows that name none."""
    is_as_read: bool = False
    """Whether the table has columns that only the source has: its rows were read from a topic."""

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> Layout:
        """Checks a schema. Raises OptionError, which names the column and its types.

        Rows that were read can be written as they are: columns that only the source has are ignored. If the
        option `topic` is given, the rows go there, and where they were read does not matter.
        """
        places: dict[str, int] = {}
        is_as_read = any(field.name.lower() in _ONLY_READ_LOWER for field in schema.fields)
        for place, field in enumerate(schema.fields):
            if field.name.lower() in _ONLY_READ_LOWER:
                continue
            name = _BY_LOWER_NAME.get(field.name.lower())
            if name is None:
                raise OptionError(
                    f"the sink takes no column {field.name}", hint=f"it takes {', '.join(COLUMNS)}"
                )
            if name in places:
                raise OptionError(f"the column {name} is there twice", hint="drop or rename one of them")
            column = COLUMNS[name]
            if not column.is_accepted(field.dataType):
                raise OptionError(
                    f"the column {field.name} is {field.dataType.simpleString()}",
                    hint=f"the sink takes {column.accepted} there",
                )
            places[name] = place
        if is_as_read and topic is not None:
            places = {name: place for name, place in places.items() if name not in _ORIGIN}
        if "body" not in places:
            raise OptionError("there is no column body", hint="give one that is binary or string")
        if "topic" not in places and topic is None:
            raise OptionError(
                "nothing says which topic the rows go to", hint="give the option topic, or a column topic"
            )
        if "brokerName" in places and "queueId" not in places:
            raise OptionError("the column brokerName is there without queueId", hint="give both, or neither")
        return cls(places, topic, is_as_read)

    def topics(self, batch: pa.RecordBatch) -> Iterable[str]:
        """Returns all topics of a batch."""
        if "topic" not in self.places:
            return () if self.topic is None else (self.topic,)
        found: list[str | None] = pc.unique(batch.column(self.places["topic"])).to_pylist()
        return {topic or self.topic or "" for topic in found} - {""}

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """Returns the rows. Raises InvalidMessage for errors that show in a whole column; the data plane
        finds the others."""

        def column(name: str) -> Any:
            place = self.places.get(name)
            return None if place is None else batch.column(place)

        return Rows(
            count=batch.num_rows,
            bodies=_texts(column("body")),
            topic=self.topic,
            topics=_maybe(_texts, column("topic")),
            tags=_maybe(_texts, column("tags")),
            keys=_maybe(_keys, column("keys")),
            properties=_maybe(self._pairs, column("properties")),
            sharding_keys=_maybe(_texts, column("shardingKey")),
            brokers=_maybe(_texts, column("brokerName")),
            queue_ids=_maybe(_numbers, column("queueId")),
            delay_levels=_maybe(_numbers, column("delayLevel")),
            deliver_ms=_maybe(_milliseconds, column("deliverAt")),
        )

    def _pairs(self, array: pa.Array) -> Pairs:
        return _pairs(_without_system_names(array) if self.is_as_read else array)


def _maybe(read: Callable[[Any], _T], array: Any) -> _T | None:
    return None if array is None else read(array)


def _validity(array: pa.Array) -> tuple[bytes | None, int]:
    buffer = array.buffers()[0]
    if buffer is None or array.null_count == 0:
        return None, 0
    first_byte, first_bit = divmod(array.offset, 8)
    return buffer.slice(first_byte, (first_bit + len(array) + 7) // 8).to_pybytes(), first_bit


def _offsets(array: pa.Array) -> tuple[bytes, int, int]:
    """Returns the offsets of the array's own part, and the first and the last of them."""
    offsets = array.buffers()[1].slice(array.offset * 4, (len(array) + 1) * 4).to_pybytes()
    (first,) = struct.unpack_from("<i", offsets)
    (last,) = struct.unpack_from("<i", offsets, len(array) * 4)
    return offsets, first, last


def _texts(array: pa.Array) -> Texts:
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    if len(array) == 0:
        return Texts(b"", bytes(4))
    offsets, first, last = _offsets(array)
    data = array.buffers()[2]
    return Texts(
        b"" if data is None else data.slice(first, last - first).to_pybytes(), offsets, *_validity(array)
    )


def _numbers(array: pa.Array) -> Numbers:
    if array.type != pa.int64():
        array = array.cast(pa.int64())
    values = array.buffers()[1]
    return Numbers(values.slice(array.offset * 8, len(array) * 8).to_pybytes(), *_validity(array))


def _milliseconds(array: pa.Array) -> Numbers:
    return _numbers(array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False).cast(pa.int64()))


def _keys(array: pa.Array) -> Texts:
    if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
        return _texts(array)
    keys = pc.list_flatten(array)
    if keys.null_count:
        raise InvalidMessage("the column keys holds an array with a null in it")
    if len(keys) and pc.any(pc.match_substring_regex(keys, r"^$|\s")).as_py():
        raise InvalidMessage(
            "the column keys holds a key that is empty or has white space, which separates keys"
        )
    return _texts(pc.binary_join(array.cast(pa.list_(pa.string())), " "))


def _without_system_names(array: pa.Array) -> pa.Array:
    """Returns the properties without those that the system sets for each message itself."""
    if len(array) == 0:
        return array
    offsets, first, last = _offsets(array)
    names, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    kept = pc.invert(pc.is_in(names, value_set=pa.array(sorted(SYSTEM_NAMES), names.type)))
    counts = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(kept.cast(pa.int64()))])
    ends = pc.subtract(
        pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, pa.py_buffer(offsets)]), first
    )
    is_null = pc.is_null(array)
    return pa.MapArray.from_arrays(
        counts.take(ends).cast(pa.int32()), names.filter(kept), values.filter(kept), mask=is_null
    )


def _pairs(array: pa.Array) -> Pairs:
    if len(array) == 0:
        return Pairs(bytes(4), Texts(b"", bytes(4)), Texts(b"", bytes(4)))
    offsets, first, last = _offsets(array)
    names, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    for name in pc.unique(names).to_pylist():
        if name in SYSTEM_NAMES:
            raise InvalidMessage(
                f"the column properties holds {name}, which belongs to the system", hint="choose another name"
            )
    return Pairs(offsets, _texts(names), _texts(values), *_validity(array))
