"""The client: one implementation on asyncio, and two faces over it.

aio.py, sync.py   the two classes `Client`; sync.py runs the first one on a thread of its own (portal.py)
session/          connections, routes and heartbeats, shared by everything that one client has made
producer/         sends messages: one by one, from a buffer, in transactions, as requests
consumer/         receives messages: with handlers, by iteration, by polling
telemetry/        spans, metrics and RocketMQ's trace topic
message.py        rules and layout of messages to send; compression.py: compressed bodies
lifecycle.py      starting and closing; tasks.py: background tasks
stderr_fallback.py  shows important problems on stderr if the program has not set up logging

Users import `metaq` and `metaq.aio`, whose names are public. Everything here is internal, and may change as
long as both faces keep the same methods, signatures and docstrings. The Spark connector also uses the
session, the sender and the row sender.
"""

import logging

from metaq.client.stderr_fallback import OnceOnStderr

logging.getLogger("metaq").addHandler(OnceOnStderr())
