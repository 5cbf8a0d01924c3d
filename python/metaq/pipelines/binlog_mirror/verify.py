"""Compares mirrors with their source: first the checksums of chunks, then the keys of chunks that differ.

A hash of its key decides which chunk a row belongs to. The source is read along its primary key in limited
portions. Each of its rows is converted like a message: to text, then to the types of the mirror. So both
sides are compared as values of Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from metaq.pipelines import DifferingKey, TableVerification, Verification
from metaq.pipelines.binlog_mirror.columns import KEY
from metaq.pipelines.binlog_mirror.decode import key_of, mirrored, texts, typed_value
from metaq.pipelines.binlog_mirror.notes import Notes, TableName
from metaq.pipelines.binlog_mirror.refusals import Refusal
from metaq.pipelines.binlog_mirror.target import Target
from metaq.pipelines.binlog_sync.config import BinlogConfig
from metaq.pipelines.binlog_sync.errors import Unsuitable
from metaq.pipelines.binlog_sync.reading.chunks import ANYWHERE, ChunkReader
from metaq.pipelines.binlog_sync.reading.database import SourceDatabase, SourceTable
from metaq.pipelines.binlog_sync.values.columns import Definition
from metaq.pipelines.binlog_sync.writing.state import Cursor
from metaq.pipelines.spark_runtime import quoted
from metaq.retry import Retry, steady

READ_ROWS: Final = 20_000
READ_BYTES: Final = 32 * 1024 * 1024
CHUNK_ROWS: Final = 2_000
CHUNKS_MIN, CHUNKS_MAX = 16, 8192
LISTED_ROWS_MAX: Final = 200_000
"""The number of rows of differing chunks whose keys are compared; one chunk is always compared."""
PAUSE_S: Final = 1.0

Sums = dict[int, tuple[int, int]]
"""The number of rows and their checksum, by chunk."""
Keys = dict[str, tuple[int, int, int]]
"""By key: its chunk, the number of rows and their checksum."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Side:
    """Hashes the rows of one table, of either side."""

    columns: dict[str, str]
    chunks: int

    def hashed(self, frame: DataFrame) -> DataFrame:
        values = [f.col(quoted(name)) for name in self.columns]
        # NULL does not change a hash, so a NULL in another column would go unnoticed.
        missing = [f.isnull(value) for value in values]
        return frame.select(
            KEY,
            f.pmod(f.xxhash64(f.col(KEY)), f.lit(self.chunks)).cast("int").alias("chunk"),
            f.xxhash64(f.col(KEY), *values, *missing).alias("checksum"),
        )


class Verifier:
    """Compares all tables of the source and of the mirror."""

    def __init__(self, spark: SparkSession, target: Target, source: BinlogConfig, limit: int) -> None:
        self._spark = spark
        self._target = target
        self._selected = source
        self._source = SourceDatabase(source)
        self._limit = limit

    def verify(self, wait_s: float) -> Verification:
        """Compares rows that differ again for up to `wait_s`: changes may be on their way."""
        tries = Retry(wait_s, steady(PAUSE_S))
        found = last = self._pass()
        while not found.is_same and tries.pause_blocking():
            again = self._pass({table.table for table in found.tables if not table.is_same})
            found, last = _merged(found, last, again), again
        return Verification(tuple(self._limited(table) for table in found.tables))

    def _limited(self, table: TableVerification) -> TableVerification:
        keys = table.keys
        return replace(table, keys=keys[: self._limit], more_keys=max(len(keys) - self._limit, 0))

    def _pass(self, only: set[str] | None = None) -> Verification:
        with self._source.connect() as connection, self._source.errors():
            there, _ = self._source.tables(connection)
        tables: dict[TableName, SourceTable | None] = {(table.database, table.name): table for table in there}
        for name in self._target.tables():
            if self._selected.selects(*name):
                tables.setdefault(name, None)
        return Verification(
            tuple(
                self._table(name, table)
                for name, table in sorted(tables.items(), key=lambda entry: entry[0])
                if only is None or ".".join(name) in only
            )
        )

    def _table(self, name: TableName, table: SourceTable | None) -> TableVerification:
        """Compares one table; the result has all differing keys."""
        full_name = ".".join(name)
        definition = None if table is None else table.definition
        mirror = self._target.open(name)
        if mirror is None:
            return TableVerification(full_name, note="it has no mirror")
        if table is None and mirror.notes.dropped:
            note = "the source has dropped this table, and its mirror is kept"
            return TableVerification(full_name, mirror_rows=mirror.rows().count(), note=note, is_kept=True)
        names = {} if definition is None else {column.name.lower() for column in definition.columns}
        # mirror.schema_changes decides which columns only one side has, so only common ones are compared.
        columns = {
            column: kind
            for column, kind in mirror.columns.items()
            if definition is None or column.lower() in names
        }
        rows = mirror.rows()
        mirror_rows = rows.count()
        rows_max = max(mirror_rows, 0 if table is None else table.rows)
        chunks = min(max(rows_max // CHUNK_ROWS, CHUNKS_MIN), CHUNKS_MAX)
        side = _Side(columns, chunks)
        mirrored = _sums(side.hashed(rows))
        sourced: Sums = {}
        if definition is not None:
            for frame in self._frames(name, columns):
                _add(sourced, _sums(side.hashed(frame)))
        differing = sorted(
            chunk for chunk in mirrored.keys() | sourced.keys() if mirrored.get(chunk) != sourced.get(chunk)
        )
        listed = _listed(differing, mirrored, sourced)
        keys: dict[DifferingKey, int] = {}
        if differing:
            keys = self._keys(name, definition, side, rows, listed)
        unlisted = len(differing) - len(listed)
        quarantined, refusals = mirror.quarantined()
        return TableVerification(
            full_name,
            source_rows=sum(count for count, _ in sourced.values()),
            mirror_rows=mirror_rows,
            chunks=chunks,
            # A chunk without differing keys has become equal meanwhile.
            differing_chunks=len(set(keys.values())) + unlisted,
            unlisted_chunks=unlisted,
            keys=with_reasons(keys, refusals),
            quarantined=quarantined,
            note=_note(mirror.notes, is_there=definition is not None),
        )

    def _keys(
        self,
        name: TableName,
        definition: Definition | None,
        side: _Side,
        rows: DataFrame,
        differing: list[int],
    ) -> dict[DifferingKey, int]:
        """Returns the differing keys of some chunks, each with its chunk."""
        mirrored = _checksums(side.hashed(rows), differing)
        sourced: Keys = {}
        if definition is not None:
            for frame in self._frames(name, side.columns):
                sourced |= _checksums(side.hashed(frame), differing)
        return _differences(mirrored, sourced)

    def _frames(self, name: TableName, columns: dict[str, str]) -> Iterator[DataFrame]:
        """Yields the rows of the source with the mirror's types."""
        selected = self._selected
        chunks = ChunkReader(
            self._source, min(READ_ROWS, selected.chunk_rows), min(READ_BYTES, selected.chunk_bytes)
        )
        cursor: Cursor | None = None
        seen: set[bytes] = set()
        try:
            while True:
                try:
                    chunk = chunks.read(*name, cursor, ANYWHERE)
                except Unsuitable:
                    return
                if chunk is None:
                    return
                for rows in chunk.portions():
                    encoded = [_encode(row) for row in rows]
                    if chunk.definition.is_keyless:
                        encoded = _unseen(encoded, seen)
                    if not encoded:
                        continue
                    lines: Any = pa.table({"row": [line.decode() for line in encoded]})
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


def _unseen(rows: list[bytes], seen: set[bytes]) -> list[bytes]:
    """Returns each row once: without a primary key, a mirror has one of several equal rows."""
    fresh = []
    for row in rows:
        digest = hashlib.blake2b(row, digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            fresh.append(row)
    return fresh


def with_reasons(keys: Iterable[DifferingKey], refusals: Iterable[Refusal]) -> tuple[DifferingKey, ...]:
    """Adds to each key in quarantine why it is there."""
    reasons = {refusal.key: refusal.summary for refusal in refusals}
    return tuple(
        replace(key, what=f"{key.what}; in quarantine: {reasons[key.key]}") if key.key in reasons else key
        for key in keys
    )


def _note(notes: Notes, *, is_there: bool) -> str:
    if notes.skipped:
        return f"it is skipped: {notes.skip_reason}"
    return "" if is_there else "the source does not have this table"


def _sums(hashed: DataFrame) -> Sums:
    grouped = hashed.groupBy("chunk").agg(f.count("*").alias("rows"), f.bit_xor("checksum").alias("sum"))
    return {row.chunk: (row.rows, row["sum"]) for row in grouped.collect()}


def _add(sums: Sums, more: Sums) -> None:
    for chunk, (count, checksum) in more.items():
        before = sums.get(chunk, (0, 0))
        sums[chunk] = (before[0] + count, before[1] ^ checksum)


def _listed(differing: list[int], mirrored: Sums, sourced: Sums) -> list[int]:
    """Returns as many chunks as fit into `LISTED_ROWS_MAX`."""
    listed: list[int] = []
    rows = 0
    for chunk in differing:
        rows += max(mirrored.get(chunk, (0, 0))[0], sourced.get(chunk, (0, 0))[0])
        if listed and rows > LISTED_ROWS_MAX:
            break
        listed.append(chunk)
    return listed


def _checksums(hashed: DataFrame, chunks: list[int]) -> Keys:
    keys: Keys = {}
    for row in hashed.where(f.col("chunk").isin(chunks)).collect():
        _, count, checksum = keys.get(row[KEY], (0, 0, 0))
        keys[row[KEY]] = (row.chunk, count + 1, checksum ^ row.checksum)
    return keys


def _differences(mirrored: Keys, sourced: Keys) -> dict[DifferingKey, int]:
    """Returns the differing keys, each with its chunk."""
    keys: dict[DifferingKey, int] = {}
    for key in sorted(mirrored.keys() | sourced.keys()):
        mirror, source = mirrored.get(key), sourced.get(key)
        if mirror == source:
            continue
        if mirror is None:
            what = "only in the source"
        elif source is None:
            what = "only in the mirror"
        elif mirror[1] > source[1]:
            what = "more than once in the mirror"
        else:
            what = "different"
        chunk, *_ = mirror or source or (0,)
        keys[DifferingKey(key, what)] = chunk
    return keys


def _merged(found: Verification, last: Verification, again: Verification) -> Verification:
    """Keeps the keys that differ in this pass and the last one. A table that was equal once is done."""
    before = {table.table: table for table in last.tables}
    second = {table.table: table for table in again.tables}
    tables = []
    for table in found.tables:
        new, old = second.get(table.table), before.get(table.table)
        if table.is_same or new is None:
            tables.append(table)
        elif old is None or any(one.note or one.unlisted_chunks for one in (old, new)):
            # Some keys are unknown, so a key that is new here may have differed before.
            tables.append(new)
        else:
            stayed = {key.key for key in old.keys}
            keys = tuple(key for key in new.keys if key.key in stayed)
            tables.append(replace(new, keys=keys, differing_chunks=new.differing_chunks if keys else 0))
    return Verification(tuple(tables))
