"""Reads a MariaDB or MySQL server: its tables, its settings and its binlog.

- `database.py` opens connections, checks settings and lists tables; `flavours.py` has the differences between
  MariaDB and MySQL, `gtids.py` their sets of GTIDs.
- `binlog_stream.py` reads the binlog and yields `binlog_items.py`. `event_decoder.py` decodes frequent events
  without I/O, with `mysql_events.py` for encodings of MySQL; mysql-replication decodes the others.
- `ddl.py` classifies statements, `xa.py` holds rows that are prepared and not committed, `read_position.py`
  tracks how far the binlog was read.
- `chunks.py` reads tables in chunks, and proves that no row is lost and no stale row wins.

Nothing here writes to a topic or a file.
"""
