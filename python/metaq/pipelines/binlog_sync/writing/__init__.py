"""Sends changes to the topic and saves how far that went.

- `topic.py` finds or creates the topic and fixes its queues.
- `change_writer.py` puts changes and barriers into the right queues; `outbox.py` sends them in order and
  retries for as long as necessary.
- `checkpoint.py` finds the last position before which everything is acknowledged; `state.py` keeps it in the
  state file, and has the rule for a new era.

The state file may only record what brokers have acknowledged.
"""
