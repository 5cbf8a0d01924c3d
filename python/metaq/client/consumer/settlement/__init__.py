"""Settles messages: each is acknowledged, retried or rejected exactly once.

settlement.py         decides what happens to a message that was handled or failed
send_back.py          returns a message to its broker, for a later delivery or as a dead letter
local_retry.py        tries messages again from the consumer's own disk
local_retry_store.py  the file that holds them, which `metaq parked` also reads
"""
