"""One file for each command or group of commands that `metaq.cli.command_table` names.

A command reads its arguments with `metaq.cli.reading`, calls `metaq.admin` (or the client, the servers or a
pipeline), and prints with `metaq.cli.printing`. Longer work is in `metaq.cli.work`.

broker_settings.py  `config get`, `set` and `unset`, which both `cluster.py` and `config.py` offer
take_over.py        `broker take-over`, which ends a move from an Apache master
trace.py            `message trace`

`command_table.py` imports a command when a person uses it. A command may use another one, as `broker.py`
does; the other rooms use none. A command imports what it needs inside its function, so that its help
appears quickly.
"""
