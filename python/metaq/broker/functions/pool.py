"""The batches of one function, and the workers that look at them. One function never waits for another's."""

from __future__ import annotations

import asyncio
import logging
import time

from metaq._core import BrokerPlane, FilterBatch
from metaq.broker.functions.call import parse_call
from metaq.broker.functions.process import Worker, WorkerLost, WorkerSettings
from metaq.broker.functions.tally import Tally
from metaq.filters.exchange import UNDER_WAY, UNSEEN, UNWANTED, Ask
from metaq.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

IDLE_S = 60.0
"""After so long without work a worker is ended."""
LOSSES_UNPUNISHED = 3
PAUSE_S_FIRST = 0.1
PAUSE_S_MAX = 5.0
"""Between the loss of a worker and the next, when one is lost after the other: processes cost something."""


class Pool:
    """Takes batches while there are any, with as many workers at a time as are allowed."""

    def __init__(self, function: str, plane: BrokerPlane, settings: WorkerSettings) -> None:
        self._function = function
        self._plane = plane
        self._settings = settings
        self._runs: set[asyncio.Task[None]] = set()
        self._idle: list[tuple[float, Worker]] = []
        self._losses = 0
        self._unusable_until = 0.0
        self._unusable_because = ""
        self._closed = False
        self.tally = Tally(function)

    def wake(self) -> None:
        """There is a batch, or will be by the time somebody looks."""
        if self._closed or len(self._runs) >= self._settings.workers_max:
            return
        run = asyncio.create_task(self._run())
        self._runs.add(run)
        run.add_done_callback(self._ended)

    async def close(self) -> None:
        self._closed = True
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        while self._idle:
            await self._idle.pop()[1].kill()

    async def rest(self) -> None:
        """Ends the workers that nobody has needed for long."""
        now = time.monotonic()
        rested = [worker for since, worker in self._idle if now - since >= IDLE_S]
        self._idle = [(since, worker) for since, worker in self._idle if now - since < IDLE_S]
        for worker in rested:
            await worker.kill()

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        if not run.cancelled() and (error := run.exception()) is not None:
            _log.error("filter function %s: a run ended", self._function, exc_info=error)
            # What stands in line is not to wait for the next arrival.
            asyncio.get_running_loop().call_later(1.0, self.wake)

    async def _run(self) -> None:
        # Gathering reads from the disk at times: not on the event loop.
        while (batch := await asyncio.to_thread(self._take)) is not None:
            if batch.more:
                self.wake()
            try:
                verdicts = await self._verdicts(batch)
            except WorkerLost as lost:
                batch.refuse(
                    ResponseCode.SYSTEM_ERROR, f"filter function {self._function} cannot be run now: {lost}"
                )
            except BaseException:
                batch.refuse(ResponseCode.SYSTEM_ERROR, f"filter function {self._function} was not run")
                raise
            else:
                batch.answer(verdicts)

    def _take(self) -> FilterBatch | None:
        settings = self._settings
        return self._plane.take_batch(self._function, settings.batch_messages_max, settings.batch_bytes_max)

    async def _verdicts(self, batch: FilterBatch) -> bytes:
        """One byte for each message that was looked at, at least one: whatever a function does, pulls go on.
        A message that the function fails for counts as wanted. Raises WorkerLost where no worker starts."""
        ask = Ask(
            function=self._function,
            arguments=parse_call(batch.call).arguments,
            records=batch.records,
            wanted_max=batch.wanted_max,
            # A batch of many slow messages is cut short rather than its worker lost.
            budget_ms=self._settings.timeout_ms // 2,
        )
        looked_at = await self._look_at(ask, batch)
        if not looked_at:
            # The worker had died before it was asked, of nothing in this batch. Hardly so a second one.
            looked_at = await self._look_at(ask, batch) or bytes([UNDER_WAY])
        # Whatever else a function may have left there: only its clear word keeps a message back.
        verdicts = bytes(verdict != UNWANTED for verdict in looked_at)
        self.tally.looked_at(len(verdicts), sum(verdicts))
        return verdicts

    async def _look_at(self, ask: Ask, batch: FilterBatch) -> bytes:
        """The verdicts of one worker, as far as it has come. Raises WorkerLost where none starts."""
        worker = await self._worker()
        try:
            told = await worker.ask(ask, self._settings.timeout_ms / 1000)
        except WorkerLost as lost:
            seen = worker.verdicts(batch.count)
            await worker.kill()
            self._losses += 1
            self.tally.lost(str(lost), batch)
        except BaseException:
            await worker.kill()
            raise
        else:
            seen = worker.verdicts(batch.count)
            self._losses = 0
            if told.failed:
                self.tally.failed(told.error, told.failed, batch)
            if told.ends:
                await worker.kill()
            else:
                self._idle.append((time.monotonic(), worker))
        return seen.partition(bytes([UNSEEN]))[0]

    async def _worker(self) -> Worker:
        while self._idle:
            _, worker = self._idle.pop()
            if worker.alive:
                return worker
            await worker.kill()
        if time.monotonic() < self._unusable_until:
            raise WorkerLost(self._unusable_because)
        if self._losses > LOSSES_UNPUNISHED:
            pause_s = PAUSE_S_FIRST * 2 ** min(self._losses - LOSSES_UNPUNISHED, 10)
            await asyncio.sleep(min(pause_s, PAUSE_S_MAX))
        try:
            worker = await Worker.start(self._settings, self.tally.printed)
            if self._function not in worker.functions:
                await worker.kill()
                raise WorkerLost("its file has changed and no longer has it; restart the broker")
        except WorkerLost as lost:
            self._unusable_until = time.monotonic() + PAUSE_S_MAX
            self._unusable_because = str(lost)
            _log.error("filter function %s cannot be run: %s", self._function, lost)
            raise
        return worker
