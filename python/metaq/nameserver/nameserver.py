"""A name server: a listener, the route table and the clock that ages it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from metaq._core import Clock, Closed, Listener
from metaq.memory import MemoryTrim
from metaq.nameserver.key_values import KeyValues
from metaq.nameserver.operator_gate import OperatorGate
from metaq.nameserver.options import Options
from metaq.nameserver.requests import BrokerRequests, RouteRequests
from metaq.nameserver.route_table import EXPIRY_MS, RouteTable
from metaq.nameserver.tenure_file import TenureFile
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.process_options import ProcessOptions
from metaq.protocol.handling.pump import Pump
from metaq.protocol.handling.slow_requests import SlowRequests
from metaq.settings import NameServerSettings, ServerSettings

SCAN_INTERVAL_MS: Final = 5_000
TENURES_INTERVAL_S: Final = 60.0
"""How often the tenures of brokers are written."""


class NameServer:
    """One name server. Several serve a cluster without knowing each other: brokers register with each."""

    def __init__(
        self,
        settings: ServerSettings,
        clock: Clock,
        *,
        key_values_file: Path | None = None,
        broker_expiry_s: float = EXPIRY_MS / 1000,
        limits: NameServerSettings | None = None,
    ) -> None:
        """Binds at once, so that `address` is known. Raises OSError if the port is taken, and MetadataDamaged
        if the file of values cannot be read."""
        self._clock = clock
        self._listener = Listener(settings, serves_broker=False)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._address = f"{host}:{self._listener.port}"
        limits = limits or NameServerSettings()
        self.routes = RouteTable(int(broker_expiry_s * 1000), limits)
        self.key_values = KeyValues(key_values_file, limits)
        self._tenure_file: TenureFile | None = None
        if key_values_file is not None:
            self._tenure_file = TenureFile(key_values_file.with_name(key_values_file.name + ".tenures"))
            self.routes.restore_tenures(self._tenure_file.load())
        self._slow_requests = SlowRequests(self._listener, settings.slow_request_ms)
        self._options = Options(self._address, ProcessOptions(self._slow_requests))
        self._brokers = BrokerRequests(self.routes, self.key_values, self._options, clock)
        handlers = Handlers(
            self._brokers,
            RouteRequests(
                *(self.routes, self.key_values, self._options, limits.nameserver_operator_requests),
                clock=clock,
            ),
            self.key_values,
            self._options,
        )
        self._handlers = OperatorGate(handlers, limits.nameserver_operator_requests)
        self._pump = Pump(
            self._listener, self._handlers, on_closed=self._on_closed, slow_requests=self._slow_requests
        )
        self._memory_trim = MemoryTrim(
            self._listener, settings.memory_trim_interval_s, settings.freed_memory_ms
        )
        self._scanning: asyncio.Task[None] | None = None
        self._keeping_tenures: asyncio.Task[None] | None = None
        self._scanned_ms = clock.now_ms()

    @property
    def address(self) -> str:
        """`host:port`, with the actual port if 0 was asked for."""
        return self._address

    async def start(self) -> None:
        """Returns once brokers and clients may connect."""
        self._pump.start()
        self._listener.start()
        self._memory_trim.start()
        self._slow_requests.start()
        self._scanned_ms = self._clock.now_ms()
        self._scanning = asyncio.create_task(self._scan(), name="expire silent brokers")
        if self._tenure_file is not None:
            self._keeping_tenures = asyncio.create_task(
                self._keep_tenures(self._tenure_file), name="keep the tenures of brokers"
            )

    async def stop(self) -> None:
        """Answers what has arrived and closes. Safe to call twice."""
        tenures = self.routes.tenures()
        for task in (self._scanning, self._keeping_tenures):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._tenure_file is not None and self._scanning is not None:
            await asyncio.to_thread(self._tenure_file.save, tenures)
        self._scanning = self._keeping_tenures = None
        await self._memory_trim.stop()
        await self._slow_requests.stop()
        await self._pump.stop()
        await self.key_values.close()
        await asyncio.to_thread(self._listener.stop)

    def _on_closed(self, closed: Closed) -> None:
        self._brokers.connection_closed(closed.connection)
        self.routes.connection_closed(closed.connection, self._clock.now_ms())
        self._sweep()

    def _sweep(self) -> None:
        """Removes the topics of brokers that are gone, in short steps."""
        if self.routes.sweep():
            asyncio.get_running_loop().call_soon(self._sweep)

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_INTERVAL_MS / 1000)
            self.expire_brokers()
            self._sweep()

    async def _keep_tenures(self, file: TenureFile) -> None:
        while True:
            await asyncio.sleep(TENURES_INTERVAL_S)
            await asyncio.to_thread(file.save, self.routes.tenures())

    def skip_time(self, by_ms: int) -> None:
        """The clock was moved by this much; brokers count as registered meanwhile."""
        self._scanned_ms += by_ms
        self.routes.shift_time(by_ms)

    def expire_brokers(self) -> None:
        """Removes brokers that were silent for too long; called every `SCAN_INTERVAL_MS`."""
        now_ms = self._clock.now_ms()
        drift_ms = now_ms - self._scanned_ms - SCAN_INTERVAL_MS
        self._scanned_ms = now_ms
        if abs(drift_ms) > SCAN_INTERVAL_MS:
            # The clock was set, or this process did not run, so the brokers' silence means nothing.
            self.routes.shift_time(drift_ms)
        self.routes.expire(now_ms)
