"""stream-sql runs a stream job that is written in SQL in a TOML file.

`config.py` reads the file → `sources.py` makes a view of each source → `sinks.py` writes the result of the
statement → `pipeline.py` runs the query.

Spark's checkpoint survives a restart: the offsets of each topic, the watermark, and the state of windows and
joins. All three are written together for each batch. So a row counts once in a window, however often the job
is restarted.
"""
