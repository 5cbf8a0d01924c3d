"""Looks for brokers that no route of this client shows: all masters, and brokers that may return.

Routes are those of topics that the client uses, and they are refreshed every 30 s. A producer that checks
transactions must be known to every master, even if it has not sent anything yet. And a broker that comes back
should get messages again within seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.client.session.answers import read_body
from metaq.client.session.routes import AskNameServer, Routes
from metaq.errors import MetaqError
from metaq.protocol.bodies import ClusterInfo
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.names import MASTER_ID

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 3.0
MASTERS_INTERVAL_S: Final = 30.0
MISSED_S: Final = 600.0
"""A master that is away for longer is found by the regular refresh of routes."""


class BrokerWatch:
    """Asks the name servers for all brokers, but only if somebody needs to know."""

    def __init__(
        self, routes: Routes, ask: AskNameServer, on_new_masters: Callable[[], Awaitable[None]]
    ) -> None:
        self._routes = routes
        self._ask = ask
        self._on_new_masters = on_new_masters
        self.masters: frozenset[str] = frozenset()
        """The addresses of all masters of the cluster, if somebody wants them."""
        self.wants_masters = False
        self._masters_due = 0.0
        self._seen: set[str] = set()
        """The brokers whose masters routes have shown."""
        self._missed: dict[str, float] = {}
        """Broker → when its master was last shown."""

    async def look(self) -> None:
        """Looks once. Failures are logged."""
        now = time.monotonic()
        missing = self._missing(now)
        is_due = self.wants_masters and now >= self._masters_due
        if not missing and not is_due:
            return
        try:
            info = await read_body(ClusterInfo, (await self._ask(GetBrokerClusterInfo())).check().body)
        except MetaqError as error:
            _log.info("the brokers of the cluster are not known now: %s", error)
            return
        brokers = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in info.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }
        if returned := missing & brokers.keys():
            await self._routes.refresh_all()
            for broker in returned:
                self._missed.pop(broker, None)
        if self.wants_masters:
            self._masters_due = now + MASTERS_INTERVAL_S
            before, self.masters = self.masters, frozenset(brokers.values())
            if self.masters - before:
                await self._on_new_masters()

    def _missing(self, now: float) -> set[str]:
        """Returns the brokers whose master has left the routes a while ago and may come back."""
        shown = {name for name, addresses in self._routes.brokers().items() if MASTER_ID in addresses}
        for broker in self._seen - shown:
            self._missed.setdefault(broker, now)
        self._seen = shown
        self._missed = {
            broker: since
            for broker, since in self._missed.items()
            if broker not in shown and now - since < MISSED_S
        }
        return set(self._missed)
