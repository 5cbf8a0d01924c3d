"""Chunks of a real table: how much one holds."""

from __future__ import annotations

from pathlib import Path

from metaq.pipelines.binlog.config import read_config
from metaq.pipelines.binlog.snapshot import ANYWHERE, Chunks
from metaq.pipelines.binlog.source import Source
from metaq.pipelines.binlog.state import Cursor
from tests.support.binlog import write_config
from tests.support.database import BOTH, Database

CHUNK_BYTES = 100_000
LARGE = 30_000


@BOTH
def test_a_chunk_ends_with_the_row_that_is_too_much(
    server: Database, database: str, password: str, tmp_path: Path
) -> None:
    # Small ones, larger ones, one that is larger than a chunk, and small ones again.
    sizes_of_rows = [1] * 200 + [LARGE] * 20 + [3 * CHUNK_BYTES] + [1] * 279
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
        rows = [(number, "v", size) for number, size in enumerate(sizes_of_rows, start=1)]
        cursor.executemany("INSERT INTO t VALUES (%s, REPEAT(%s, %s))", rows)
    config = read_config(write_config(tmp_path / "sync.toml", server, "127.0.0.1:1", database))
    chunks = Chunks(Source(config), 150, CHUNK_BYTES)
    read, cursor, sizes = [], None, []
    try:
        while True:
            chunk = chunks.read(database, "t", cursor, ANYWHERE)
            assert chunk is not None
            read += [row["id"] for row in chunk.rows]
            sizes.append([len(str(row["v"])) for row in chunk.rows])
            if chunk.is_last:
                break
            cursor = Cursor("", chunk.definition.key, chunk.last)
    finally:
        chunks.close()
    assert read == list(range(1, 501))
    for size in sizes:
        assert len(size) <= 150
        assert sum(size[:-1]) <= CHUNK_BYTES
    # Where rows are small again, chunks become large again.
    assert max(map(len, sizes[-3:])) > 50
