"""MetaQ: a message queue that works with unmodified RocketMQ clients.

This package shows the Python client: `metaq.Client` for plain code and `metaq.aio.Client` for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq import aio as aio
    from metaq.client.consumer.subscription import Reject, Retry
    from metaq.client.message import Message
    from metaq.client.producer.results import SendResult, SendStatus
    from metaq.client.session.routes import Queue
    from metaq.client.sync import Client

__all__ = [
    "Client",
    "Message",
    "MetaqError",
    "Queue",
    "Reject",
    "Retry",
    "SendResult",
    "SendStatus",
    "__version__",
    "aio",
]

__version__ = "0.1.0"

# Loaded on first use, because most commands do not need the client and start faster without it.
_LAZY = {
    "Client": "metaq.client.sync",
    "Message": "metaq.client.message",
    "Queue": "metaq.client.session.routes",
    "Reject": "metaq.client.consumer.subscription",
    "Retry": "metaq.client.consumer.subscription",
    "SendResult": "metaq.client.producer.results",
    "SendStatus": "metaq.client.producer.results",
}


def __getattr__(name: str) -> object:
    if name == "aio":
        return import_module("metaq.aio")
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'metaq' has no attribute {name!r}")
