"""Log transport, its first half: lines of files become messages of a topic.

Reading order: `followed` is one file with its lines → `positions` is what survives a restart → `agent` finds
files, reads them in turn and sends.
"""
