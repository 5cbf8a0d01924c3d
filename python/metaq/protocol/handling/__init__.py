"""Around the handlers of requests: how requests get to them, their limits, and what is logged.

pump.py             connects the threads of the data plane to the event loop
body_reading.py     reads bodies, long ones on a thread
slots.py            limits of requests under way; waiting_lines.py: those that wait for a slot
askers.py           the sender of a request: its connection and its machine
peer_log.py         log lines that peers cause; slow_requests.py: lines about requests that took long
process_options.py  options of a server's process that can change while it runs
never.py            requests of Apache's tools that have no meaning here

Brokers and name servers use it, with `metaq.protocol.dispatch`; clients do not.
"""
