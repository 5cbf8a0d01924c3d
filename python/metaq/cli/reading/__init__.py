"""Reads what a person wrote, and finds the cluster that a command asks.

flags.py                      flags that commands share
message_flags.py              flags, positions, times and durations of commands that read or send messages
option_flags.py               flags of configuration options
attributes.py, limits.py      values of --attribute, --messages-per-second and --bytes-per-second
patterns.py                   patterns that choose names in lists
questions.py                  the question before a command destroys something
completions.py                names that a shell completes
connection.py, contexts.py    the cluster to ask, and the user's file of named clusters

A fault in an argument is a `CommandError` that names the flag. `flags.py` and `completions.py` load at every
start, so they import nothing heavy.
"""
