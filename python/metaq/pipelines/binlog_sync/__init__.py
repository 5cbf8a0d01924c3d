"""binlog-sync: the tables of a MariaDB or MySQL server and every change of them, into an ordered topic.

Read in this order:

- `pipeline.py` checks, begins and ends a run; `config.py` reads its file, `state.py` keeps how far it is.
- `source.py` is the database, `flavours.py` what differs between MariaDB and MySQL, with `gtids.py`.
- `stream.py` reads the binlog through mysql-replication, `mysql_events.py` what that does not know; `rows.py`
  and `values.py` (with `charsets.py` and `json_binary.py`) read the row images, `columns.py` says what tables
  look like, `ddl.py` what statements mean.
- `snapshot.py` reads the tables in chunks, and says why nothing is missing.
- `sync.py` puts both in order, with `sequence.py` numbering the changes and `messages.py` writing them;
  `xa.py` holds rows that are prepared and not committed.
- `outbox.py` sends, in order and however often it takes; `progress.py` says from where on the next run must
  begin.
"""
