"""binlog-sync: the tables of a MariaDB server and every change of them, into an ordered topic.

Read in this order:

- `pipeline.py` checks, begins and ends a run; `config.py` reads its file, `state.py` keeps how far it is.
- `stream.py` reads the binlog through mysql-replication; `rows.py` and `values.py` read the row images,
  `columns.py` says what tables look like, `ddl.py` what statements mean.
- `snapshot.py` reads the tables in chunks, and says why nothing is missing.
- `sync.py` puts both in order, with `sequence.py` numbering the changes and `messages.py` writing them.
- `outbox.py` sends, in order and however often it takes; `progress.py` says from where on the next run must
  begin.
"""
