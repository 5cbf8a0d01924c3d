"""Delayed messages for operators: counts, lists, and recalls without the handle that the sender got.

crates/server/src/timer/listing.rs does the searches and bounds each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from metaq._core import BrokerPlane, Clock, StoreFailure, decode_records
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.relays import physical_offset_of
from metaq.broker.requests.spaced_work import letting_others_run
from metaq.protocol.bodies import WRITE
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.waiting import (
    BUCKETS_MAX,
    LISTED_MAX,
    DelayedFigures,
    DelayedLine,
    DelayedLines,
    GetDelayedFigures,
    LevelLine,
    ListDelayedMessages,
    RecallDelayedMessage,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.properties import KEYS, REAL_QUEUE_ID, REAL_TOPIC, TAGS, UNIQUE_KEY, number_of
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

MINUTE_MS = 60_000


class DelayedMessages:
    """Answers for the delayed messages of this master."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        plane: BrokerPlane,
        permission: Callable[[], int],
        pools: WorkPools,
    ) -> None:
        self._options = options
        self._clock = clock
        self._plane = plane
        self._permission = permission
        self._pools = pools

    @handles(GetDelayedFigures)
    async def get_delayed_figures(self, command: GetDelayedFigures, request: Request) -> Response:
        if command.buckets > 0 and (command.step_ms < MINUTE_MS or command.step_ms % MINUTE_MS):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"stepMs is {command.step_ms}; give whole minutes of 60000"
            )
        count = min(max(command.buckets, 0), BUCKETS_MAX)

        def count_them() -> bytes:
            known = self._plane.delayed_figures(from_ms=command.from_ms, step_ms=command.step_ms, count=count)
            if known is None:
                raise _not_known()
            timed, recalls, first_ms, last_ms, counts, levels = known
            figures = DelayedFigures(
                now_ms=self._clock.now_ms(),
                timed=timed,
                recalls=recalls,
                levels=[LevelLine(level=level, delay_ms=ms, messages=held) for level, ms, held in levels],
                earliest_ms=first_ms,
                latest_ms=last_ms,
                counts=counts,
            )
            return figures.encode()

        return Response(body=await self._pools.look_ups.run(request, count_them))

    @handles(ListDelayedMessages)
    async def list_delayed_messages(self, command: ListDelayedMessages, request: Request) -> Response:
        if command.offset_id is not None:
            line = await self._find(command.offset_id, request)
            return Response(body=DelayedLines(messages=[line]).encode())

        def search() -> bytes:
            known = self._plane.list_delayed(
                from_ms=command.from_ms,
                to_ms=command.to_ms,
                count_max=min(max(command.count, 1), LISTED_MAX),
                topic=command.topic,
            )
            if known is None:
                raise _not_known()
            found, is_truncated = known
            lines = [_line(*each) for each in letting_others_run(found)]
            return DelayedLines(messages=lines, is_truncated=is_truncated).encode()

        return Response(body=await self._pools.look_ups.run(request, search))

    @handles(RecallDelayedMessage)
    async def recall_delayed_message(self, command: RecallDelayedMessage, request: Request) -> Response:
        """Recalls a message for an operator, who needs no handle. A handle keeps one producer from recalling
        messages of another."""
        broker = self._options.broker
        if not broker.recall_messages:
            raise Refused(
                ResponseCode.NO_PERMISSION, "this broker does not let messages be recalled (recall_messages)"
            )
        if not self._permission() & WRITE:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {broker.name} takes no writes, and so no recalls"
            )
        line = await self._find(command.offset_id, request)
        if line.level is not None:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the message waits for delay level {line.level}: "
                "only a message with a delivery time of its own can be recalled",
            )
        if line.is_recalled:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "the message was recalled before")
        try:
            outcome = await self._pools.storing.run(
                request,
                lambda: self._plane.recall(
                    line.topic, line.id, line.due_ms, producer_group="", born_host=request.remote
                ),
            )
        except StoreFailure as failure:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the recall was not stored: {failure}") from failure
        if outcome == "late":
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "the message's time has come: it is delivered")
        if outcome == "before":
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "the message was recalled before")
        peer_log.write(
            _log,
            logging.INFO,
            request.remote,
            "delayed message %s of topic %s was recalled by %s",
            line.id,
            line.topic,
            request.remote,
        )
        line.is_recalled = True
        return Response(body=DelayedLines(messages=[line]).encode())

    async def _find(self, offset_id: str, request: Request) -> DelayedLine:
        physical_offset = physical_offset_of(offset_id)

        def find() -> DelayedLine | None:
            found = self._plane.find_delayed(physical_offset)
            return None if found is None else _line(*found)

        line = await self._pools.look_ups.run(request, find)
        # Another broker may have another message at the same place.
        if line is None or line.offset_id != offset_id.upper():
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND, f"no message with the offset id {offset_id} waits for its time"
            )
        return line


def _not_known() -> Refused:
    return Refused(
        ResponseCode.SYSTEM_BUSY,
        "the broker has not read all delayed messages since its start; try again in a moment",
    )


def _line(head: bytes, size_bytes: int, due_ms: int, level: int | None, is_recalled: bool) -> DelayedLine:
    (record,) = decode_records(head)
    properties = record.properties
    return DelayedLine(
        id=properties.get(UNIQUE_KEY, ""),
        offset_id=record.message_id,
        topic=properties.get(REAL_TOPIC, ""),
        queue_id=number_of(properties.get(REAL_QUEUE_ID)),
        keys=properties.get(KEYS, "").split(),
        tags=properties.get(TAGS),
        due_ms=due_ms,
        stored_ms=record.store_timestamp_ms,
        size_bytes=size_bytes,
        level=level,
        is_recalled=is_recalled,
    )
