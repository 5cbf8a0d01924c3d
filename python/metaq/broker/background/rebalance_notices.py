"""Notices to consumers that they must divide the queues again."""

from __future__ import annotations

import asyncio

from metaq.broker.state.clients import Clients, ConsumerGroup
from metaq.broker.state.groups import Groups
from metaq.protocol.commands.clients import NotifyConsumerIdsChanged
from metaq.protocol.handling.pump import Pump

GATHER_S = 0.02
"""How long changes gather. When many consumers of a group come or go together, each gets one notice."""


class Notices:
    """Sends NOTIFY_CONSUMER_IDS_CHANGED to every member of a group that has changed."""

    def __init__(self, pump: Pump, clients: Clients, groups: Groups) -> None:
        self._pump = pump
        self._clients = clients
        self._groups = groups
        self._due: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def consumers_changed(self, group: ConsumerGroup) -> None:
        config = self._groups.get(group.name)
        is_wanted = config is None or config.notify_consumer_ids_changed_enable
        # In a broadcast every consumer reads every queue: there is nothing to divide.
        if not is_wanted or group.broadcasting:
            return
        self._due.add(group.name)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._send)

    def _send(self) -> None:
        self._timer = None
        due, self._due = self._due, set()
        for name in due:
            group = self._clients.consumer_group(name)
            for connection in list(group.members) if group is not None else ():
                self._pump.send_oneway(connection, NotifyConsumerIdsChanged(consumer_group=name))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
