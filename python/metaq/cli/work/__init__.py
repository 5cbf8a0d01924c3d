"""Work of commands that is more than one call and one table.

message_sources.py, send_many.py   `send`: reads messages from files and sends many of them
load.py, latencies.py              `bench`: the load and its latencies
snapshots.py, top_view.py          `top`: one look at a cluster, and the live view
health_wait.py                     `cluster status`, `doctor`: the health, once or until it is good
client_checks.py                   `doctor`: checks of this machine
support_bundle.py                  `cluster support-bundle`: one file without secrets
forced_switch.py                   `cluster switch --force`: asks before it replaces a group's record
clones.py                          `group clone`: the topics to copy

The commands named here import these files when they run. These files may use `metaq.cli.reading` and
`metaq.cli.printing`, and neither of those uses them.
"""
