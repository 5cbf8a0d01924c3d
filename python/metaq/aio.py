"""The client for asyncio. `metaq.Client` is the same for plain code."""

from metaq.client.aio import Client

__all__ = ["Client"]
