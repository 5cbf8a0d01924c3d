"""Reading and sending reports of pipelines, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import uuid
from typing import Final

from metaq.admin.calls import Calls
from metaq.admin.messages.queue_reading import QueueCursor, pull_messages
from metaq.admin.messages.stored_messages import query
from metaq.admin.offsets import Offsets
from metaq.admin.pipelines.reports import (
    BODY_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    PipelineReport,
    PipelineReports,
    decode,
    encode,
    in_order,
    judged,
)
from metaq.admin.topics import Topics
from metaq.client.clock import now_ms
from metaq.client.message import Message, inflate
from metaq.client.producer.results import STATUSES
from metaq.client.session.routes import Queue
from metaq.errors import AlreadyExists, MetaqError, NoRoute, UnreadableBody
from metaq.protocol.commands.messages import SendMessageV2
from metaq.protocol.names import PIPELINE_REPORTS_TOPIC, TOOLS_PRODUCER_GROUP
from metaq.protocol.properties import KEYS, UNIQUE_KEY, WAIT, encode_properties

LAST_REPORTS_MAX: Final = 1_024
"""Reports of one queue that one call reads, the newest ones."""
PULLS_MAX: Final = LAST_REPORTS_MAX // 32 + 8
"""Requests for messages that one call sends to one queue. A pull returns up to 32 messages, fewer if they are
large."""
RUNS_MAX: Final = 1_000
"""Runs that are remembered."""
OVER_KEY: Final = "metaq-run-is-over"
"""A key of the last report of a run, which is found however many reports came after it."""
SENDS_MAX: Final = 2


class Pipelines:
    """Lists the pipelines and Spark queries that report to a cluster."""

    def __init__(self, calls: Calls, offsets: Offsets, topics: Topics) -> None:
        self._calls = calls
        self._offsets = offsets
        self._topics = topics
        self._reading = asyncio.Lock()
        self._next_offsets: dict[Queue, int] = {}
        self._since_ms: dict[Queue, int] = {}
        """The time of the first report that was read, for queues of which older ones were skipped."""
        self._newest: dict[str, PipelineReport] = {}
        """By run."""
        self._has_found_last = False
        self._target: Queue | None = None

    async def list(self) -> PipelineReports:
        """Returns the newest report of each run.

        The first call reads the last 1,024 reports of each broker, and the last reports of 64 runs that are
        over. Later calls of the same client read only new reports. Raises NoRoute if no broker is registered;
        brokers without reports are not an error.
        """
        async with self._reading:
            try:
                queues = tuple((await self._calls.route(PIPELINE_REPORTS_TOPIC)).readable)
            except NoRoute as error:
                if error.retriable:
                    raise
                # Without brokers, nobody knows whether there are reports.
                await self._calls.masters()
                self._forget()
                return PipelineReports(())
            await self._find_last()

            async def read(broker: str) -> None:
                for queue in queues:
                    if queue.broker == broker:
                        await self._read(queue)

            _, failures = await self._calls.from_each(sorted({queue.broker for queue in queues}), read)
            since_ms = max(self._since_ms.values(), default=None)
            now = now_ms()
            reports = in_order(judged(report, now) for report in self._newest.values())
            return PipelineReports(reports, since_ms, failures)

    async def send(self, report: PipelineReport) -> None:
        """Sends a report, so that `list` shows it. The first one creates the topic of reports."""
        for left in reversed(range(SENDS_MAX)):
            try:
                self._target = target = self._target or await self._choose_target()
                await self._calls.change(
                    target.broker, _command(report, target), encode(report), accept=tuple(STATUSES)
                )
            except MetaqError:
                # Another broker may take it.
                self._target = None
                if not left:
                    raise
            else:
                return

    # Inside

    async def _choose_target(self) -> Queue:
        try:
            route = await self._calls.route(PIPELINE_REPORTS_TOPIC)
        except NoRoute as error:
            if error.retriable:
                raise
            # Another pipeline may create it at the same time.
            with contextlib.suppress(AlreadyExists):
                await self._topics.create(PIPELINE_REPORTS_TOPIC, queues=1)
            route = await self._calls.route(PIPELINE_REPORTS_TOPIC)
        if not route.writable:
            raise NoRoute(f"no queue of {PIPELINE_REPORTS_TOPIC} can be written to")
        return random.choice(list(route.writable))

    async def _find_last(self) -> None:
        """Takes the last reports of runs that are over, once."""
        if self._has_found_last:
            return
        found, failures = await query(self._calls, PIPELINE_REPORTS_TOPIC, OVER_KEY)
        for message in found:
            self._take(message)
        self._has_found_last = not failures

    async def _read(self, queue: Queue) -> None:
        """Takes the new reports of a queue."""
        bounds = (await self._offsets.bounds([queue]))[queue]
        known = self._next_offsets.get(queue)
        if known is not None and known > bounds.end:
            known = None  # The topic was deleted and created again.
        start = max(bounds.first, bounds.end - LAST_REPORTS_MAX, known or 0)
        has_skipped = start > (bounds.first if known is None else max(known, bounds.first))
        cursor = QueueCursor(queue, start, bounds.end)
        for _ in range(PULLS_MAX):
            before = cursor.next_offset
            if before >= cursor.end_offset:
                break
            messages = await pull_messages(self._calls, cursor)
            if has_skipped and messages:
                self._since_ms[queue] = messages[0].stored_at
                has_skipped = False
            for message in messages:
                self._take(message)
            if cursor.next_offset <= before:
                break  # The queue has become shorter.
        self._next_offsets[queue] = cursor.next_offset

    def _take(self, message: Message) -> None:
        try:
            body, system_flag = message.stored_body
            report = decode(inflate(body, system_flag, BODY_BYTES_MAX), message.stored_at)
        except UnreadableBody:
            return  # Anybody may send to the topic.
        if report is None:
            return
        known = self._newest.get(report.run)
        # The clocks of two brokers may differ, but a run that is over does not go on.
        if known is not None and (_time(known) > message.stored_at or (known.is_over and not report.is_over)):
            return
        self._newest[report.run] = report
        if len(self._newest) > RUNS_MAX:
            oldest = min(self._newest.values(), key=_time)
            del self._newest[oldest.run]

    def _forget(self) -> None:
        self._next_offsets.clear()
        self._since_ms.clear()
        self._newest.clear()
        self._has_found_last = False


def _time(report: PipelineReport) -> int:
    return report.reported_ms or 0


def _command(report: PipelineReport, target: Queue) -> SendMessageV2:
    keys = re.sub(r"[\s\x00-\x1f]+", "_", report.name[:NAME_CHARACTERS_MAX])
    properties = {
        KEYS: f"{keys} {OVER_KEY}" if report.is_over else keys,
        UNIQUE_KEY: uuid.uuid4().hex.upper(),
        WAIT: "true",
    }
    return SendMessageV2(
        producer_group=TOOLS_PRODUCER_GROUP,
        topic=target.topic,
        # A broker that has lost the topic may create it again.
        default_topic_queue_nums=1,
        queue_id=target.id,
        born_timestamp=now_ms(),
        properties=encode_properties(properties),
        broker_name=target.broker,
    )
