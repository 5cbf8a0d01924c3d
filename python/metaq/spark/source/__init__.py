"""Reads topics into Spark, as a table (`batch.py`) or as a stream (`stream.py`).

On the driver, `options.py` checks what the user gave, `cluster.py` asks the cluster through `metaq.admin`,
and `positions.py` turns earliest, latest, times and offsets into queue offsets. `offsets.py` cuts the ranges
into tasks, `admission.py` limits a batch, `stream_offset.py` is the checkpoint, `lag.py` the report of the
lag, `listener.py` commits offsets to a group, and `resets.py` follows resets of it. `filtering.py` and
`pushdown.py` take the filters of a query.

On the executors, `read.py` reads one range through the native scan of `crates/client`. A change here needs
tests/unit/spark/source, tests/spark/test_batch.py and tests/spark/test_stream.py.
"""
