"""MetaQ: a message queue that works with unmodified RocketMQ clients.

This package shows the Python client: `metaq.Client` for plain code and `metaq.aio.Client` for asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.errors import (
    AlreadyExists,
    ClientClosed,
    ClientError,
    CommandError,
    ConfigError,
    HandlerTimeout,
    InvalidMessage,
    MetaqError,
    NoReply,
    NoRoute,
    NoSuchGroup,
    NoSuchMessage,
    NotAllSent,
    NotDelivered,
    NotDurable,
    NotSent,
    NotSupported,
    Undecided,
    UnreadableBody,
    UnusableFile,
    UsageError,
)

if TYPE_CHECKING:
    from metaq import aio as aio
    from metaq._core import SendFuture
    from metaq.broker.functions.process import WorkerLost
    from metaq.client.consumer.retry_policy import RetryPolicy
    from metaq.client.consumer.subscription import Reject, Retry
    from metaq.client.consumer.sync_consumers import Consumer, Puller, ReceivedMessage, Subscribed
    from metaq.client.message import Message
    from metaq.client.producer.results import SendResult, SendStatus
    from metaq.client.producer.sync_producer import Producer, Transaction
    from metaq.client.session.routes import Queue
    from metaq.client.sync import Client
    from metaq.filters.declared import FunctionError
    from metaq.ha.handshake import LinkRefused
    from metaq.ha.register import RegisterUnavailable
    from metaq.protocol.errors import ProtocolError, Refused, Unreachable

__all__ = [
    "AlreadyExists",
    "Client",
    "ClientClosed",
    "ClientError",
    "CommandError",
    "ConfigError",
    "Consumer",
    "FunctionError",
    "HandlerTimeout",
    "InvalidMessage",
    "LinkRefused",
    "Message",
    "MetaqError",
    "NoReply",
    "NoRoute",
    "NoSuchGroup",
    "NoSuchMessage",
    "NotAllSent",
    "NotDelivered",
    "NotDurable",
    "NotSent",
    "NotSupported",
    "Producer",
    "ProtocolError",
    "Puller",
    "Queue",
    "ReceivedMessage",
    "Refused",
    "RegisterUnavailable",
    "Reject",
    "Retry",
    "RetryPolicy",
    "SendFuture",
    "SendResult",
    "SendStatus",
    "Subscribed",
    "Transaction",
    "Undecided",
    "Unreachable",
    "UnreadableBody",
    "UnusableFile",
    "UsageError",
    "WorkerLost",
    "__version__",
    "aio",
]

__version__ = "0.1.0"

# Loaded on first use, because most commands do not need the client and start faster without it.
_LAZY = {
    "Client": "metaq.client.sync",
    "Consumer": "metaq.client.consumer.sync_consumers",
    "FunctionError": "metaq.filters.declared",
    "LinkRefused": "metaq.ha.handshake",
    "Message": "metaq.client.message",
    "Producer": "metaq.client.producer.sync_producer",
    "ProtocolError": "metaq.protocol.errors",
    "Puller": "metaq.client.consumer.sync_consumers",
    "Queue": "metaq.client.session.routes",
    "ReceivedMessage": "metaq.client.consumer.sync_consumers",
    "Refused": "metaq.protocol.errors",
    "RegisterUnavailable": "metaq.ha.register",
    "Reject": "metaq.client.consumer.subscription",
    "Retry": "metaq.client.consumer.subscription",
    "RetryPolicy": "metaq.client.consumer.retry_policy",
    "SendFuture": "metaq._core",
    "SendResult": "metaq.client.producer.results",
    "SendStatus": "metaq.client.producer.results",
    "Subscribed": "metaq.client.consumer.sync_consumers",
    "Transaction": "metaq.client.producer.sync_producer",
    "Unreachable": "metaq.protocol.errors",
    "WorkerLost": "metaq.broker.functions.process",
}

# Type checkers must not see it: with it, they would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "aio":
            return import_module("metaq.aio")
        if name in _LAZY:
            value = getattr(import_module(_LAZY[name]), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'metaq' has no attribute {name!r}")
