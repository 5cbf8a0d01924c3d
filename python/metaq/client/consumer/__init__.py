"""Receiving.

aio_consumers.py, sync_consumers.py  the two faces that users see; registry.py: the consumers of one client
options.py, subscription.py          what a caller passes in
allocation.py                        strategies that divide queues among members; callers may name one
handler.py, handler_threads.py       consumption with a handler
handler_signature.py, received_handler.py  what a handler may look like, and what it gets
handler_timeout.py, retry_policy.py  limits and delays that a program chooses
replying.py                          replies to requests
iteration.py                         consumption with a loop
group/                               membership of a group: shares, locks, requests from brokers
pull/                                pulls and prefetched messages; consumption by polling
offsets/                             committed offsets, and positions such as "earliest"
settlement/                          acknowledge, retry, reject; retries from the consumer's own disk

A message is settled exactly once: acknowledged, retried or rejected. Threads may take and settle messages
(pull/prefetch.py guards that); everything else belongs to the event loop of the session.
"""
