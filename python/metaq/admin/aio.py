"""The administration client for asyncio, where all the work is done."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from metaq.admin.brokers.servers import Brokers
from metaq.admin.calls import Calls
from metaq.admin.groups.consumer_groups import ConsumerGroups
from metaq.admin.health.checks import HealthChecks
from metaq.admin.messages.dead_letters import DeadLetters
from metaq.admin.messages.stored_messages import Messages
from metaq.admin.offsets import Offsets
from metaq.admin.pipelines.report_topic import Pipelines
from metaq.admin.topics import Topics
from metaq.admin.traces.message_traces import Traces
from metaq.admin.waiting.delayed import Delayed
from metaq.admin.waiting.transactions import Transactions
from metaq.credentials import Credentials

__all__ = ["Admin"]


class Admin:
    """Administers a cluster, named by its name servers: `host:port`, several separated by semicolons.

    It belongs to one event loop:

        async with metaq.admin.aio.Admin("127.0.0.1:9876") as admin: …

    Each request may take `timeout` seconds. Questions that fail for a reason that may pass are asked again
    for `retry` seconds; changes are sent once. With `partial` a broker that does not answer is listed in the
    `failures` of a result instead of raising an error. With `credentials`, requests are signed, as a cluster
    with access control demands.
    """

    def __init__(
        self,
        nameservers: str = "127.0.0.1:9876",
        *,
        timeout: float = 5.0,
        retry: float = 0.0,
        partial: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self._calls = Calls(
            nameservers, timeout_s=timeout, retry_s=retry, is_partial=partial, credentials=credentials
        )
        self.offsets = Offsets(self._calls)
        self.topics = Topics(self._calls, self.offsets)
        self.groups = ConsumerGroups(self._calls, self.offsets)
        self.messages = Messages(self._calls, self.offsets)
        self.dead_letters = DeadLetters(self._calls, self.offsets, self.topics)
        self.delayed = Delayed(self._calls)
        self.transactions = Transactions(self._calls)
        self.traces = Traces(self._calls, self.offsets, self.topics, self.groups)
        self.brokers = Brokers(self._calls)
        self.health = HealthChecks(self._calls)
        self.pipelines = Pipelines(self._calls, self.offsets, self.topics)

    async def close(self) -> None:
        """Closes the connections. Safe to call twice."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
