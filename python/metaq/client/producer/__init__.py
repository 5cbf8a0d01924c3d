"""Sending.

producer.py, sync_producer.py  the two faces that users see
options.py, results.py         what a caller passes in and gets back
sending.py                     sends one request, with attempts, pauses and other brokers
queue_selection.py             the queue of a message, and brokers to avoid
send_buffer.py, callbacks.py   `send_soon`: the native buffer, and callbacks of its futures
waiting_sends.py               messages on asyncio that wait for room in the buffer
transactions.py                half messages, commit, rollback and the checker
request_reply.py               requests that wait for a reply
row_sender.py, arrow_rows.py   rows of tables, for the Spark sink

All sends go through `Sender`, so rules about attempts belong into sending.py. The buffer's fast path is
native (crates/client); only batches that failed come back to Python.
"""
