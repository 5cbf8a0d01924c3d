"""Chunks of a real table: their size, and the server that they are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import CommandError
from metaq.pipelines.binlog_sync.config import read_config
from metaq.pipelines.binlog_sync.errors import StreamLost
from metaq.pipelines.binlog_sync.reading import flavours
from metaq.pipelines.binlog_sync.reading.binlog_items import xid_text
from metaq.pipelines.binlog_sync.reading.binlog_stream import BinlogStream
from metaq.pipelines.binlog_sync.reading.chunks import ANYWHERE, ChunkReader
from metaq.pipelines.binlog_sync.reading.database import SourceDatabase
from metaq.pipelines.binlog_sync.writing.state import Cursor
from tests.support.binlog import write_config
from tests.support.database import BOTH, Database
from tests.support.mariadb import MariaDb
from tests.support.mysql import MySql

CHUNK_BYTES = 100_000
LARGE = 30_000


@BOTH
def test_a_chunk_ends_with_the_row_that_exceeds_its_size(
    server: Database, database: str, password: str, tmp_path: Path
) -> None:
    # Small rows, larger ones, one that is larger than a chunk, and small ones again.
    sizes_of_rows = [1] * 200 + [LARGE] * 20 + [3 * CHUNK_BYTES] + [1] * 279
    with server.root(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
        rows = [(number, "v", size) for number, size in enumerate(sizes_of_rows, start=1)]
        cursor.executemany("INSERT INTO t VALUES (%s, REPEAT(%s, %s))", rows)
    config = read_config(write_config(tmp_path / "sync.toml", server, "127.0.0.1:1", database))
    chunks = ChunkReader(SourceDatabase(config), 150, CHUNK_BYTES)
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
    # Chunks grow again when rows are small again.
    assert max(map(len, sizes[-3:])) > 50


@BOTH
def test_another_server_is_refused(server: Database, database: str, password: str, tmp_path: Path) -> None:
    server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY)")
    config = read_config(write_config(tmp_path / "sync.toml", server, "127.0.0.1:1", database))
    source = SourceDatabase(config)
    with source.connect() as connection:
        found = source.server(connection)
        position = found.flavour.position(connection)
    chunks = ChunkReader(source, 10, CHUNK_BYTES)
    try:
        for source.expected in (found.identity, "another one"):
            stream = BinlogStream(
                source,
                config.server_id,
                position,
                flavour=found.flavour.name,
                selects=lambda *names: True,
                refuse=lambda *names: None,
            )
            chunks.close()
            try:
                if source.expected == found.identity:
                    assert chunks.read(database, "t", None, ANYWHERE) is not None
                    next(stream.items())
                else:
                    with pytest.raises(StreamLost, match="another server"):
                        chunks.read(database, "t", None, ANYWHERE)
                    with pytest.raises(StreamLost, match="another server"):
                        next(stream.items())
            finally:
                stream.close()
    finally:
        chunks.close()


def test_a_mysql_server_that_lacks_transactions_is_refused(
    mysql: MySql, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flavours, "_WAIT_S", 1)
    source = SourceDatabase(read_config(write_config(tmp_path / "sync.toml", mysql, "127.0.0.1:1", "any")))
    lost = "34d5a371-e1bb-11f1-ae18-02fc00000001:99-100"
    with source.connect() as connection:
        found = source.server(connection)
        known = found.flavour.position(connection).gtid
        found.flavour.require_known(connection, "the server", known)
        with pytest.raises(CommandError, match=lost):
            found.flavour.require_known(connection, "the server", f"{known},{lost}")


def test_xa_transactions_that_tables_do_not_have_yet(
    mariadb: MariaDb, database: str, password: str, tmp_path: Path
) -> None:
    mariadb.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY)")
    source = SourceDatabase(
        read_config(write_config(tmp_path / "sync.toml", mariadb, "127.0.0.1:1", database))
    )
    xid = xid_text(b"\0'\xff", b"b", 7)
    with (
        source.connect() as connection,
        mariadb.root(database=database) as writing,
        writing.cursor() as cursor,
    ):
        flavour = source.server(connection).flavour
        for statement in ("XA START", "INSERT INTO t VALUES (1)", "XA END", "XA PREPARE"):
            cursor.execute(f"{statement} {xid}" if statement.startswith("XA") else statement)
        # A reader that has passed its commit expects its rows in the tables.
        assert not flavour.has_reached(connection, ANYWHERE, {xid, "x'61',x'',1"})
        assert flavour.has_reached(connection, ANYWHERE, {"x'61',x'',1"})
        cursor.execute(f"XA COMMIT {xid}")
        assert flavour.has_reached(connection, ANYWHERE, {xid})
