"""Brokers that answer as a test scripts them, behind the real `Calls` and without a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from metaq.admin.calls import Calls
from metaq.protocol.bodies import BrokerData, ClusterInfo
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.reply import Reply

NOT_SUPPORTED = Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "unknown request", {}, b"")

Answer = Callable[[str, Command], Reply]
"""Gets the name or address of a broker and the request; may raise."""


class ScriptedCalls(Calls):
    """Asks `answer`, and counts the requests by their names and the bytes of the answers."""

    def __init__(self, answer: Answer, *brokers: str, is_partial: bool = True) -> None:
        super().__init__("127.0.0.1:1", timeout_s=5.0, retry_s=0.0, is_partial=is_partial)
        self._answer = answer
        self._names = brokers
        self.asked: Counter[str] = Counter()
        self.answered_bytes = 0

    async def _ask_brokers(self) -> ClusterInfo:
        table = {name: BrokerData({0: f"{name}:1"}, name) for name in self._names}
        self._brokers = {name: dict(data.broker_addrs) for name, data in table.items()}
        return ClusterInfo(broker_addr_table=table)

    async def _call(
        self, address: str, command: Command, body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        self.asked[type(command).__name__] += 1
        reply = self._answer(address.partition(":")[0], command)
        self.answered_bytes += len(reply.body)
        return reply
