"""log-lake, the second half of log transport: topics into a Delta or Parquet table by date and topic.

Reading order: `config` is the TOML file → `decode` makes a row of a message, with a reason where it is a bad
one → `repeats` leaves out what an agent has sent twice → `tables` writes → `batch` is all of that for one
micro-batch → `check` looks at the lake that is there → `pipeline` is the query.

```text
topics ─▶ decode ─┬─ without a reason ─▶ PATH/records     ┐ by date and topic
                  └─ with a reason ────▶ PATH/quarantine  ┘
                                         PATH/files         how far each log file is known
```

Why each line is there once. Spark writes down what a batch reads before it reads it, and does the same batch
again after a crash. A Delta table keeps with each commit the query and the batch that it came from, and
takes no batch of a query twice. Of a Parquet table each batch has directories of its own, which it replaces.
What an agent sends twice has the same file and place (`log.id`, `log.at`) and is found by these.
"""
