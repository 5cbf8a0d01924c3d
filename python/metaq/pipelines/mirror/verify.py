"""Whether the mirrors are as their tables are: checksums of chunks first, keys where these differ.

A row belongs to a chunk by a hash of its key. The source is read along its primary key, so many rows at a
time as fit, and each row goes the way that a message goes: text, then the types of the mirror. So both sides
are compared as what Spark makes of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines import DifferingKey, TableVerification, Verification
from metaq.pipelines.binlog.columns import Definition
from metaq.pipelines.binlog.config import BinlogConfig
from metaq.pipelines.binlog.sequence import Place
from metaq.pipelines.binlog.snapshot import Chunks
from metaq.pipelines.binlog.source import Source
from metaq.pipelines.binlog.state import Cursor
from metaq.pipelines.mirror.columns import KEY
from metaq.pipelines.mirror.decode import key_of, mirrored, quoted, texts, typed_value
from metaq.pipelines.mirror.notes import TableName
from metaq.pipelines.mirror.target import Target

READ_ROWS: Final = 20_000
READ_BYTES: Final = 32 * 1024 * 1024
CHUNK_ROWS: Final = 2_000
CHUNKS_MIN, CHUNKS_MAX = 16, 8192
LISTED_CHUNKS_MAX: Final = 64
"""Of how many chunks that differ the keys are looked for."""
PAUSE_S: Final = 1.0
ANYWHERE: Final = Place("none.0", 0)

Sums = dict[int, tuple[int, int]]
"""Rows and their checksum by chunk."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Side:
    """One table as frames of key, chunk and checksum of each row."""

    columns: dict[str, str]
    chunks: int

    def hashed(self, frame: DataFrame) -> DataFrame:
        values = [f.col(quoted(name)) for name in self.columns]
        # NULL changes a hash by nothing, so that one in another column would go unseen.
        missing = [f.isnull(value) for value in values]
        return frame.select(
            KEY,
            f.pmod(f.xxhash64(f.col(KEY)), f.lit(self.chunks)).cast("int").alias("chunk"),
            f.xxhash64(f.col(KEY), *values, *missing).alias("checksum"),
        )


class Verifier:
    """Compares all tables that the source or the mirror has."""

    def __init__(self, spark: SparkSession, target: Target, source: BinlogConfig, limit: int) -> None:
        self._spark = spark
        self._target = target
        self._selected = source
        self._source = Source(source)
        self._limit = limit

    def verify(self, wait_s: float) -> Verification:
        """Rows that differ are looked at again for so long: changes may be on their way."""
        deadline = time.monotonic() + wait_s
        found = self._pass()
        while not found.is_same and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            again = self._pass({table.table for table in found.tables if not table.is_same})
            found = _merged(found, again)
        return found

    def _pass(self, only: set[str] | None = None) -> Verification:
        with self._source.connect() as connection, self._source.errors():
            there, _ = self._source.tables(connection)
        definitions: dict[TableName, Definition | None] = {
            (table.database, table.name): table.definition for table in there
        }
        for name in self._target.tables():
            if self._selected.selects(*name):
                definitions.setdefault(name, None)
        return Verification(
            tuple(
                self._table(name, definition)
                for name, definition in sorted(definitions.items())
                if only is None or ".".join(name) in only
            )
        )

    def _table(self, name: TableName, definition: Definition | None) -> TableVerification:
        told = ".".join(name)
        mirror = self._target.open(name)
        if mirror is None:
            return TableVerification(told, note="it has no mirror")
        names = {} if definition is None else {column.name.lower() for column in definition.columns}
        # What the mirror alone has, or lacks, is as mirror.schema_changes says.
        columns = {
            column: kind
            for column, kind in mirror.columns.items()
            if definition is None or column.lower() in names
        }
        rows = mirror.rows()
        mirror_rows = rows.count()
        chunks = min(max(mirror_rows // CHUNK_ROWS, CHUNKS_MIN), CHUNKS_MAX)
        side = _Side(columns, chunks)
        mirrored = _sums(side.hashed(rows))
        sourced: Sums = {}
        if definition is not None:
            for frame in self._frames(name, columns):
                _add(sourced, _sums(side.hashed(frame)))
        differing = sorted(
            chunk for chunk in mirrored.keys() | sourced.keys() if mirrored.get(chunk) != sourced.get(chunk)
        )
        keys: list[DifferingKey] = []
        if differing:
            keys = self._keys(name, definition, side, rows, differing[:LISTED_CHUNKS_MAX])
        return TableVerification(
            told,
            source_rows=sum(count for count, _ in sourced.values()),
            mirror_rows=mirror_rows,
            chunks=chunks,
            differing_chunks=len(differing),
            keys=tuple(keys[: self._limit]),
            more_keys=max(len(keys) - self._limit, 0),
            note="" if definition is not None else "the source has no such table",
        )

    def _keys(
        self,
        name: TableName,
        definition: Definition | None,
        side: _Side,
        rows: DataFrame,
        differing: list[int],
    ) -> list[DifferingKey]:
        mirrored = _checksums(side.hashed(rows), differing)
        sourced: dict[str, int] = {}
        if definition is not None:
            for frame in self._frames(name, side.columns):
                sourced |= _checksums(side.hashed(frame), differing)
        keys = []
        for key in sorted(mirrored.keys() | sourced.keys()):
            if key not in mirrored:
                keys.append(DifferingKey(key, "only in the source"))
            elif key not in sourced:
                keys.append(DifferingKey(key, "only in the mirror"))
            elif mirrored[key] != sourced[key]:
                keys.append(DifferingKey(key, "different"))
        return keys

    def _frames(self, name: TableName, columns: dict[str, str]) -> Iterator[DataFrame]:
        """The rows of the source, with the mirror's types."""
        chunks = Chunks(self._source, READ_ROWS, READ_BYTES)
        cursor: Cursor | None = None
        try:
            while True:
                chunk = chunks.read(*name, cursor, ANYWHERE)
                if chunk is None:
                    return
                if chunk.rows:
                    lines: Any = pa.table({"row": [_encode(row).decode() for row in chunk.rows]})
                    frame = self._spark.createDataFrame(lines)
                    parsed = frame.select(texts(f.col("row"), chunk.definition).alias("r"))
                    yield parsed.select(
                        key_of("r", chunk.definition),
                        *mirrored("r", chunk.definition, columns, typed_value, strictly=False),
                    )
                if chunk.is_last:
                    return
                cursor = Cursor("", chunk.definition.key, chunk.last)
        finally:
            chunks.close()


def _sums(hashed: DataFrame) -> Sums:
    grouped = hashed.groupBy("chunk").agg(f.count("*").alias("rows"), f.bit_xor("checksum").alias("sum"))
    return {row.chunk: (row.rows, row["sum"]) for row in grouped.collect()}


def _add(sums: Sums, more: Sums) -> None:
    for chunk, (count, checksum) in more.items():
        before = sums.get(chunk, (0, 0))
        sums[chunk] = (before[0] + count, before[1] ^ checksum)


def _checksums(hashed: DataFrame, chunks: list[int]) -> dict[str, int]:
    return {row[KEY]: row.checksum for row in hashed.where(f.col("chunk").isin(chunks)).collect()}


def _merged(before: Verification, again: Verification) -> Verification:
    """What differs both times. A table that was the same once is not looked at again."""
    second = {table.table: table for table in again.tables}
    tables = []
    for table in before.tables:
        if table.is_same or table.table not in second:
            tables.append(table)
            continue
        new = second[table.table]
        stayed = {key.key for key in table.keys}
        keys = tuple(key for key in new.keys if key.key in stayed or table.more_keys)
        is_settled = new.is_same or (not keys and not new.more_keys and not new.note)
        tables.append(replace(new, keys=keys, differing_chunks=0 if is_settled else new.differing_chunks))
    return Verification(tuple(tables))
