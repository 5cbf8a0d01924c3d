"""The batches of one function and the workers that judge them. No function waits for another one's
workers."""

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
from metaq.retry import Backoff

_log = logging.getLogger(__name__)

LOSSES_UNPUNISHED = 3
UNUSABLE_S = 5.0
BACKOFF = Backoff(first_s=0.2, max_s=UNUSABLE_S, jitter=0.0)
"""The pauses before the next worker, when several are lost in a row: starting processes is expensive."""


class Pool:
    """Takes batches while there are any, with at most `workers_max` workers at a time."""

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
        """Starts a run, because a batch is there or will be soon."""
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
        """Ends workers that have been idle for long."""
        idle_since = time.monotonic() - self._settings.idle_s
        rested = [worker for since, worker in self._idle if since <= idle_since]
        self._idle = [(since, worker) for since, worker in self._idle if since > idle_since]
        for worker in rested:
            await worker.kill()

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        if not run.cancelled() and (error := run.exception()) is not None:
            _log.error("filter function %s: a run ended", self._function, exc_info=error)
            # Pulls that already wait must not wait for the next arrival.
            asyncio.get_running_loop().call_later(1.0, self.wake)

    async def _run(self) -> None:
        # Gathering a batch may read from the disk, so it does not run on the event loop.
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
        """One byte for each message that was judged, at least one: whatever a function does, pulls go on. A
        message that the function fails for counts as wanted. Raises WorkerLost if no worker starts."""
        ask = Ask(
            function=self._function,
            arguments=parse_call(batch.call).arguments,
            records=batch.records,
            wanted_max=batch.wanted_max,
            # A batch of many slow messages is cut short, so that its worker is not lost.
            budget_ms=self._settings.timeout_ms // 2,
        )
        looked_at = await self._look_at(ask, batch)
        if not looked_at:
            # The worker died before it got the batch, so the batch is not to blame. Try one more.
            looked_at = await self._look_at(ask, batch) or bytes([UNDER_WAY])
        # Only a clear "unwanted" drops a message, whatever else the function left there.
        verdicts = bytes(verdict != UNWANTED for verdict in looked_at)
        self.tally.looked_at(len(verdicts), sum(verdicts))
        return verdicts

    async def _look_at(self, ask: Ask, batch: FilterBatch) -> bytes:
        """The verdicts of one worker, as far as it got. Raises WorkerLost if none starts."""
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
            await asyncio.sleep(BACKOFF.pause_s(self._losses - LOSSES_UNPUNISHED))
        try:
            worker = await Worker.start(self._settings, self.tally.printed)
            if self._function not in worker.functions:
                await worker.kill()
                raise WorkerLost("its file has changed and no longer has it; restart the broker")
        except WorkerLost as lost:
            self._unusable_until = time.monotonic() + UNUSABLE_S
            self._unusable_because = str(lost)
            _log.error("filter function %s cannot be run: %s", self._function, lost)
            raise
        return worker
