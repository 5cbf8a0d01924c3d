"""stream-sql: a stream job that is given as SQL in a TOML file.

Reading order: `config` is the file → `sources` makes a view of each source → `sinks` is where the result of
the statement goes → `pipeline` is the query.

What survives a restart is Spark's checkpoint: how far each topic is read, the watermark, and the state of
windows and joins. All three are written for one batch together, so that a row counts once in a window,
however often the job is ended.
"""
