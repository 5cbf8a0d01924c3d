"""binlog-mirror applies the topic of binlog-sync to tables that equal those of its source.

- `pipeline.py` runs the query, `config.py` reads its file, `verify.py` compares mirror and source.
- `apply.py` applies a batch: `decode.py` parses messages, `notes.py` holds floor and definitions of a table,
  `columns.py` maps columns.
- `target.py` is the interface of a target. `delta.py` (with `delta_quarantine.py`) implements it, and so does
  `jdbc.py`, with `connection.py`, `dialects.py`, `jdbc_schema.py` (what it keeps in the database) and
  `jdbc_apply.py` (the transaction of a batch).
- `policies.py` says what happens to refused rows and dropped tables, `refusals.py` describes a refused row,
  `dropped.py` finds the tables that a statement drops.

Why the order between queues does not matter: a mirror table is a function of two things that only grow, for
every key the change with the largest sequence number, and for the table a *floor*, below which nothing
counts. A row exists if its largest change is not a delete and not below the floor. Both are maxima. So
changes and barriers may come in any order and any number of times, and the result is the same.

A batch may have seen a TRUNCATE in one queue and not yet in another. The floor applies at once to all queues:
the table's rows with smaller numbers are deleted, whichever queue they came from. Changes from before the
statement that another queue still brings have smaller numbers and are dropped. Changes from after it have
larger numbers and stay. The same statement from the next queue changes nothing. A row that was deleted before
the floor needs no tombstone any more, because the floor itself keeps it away.

Only the end of a snapshot waits for every queue. Its floor says that rows which were not read no longer
exist, but a row that was read may still be on its way in a queue that is behind. An early floor would give
the same result in the end, but existing rows would be missing for a while.

Definitions grow too: a mirror has the columns of the newest definition that any queue has brought. Rows of an
older one, from a queue that is behind, are converted to these columns.

So between two batches a mirror need not equal any moment of the source, because queues are not equally far.
It does when all of them have reached the same barrier, or the end.
"""
