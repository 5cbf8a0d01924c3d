"""The scrubber: reads the whole log again and again at a low rate, and finds damage that nobody reads.

- `pace` says how fast it may read
- `record` is what it keeps over restarts, in `scrub.json`
- `scrubber` runs it; a replica also compares the log with its master's (`broker/replication/source_link.py`)

It changes nothing. The store notes the damage that it finds, and the group repairs it
(`broker/replication/log_repair.py`).
"""
