"""Writes rows as messages, at least once or exactly once.

`batch.py` is `df.write` and `stream.py` is `df.writeStream`. `options.py` checks what the user gave,
`columns.py` turns Arrow columns into rows for the data plane, and `client.py` keeps one client per process.

Exactly once is `exactly_once.py`: tasks send half messages, `markers.py` writes the record that decides a
batch, and `half_ends.py` commits or rolls back. `peers.py` refuses brokers that cannot do it. The format of
markers is on disk in topics of running queries: do not change it.
docs/decisions/0001-exactly-once-spark-sink.md has the reasons; tests are tests/spark/test_sink*.py.
"""
