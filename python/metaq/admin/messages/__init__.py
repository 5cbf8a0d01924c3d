"""Stored messages and dead letters, on asyncio and for plain code.

stored_messages.py  the part `Admin.messages`: finds messages, reads topics and sends messages again
queue_reading.py    reads all queues of a topic without consuming; selection.py chooses the messages
newest_messages.py  reads a topic backwards, within bounds
message_copies.py   sends a stored message again; single_sends.py: sends a new one
dead_letters.py     the part `Admin.dead_letters`; stored_letters.py: one letter, and how it is sent again
message_facts.py    a message as a record for programs
sync.py             both parts for plain code

Nothing here consumes. Only `dead_letters.py` commits an offset: how far the letters of a group were sent
again.
"""
