"""Asks a consumer for its subscriptions when its pulls are newer than its heartbeats.

A Java consumer raises the version of its subscriptions at every rebalance, and skips the heartbeat that
should announce it while another heartbeat is under way. For half a minute the broker would have to refuse its
pulls: only the broker applies an expression, and it cannot know whether the expression is still the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from metaq._core import Clock
from metaq.broker.state.client_limits import SUBSCRIPTIONS_PER_GROUP_MAX, check_subscriptions
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.filters import Filters, size_fault
from metaq.protocol.bodies import BROADCASTING, CLUSTERING, Body, ConsumerData, SubscriptionData, always
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import GetConsumerRunningInfo
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.handling.body_reading import read_body
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.ranges import OBJECTS_MAX, FewRows
from metaq.protocol.reply import Reply
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

PAUSE_MS = 1_000
"""The shortest time between two questions to one consumer."""
ASKED_MAX = 10_000
ANSWER_BYTES_MAX = 1024 * 1024


class RunningSubscriptions(Body):
    """The part of ConsumerRunningInfo that matters here."""

    objects_max: ClassVar[int | None] = OBJECTS_MAX

    subscription_set: FewRows[SubscriptionData] = always(factory=list)


class Inquiry:
    """Brings the subscriptions of a consumer up to date by asking it."""

    def __init__(
        self,
        clients: Clients,
        clock: Clock,
        invoke: Callable[[int, Command], Awaitable[Reply]],
        filters: Filters,
        waiting_for_client: Callable[[], AbstractContextManager[None]] = nullcontext,
        pools: WorkPools | None = None,
    ) -> None:
        self._pools = pools or WorkPools()
        self._clients = clients
        self._filters = filters
        self._clock = clock
        self._invoke = invoke
        self._waiting_for_client = waiting_for_client
        self._asked: dict[tuple[int, str], tuple[int, asyncio.Task[None]]] = {}
        """Connection and group → the time of the last question, and its task."""

    async def ask(self, connection: int, group: str, topic: str, version: int) -> None:
        """Returns when the consumer's answer is applied, or when it is clear that none will come. Raises
        Refused if too many requests wait for clients already."""
        if not self._is_outdated(connection, group, topic, version):
            return
        now_ms = self._clock.now_ms()
        asked_ms, question = self._asked.get((connection, group), (0, None))
        if question is None or now_ms >= asked_ms + PAUSE_MS or now_ms < asked_ms:
            if len(self._asked) >= ASKED_MAX:
                self._asked.clear()
            question = asyncio.create_task(self._refresh(connection, group))
            self._asked[connection, group] = (now_ms, question)
        # Many pulls wait for one answer; if one of them is cancelled, the others still need it.
        with self._waiting_for_client():
            await asyncio.shield(question)

    def _is_outdated(self, connection: int, group_name: str, topic: str, version: int) -> bool:
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        return member is not None and topic in member.subscriptions and member.version_of(topic) < version

    async def _refresh(self, connection: int, group_name: str) -> None:
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        if member is None:
            return
        question = GetConsumerRunningInfo(consumer_group=group_name, client_id=member.client_id)
        try:
            reply = (await self._invoke(connection, question)).check()
            told = await self._subscriptions(member, reply.body)
            await self._filters.compile_all_apart(member, told)
            self._take(connection, group_name, told)
        except (Refused, Unreachable) as error:
            peer_log.write(
                _log,
                logging.INFO,
                member.remote,
                "the subscriptions of consumer %s of %s were not refreshed: %s",
                member.client_id,
                group_name,
                error,
            )

    async def _subscriptions(self, member: Member, body: bytes) -> list[SubscriptionData]:
        """The subscriptions in an answer, which has the limits of a heartbeat. Raises Refused."""
        fault: str | None = f"an answer of {len(body)} bytes, the limit is {ANSWER_BYTES_MAX}"
        told: list[SubscriptionData] = []
        if len(body) <= ANSWER_BYTES_MAX:
            running = await read_body(self._pools.reading, member, body, RunningSubscriptions)
            told = running.subscription_set
            fault = None
            if len(told) > SUBSCRIPTIONS_PER_GROUP_MAX:
                fault = f"{len(told)} subscriptions, the limit is {SUBSCRIPTIONS_PER_GROUP_MAX}"
            fault = fault or size_fault(told)
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        return told

    def _take(self, connection: int, group_name: str, told: list[SubscriptionData]) -> None:
        """Applies newer versions of known subscriptions only; heartbeats bring the rest. Raises Refused."""
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        if group is None or member is None:
            return
        newer = {
            entry.topic: entry
            for entry in told
            if entry.topic in member.subscriptions and entry.sub_version > member.version_of(entry.topic)
        }
        data = ConsumerData(
            group_name=group_name,
            consume_type=group.consume_type,
            message_model=BROADCASTING if member.broadcasting else CLUSTERING,
            consume_from_where=group.consume_from_where,
            subscription_data_set=list((member.announced_subscriptions() | newer).values()),
        )
        check_subscriptions(data)
        self._clients.put_consumer(data, dataclasses.replace(member))
