"""log-lake writes topics to a Delta or Parquet table by date and topic. log-transport fills such topics.

`config.py` reads the TOML file → `decode.py` makes rows of messages, with a reason if one is bad →
`repeats.py` drops lines that an agent sent twice → `tables.py` writes → `batch.py` does all of that for a
micro-batch → `check.py` checks an existing lake → `pipeline.py` runs the query.

```text
topics ─▶ decode ─┬─ without a reason ─▶ PATH/records     ┐ by date and topic
                  └─ with a reason ────▶ PATH/quarantine  ┘
                                         PATH/files         how far each log file is known
```

Why each line is stored once: Spark records the range of a batch before it reads it, and repeats the same
batch after a crash. A Delta table records the query and the batch of each commit, and refuses a batch that it
has. In a Parquet table each batch has its own directories, which it replaces. A line that an agent sends
twice has the same file and position (`log.id`, `log.at`), which identify it.
"""
