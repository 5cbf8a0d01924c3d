"""All filter functions of a broker, and the pulls that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from metaq._core import BrokerPlane
from metaq.broker.functions.pool import Pool
from metaq.broker.functions.process import WorkerSettings, describe_functions
from metaq.broker.functions.tally import Tally
from metaq.filters.exchange import Description

_log = logging.getLogger(__name__)


class Functions:
    """Loads the descriptions once, and brings batches to the functions of each plane that is started."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._pools: dict[str, Pool] = {}
        self._plane: BrokerPlane | None = None
        self.known: Mapping[str, Description] = {}

    async def load(self) -> None:
        """Raises ConfigError: a broker must not start without the functions that its operator registered."""
        self.known = await describe_functions(self._settings)
        if self.known:
            _log.info("filter functions: %s", ", ".join(sorted(self.known)))

    def start(self, plane: BrokerPlane) -> None:
        self._plane = plane
        self._pools = {name: Pool(name, plane, self._settings) for name in self.known}
        if self._pools:
            asyncio.get_running_loop().add_reader(plane.functions_fileno(), self._wake)

    async def stop(self) -> None:
        if self._plane is not None and self._pools:
            asyncio.get_running_loop().remove_reader(self._plane.functions_fileno())
        self._plane = None
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def rest(self) -> None:
        for pool in self._pools.values():
            await pool.rest()

    @property
    def tallies(self) -> dict[str, Tally]:
        return {name: pool.tally for name, pool in self._pools.items()}

    def figures(self) -> dict[str, str]:
        """A line for each function that has been called, for the broker's runtime info."""
        return {
            f"filterFunction_{name}": f"messages {tally.messages}, wanted {tally.wanted}, "
            f"failures {tally.failures}, workers lost {tally.workers_lost}"
            for name, tally in self.tallies.items()
            if tally.messages
        }

    def _wake(self) -> None:
        assert self._plane is not None
        for name in self._plane.functions_wanted():
            pool = self._pools.get(name)
            if pool is not None:
                pool.wake()
