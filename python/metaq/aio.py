"""The client for asyncio. `metaq.Client` is the same for plain code."""

from metaq._core import AsyncSendFuture
from metaq.client.aio import Client
from metaq.client.consumer.aio_consumers import Consumer, Puller, ReceivedMessage, Subscribed
from metaq.client.producer.accepted_send import AcceptedSend
from metaq.client.producer.producer import Producer
from metaq.client.producer.transactions import Transaction

__all__ = [
    "AcceptedSend",
    "AsyncSendFuture",
    "Client",
    "Consumer",
    "Producer",
    "Puller",
    "ReceivedMessage",
    "Subscribed",
    "Transaction",
]
