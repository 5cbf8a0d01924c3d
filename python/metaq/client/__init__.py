"""The client: one logic on asyncio and two faces over it.

`session` keeps connections, routes and heartbeats; `message` is what is sent and received; `producer` sends,
with `soon` for what may wait a moment and `transactions` for what must be decided; `aio` and `sync` are the
faces, the second one over a `portal` to the thread where the first one runs. `telemetry` tells of all that.
"""

import logging

# Whoever sets up logging hears of us; nobody else finds our lines in their output.
logging.getLogger("metaq").addHandler(logging.NullHandler())
