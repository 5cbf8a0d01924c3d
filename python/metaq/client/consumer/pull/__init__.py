"""Pulls, and the messages that they bring.

requests.py         one pull of one queue
read_nodes.py       which node of a broker group a queue is pulled from
pull_loops.py       one loop for each queue of a group member
prefetch.py         messages of all queues that were pulled and are not settled
buffers.py          the same for one queue, with its limits and its turn
pull_consumer.py    consumption by polling, on the native pull stream (crates/client)
assigned_queues.py  the queues in that stream, and what to do when it cannot continue on its own

Any thread may take and settle prefetched messages; prefetch.py guards that. Everything else belongs to the
event loop of the session.
"""
