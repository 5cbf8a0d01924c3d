"""binlog-sync copies the tables of a MariaDB or MySQL server, and all their changes, into an ordered topic.

- `pipeline.py` plans, starts and ends a run; `config.py` reads its TOML file.
- `follower.py` is the loop of a run: it takes items from the binlog and gives changes to the outbox. Its
  parts are `tables.py` (definitions and their versions), `schema_changes.py` (DDL), `snapshot.py` (whole
  tables), `cascades.py` (foreign keys) and `reporter.py` (progress).
- `reread_requests.py` and `pace.py` are about reading tables again: on request, and how fast.
- `envelope.py` defines the messages, `sequence.py` their numbers, `coordinates.py` positions in the binlog.
- `reading/` reads the database and its binlog, `values/` decodes rows, `writing/` sends and saves progress.

Only `metaq.pipelines` loads this package. binlog-mirror uses `envelope.py`, `config.py`, `reading/` and
`values/` too.
"""
