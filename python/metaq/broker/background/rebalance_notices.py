"""Notices to consumers that they must divide the queues again."""

from __future__ import annotations

import asyncio
import heapq

from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import ConsumerGroup
from metaq.broker.state.groups import Groups
from metaq.protocol.commands.clients import NotifyConsumerIdsChanged
from metaq.protocol.handling.pump import Pump

GATHER_S = 0.02
"""How long changes gather. When many consumers of a group come or go together, each gets one notice."""
DOUBLINGS_MAX = 8.0
"""The time between two notices to a group doubles with each notice, up to 5 s. Somebody who joins and leaves
again and again would otherwise keep all others busy with dividing the queues."""
CALM_S = 2.5
"""After this time without a notice, the time between two of them is halved."""
AT_ONCE_MAX = 1_000
"""Notices that are sent in one go; the groups after that wait for the next one."""


class Notices:
    """Sends NOTIFY_CONSUMER_IDS_CHANGED to every member of a group that has changed."""

    def __init__(self, pump: Pump, clients: Clients, groups: Groups) -> None:
        self._pump = pump
        self._clients = clients
        self._groups = groups
        self._due: list[tuple[float, str]] = []
        """A heap of times and groups."""
        self._waiting: set[str] = set()
        """The groups in it."""
        self._sent: dict[str, tuple[float, float]] = {}
        """Group → when its last notice was sent, and the doublings then; the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    def consumers_changed(self, group: ConsumerGroup) -> None:
        config = self._groups.get(group.name)
        is_wanted = config is None or config.notify_consumer_ids_changed_enable
        # In a broadcast every consumer reads every queue: there is nothing to divide.
        if not is_wanted or group.broadcasting or group.name in self._waiting:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        sent_s = self._sent.get(group.name, (0.0, 0.0))[0]
        pause_s = GATHER_S * 2 ** self._doublings(group.name, now_s)
        self._waiting.add(group.name)
        heapq.heappush(self._due, (max(now_s + GATHER_S, sent_s + pause_s), group.name))
        self._set_timer(loop, self._due[0][0])

    def _doublings(self, group: str, now_s: float) -> float:
        sent_s, doublings = self._sent.get(group, (0.0, 0.0))
        return max(doublings - (now_s - sent_s) / CALM_S, 0.0)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._send)

    def _send(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._forget(now_s)
        sent = 0
        while self._due and self._due[0][0] <= now_s and sent < AT_ONCE_MAX:
            _, name = heapq.heappop(self._due)
            self._waiting.discard(name)
            doublings = min(self._doublings(name, now_s) + 1, DOUBLINGS_MAX)
            self._sent.pop(name, None)
            self._sent[name] = (now_s, doublings)
            group = self._clients.consumer_group(name)
            for member in group.present() if group is not None else ():
                if not member.broadcasting:
                    self._pump.send_oneway(member.connection, NotifyConsumerIdsChanged(consumer_group=name))
                    sent += 1
        if self._due:
            self._set_timer(loop, max(self._due[0][0], now_s + GATHER_S))

    def _forget(self, now_s: float) -> None:
        """Forgets groups that have been calm for so long that their next notice is prompt."""
        while self._sent:
            name, (sent_s, _) = next(iter(self._sent.items()))
            if now_s - sent_s <= DOUBLINGS_MAX * CALM_S:
                return
            del self._sent[name]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        self._waiting.clear()
