"""Definitions of tables, and the values of their rows. No module here does I/O.

- `columns.py` is the definition of a table, from the binlog or from information_schema.
- `rows.py` decodes row images; `value_readers.py` has one reader for each type of column.
- `charsets.py` and `json_binary.py` decode text and MySQL's JSON.

A value must be the same whether it comes from the binlog or from a query: queues, snapshots and
`metaq pipeline verify` rely on it.
"""
