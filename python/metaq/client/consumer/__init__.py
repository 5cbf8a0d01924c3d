"""Receiving.

aio_consumers.py, sync_consumers.py  the two faces that users see; registry.py: the consumers of one client
options.py, subscription.py          what a caller passes in
positions.py                         "earliest", "latest", a time or an offset
handler.py, handler_threads.py       consumption with a handler
iteration.py                         consumption with a loop
pull_consumer.py, assigned_queues.py consumption by polling, on the native pull stream
group_member.py                      a member of a group; its docstring lists the parts
settlement.py, send_back.py          acknowledge, retry, reject
local_retry.py, local_retry_store.py retries from the consumer's own disk

A message is settled exactly once: acknowledged, retried or rejected. Threads may take and settle messages
(prefetch.py guards that); everything else belongs to the event loop of the session.
"""
