"""Prints results: tables for people, JSON and CSV for programs.

output.py                     tables, JSON, CSV, and notes on standard error
formats.py                    single values for people: sizes, spans, rates
progress.py                   a bar on standard error for long work
message_views.py              messages; templates.py fills in the templates of `tail` and `consume`
topic_tables.py               topics
consumer_tables.py            consumer groups; group_moves.py: their resets and clones
limit_tables.py               limits of topics and groups
group_tables.py               broker groups
health_tables.py              the health of a cluster, its brokers and its clients
top_tables.py                 the tables of `metaq top`

Nothing here asks a server: these files get results of `metaq.admin` and print them. Commands and
`metaq.cli.work` call them. Scripts of users read the keys of JSON and CSV, so a renamed key breaks them
(docs/commands.md).
"""
