"""Asking a consumer what it subscribes to, when its pulls know of something newer than its heartbeats.

A Java consumer raises the version of its subscriptions at every rebalance and gives up the heartbeat that
should tell it when another one is under way. For half a minute its pulls would then have to be refused, since
only the broker applies an expression and nobody knows whether it is still the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable

from metaq._core import Clock
from metaq.broker.state.clients import Clients
from metaq.protocol.bodies import Body, ConsumerData, SubscriptionData, always
from metaq.protocol.clients import GetConsumerRunningInfo
from metaq.protocol.command import Command
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply

_log = logging.getLogger(__name__)

PAUSE_MS = 1_000
"""A consumer is asked no more often than that, whatever its pulls say."""
ASKED_MAX = 10_000


class RunningSubscriptions(Body):
    """The part of ConsumerRunningInfo that matters here."""

    subscription_set: list[SubscriptionData] = always(factory=list)


class Inquiry:
    """Brings the subscriptions of a consumer up to date by its own word."""

    def __init__(
        self, clients: Clients, clock: Clock, invoke: Callable[[int, Command], Awaitable[Reply]]
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._invoke = invoke
        self._asked: dict[tuple[int, str], tuple[int, asyncio.Task[None]]] = {}
        """Connection and group → when it was asked last, and the question."""

    async def ask(self, connection: int, group: str, topic: str, version: int) -> None:
        """Returns when the consumer's answer is taken, or when it is clear that there will be none."""
        if not self._is_outdated(connection, group, topic, version):
            return
        now_ms = self._clock.now_ms()
        asked_ms, question = self._asked.get((connection, group), (0, None))
        if question is None or now_ms >= asked_ms + PAUSE_MS or now_ms < asked_ms:
            if len(self._asked) >= ASKED_MAX:
                self._asked.clear()
            question = asyncio.create_task(self._refresh(connection, group))
            self._asked[connection, group] = (now_ms, question)
        # Many pulls wait for one answer; one of them that is given up must not take it from the others.
        await asyncio.shield(question)

    def _is_outdated(self, connection: int, group_name: str, topic: str, version: int) -> bool:
        group = self._clients.consumer_group(group_name)
        if group is None or connection not in group.members or topic not in group.subscriptions:
            return False
        return group.subscriptions[topic].sub_version < version

    async def _refresh(self, connection: int, group_name: str) -> None:
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        if member is None:
            return
        question = GetConsumerRunningInfo(consumer_group=group_name, client_id=member.client_id)
        try:
            reply = (await self._invoke(connection, question)).check()
            told = RunningSubscriptions.decode(reply.body).subscription_set
        except (Refused, Unreachable) as error:
            _log.info(
                "consumer %s of %s did not tell its subscriptions: %s", member.client_id, group_name, error
            )
            return
        self._take(connection, group_name, told)

    def _take(self, connection: int, group_name: str, told: list[SubscriptionData]) -> None:
        """Only newer versions of what it subscribed to; all else is for heartbeats to say."""
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        if group is None or member is None:
            return
        newer = {
            entry.topic: entry
            for entry in told
            if entry.topic in member.subscriptions
            and entry.sub_version > member.subscriptions[entry.topic].sub_version
        }
        data = ConsumerData(
            group_name=group_name,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
            subscription_data_set=list((member.subscriptions | newer).values()),
        )
        self._clients.put_consumer(data, dataclasses.replace(member))
