"""A member of a consumer group, which handlers and iterations are built on.

It joins the group and leaves it, and connects the parts that do the work:

    shares     which queues are ours, by routes, members and strategy    rebalance.py
    assignment gains and loses queues, and holds their locks             assignment.py
    committed  where each queue starts, and what was committed           ../offsets/committed_offsets.py
    pulls      one pull loop for each queue                              ../pull/pull_loops.py
    prefetch   messages that were pulled and are not settled             ../pull/prefetch.py

All of it belongs to one event loop, except that any thread may take and settle messages.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Final

from metaq.client.clock import now_ms
from metaq.client.consumer.group.assignment import Assignment
from metaq.client.consumer.group.rebalance import Shares
from metaq.client.consumer.offsets.committed_offsets import CommittedOffsets
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.pull.prefetch import Prefetch
from metaq.client.consumer.pull.pull_loops import PullLoops
from metaq.client.consumer.subscription import Subscription
from metaq.client.tasks import Tasks
from metaq.errors import MetaqError, NoRoute
from metaq.protocol.bodies import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
    CONSUME_PASSIVELY,
    TAG,
    CheckClientRequestBody,
    ConsumerData,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import CheckClientConfig
from metaq.protocol.errors import Refused, Unreachable

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 5.0
_NOT_CHECKED: Final = (
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.FLOW_CONTROL,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.GO_AWAY,
)
"""Answers that say nothing about the filter."""
_WIRE_STARTS: Final = {"earliest": CONSUME_FROM_FIRST_OFFSET, "latest": CONSUME_FROM_LAST_OFFSET}


class GroupMember:
    """One consumer in a group, on one event loop."""

    def __init__(self, session: Session, options: ConsumerOptions) -> None:
        self.session = session
        self.options = options
        self.started_ms = 0
        self._subscriptions = {subscription.topic: subscription for subscription in options.subscriptions}
        if not options.is_broadcast:
            self._subscriptions[options.retry_topic] = Subscription.of(options.retry_topic)
        shares = self._shares = Shares(session, options)
        self._tasks = Tasks(f"group {options.group}")
        self.prefetch = Prefetch(options)
        self._committed = CommittedOffsets(session, options, shares)
        self._pulls = PullLoops(session, options, self._subscriptions, self.prefetch, self._committed)
        self.assignment = Assignment(
            session, options, shares, self.prefetch, self._committed, self._pulls, self._tasks
        )
        session.telemetry.watch_buffer("receive", self.prefetch)

    async def start(self) -> None:
        """Joins the group and starts to pull. Does not wait until it has queues."""
        self.started_ms = now_ms()
        self.prefetch.start()
        await self._committed.open()
        await self.assignment.find_routes()
        await self._check_filters()
        await self.session.add_consumer(self.describe)
        self.assignment.start()
        self._tasks.run_every(COMMIT_INTERVAL_S, self._commit_and_follow, "commit")

    async def wait_until_ready(self, timeout: float) -> None:
        """Waits until this member has its share of every topic. Raises the reason after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self.assignment.ready.wait()
        except TimeoutError:
            problems = [
                self._shares.problems[subscription.topic]
                for subscription in self.options.subscriptions
                if subscription.topic in self._shares.problems
            ]
            if problems:
                raise problems[0] from None
            raise Unreachable(
                f"group {self.options.group} did not get its queues within {timeout:g} s",
                hint="the log says why",
            ) from None

    async def _check_filters(self) -> None:
        """Asks a broker of each topic whether it accepts the filter. Raises Refused.

        A topic without a route or whose brokers do not answer is not checked; its pulls tell.
        """
        for subscription in self.options.subscriptions:
            route = self.session.routes.known(subscription.topic)
            if subscription.kind == TAG or route is None:
                continue
            check = CheckClientRequestBody(
                client_id=self.session.client_id,
                group=self.options.group,
                subscription_data=subscription.data(),
            ).encode()
            for queue in {queue.broker: queue for queue in route.readable}.values():
                try:
                    (await self.session.call_group(queue, CheckClientConfig(), check)).check()
                    break
                except Refused as error:
                    if error.code in _NOT_CHECKED:
                        break
                    raise Refused(
                        error.code,
                        f"the filter {subscription.expression!r} on {subscription.topic} was refused: "
                        f"{error.remark}",
                        hint=error.hint,
                    ) from None
                except (Unreachable, NoRoute) as error:
                    _log.info("the filter on %s is not checked: %s", subscription.topic, error)

    async def commit(self) -> None:
        """Commits how far every queue is settled. Raises MetaqError or OSError."""
        await self._committed.commit(self.prefetch.buffers)

    async def _commit_and_follow(self) -> None:
        """Commits, and moves to where the group was reset to in the meantime."""
        await self.assignment.follow_resets(await self._committed.commit(self.prefetch.buffers, asks=True))

    async def stop_taking(self) -> None:
        """Pulls nothing more and gives out nothing more. Messages in hand may still be settled."""
        self.prefetch.stop()
        self._pulls.cancel()

    async def leave(self) -> None:
        """Commits, gives its queues up and leaves the group."""
        self.prefetch.is_stopped = True
        try:
            await self._tasks.end()
            await self._pulls.end()
            try:
                await self.commit()
            except (MetaqError, OSError) as error:
                _log.warning("group %s: the last commit failed: %s", self.options.group, error)
            await self.assignment.unlock()
        finally:
            # This also runs when the caller's time is over and it cancels us.
            self.assignment.stop()
            for buffer in self.prefetch.buffers.values():
                buffer.dropped = True
            try:
                await self.session.remove_consumer(self.describe)
            finally:
                await self._committed.close()

    def describe(self) -> ConsumerData:
        """Returns what heartbeats say about this member."""
        start = self.options.start
        return ConsumerData(
            group_name=self.options.group,
            consume_from_where=(
                CONSUME_FROM_TIMESTAMP if isinstance(start, datetime) else _WIRE_STARTS[start]
            ),
            consume_type=CONSUME_PASSIVELY,
            message_model=BROADCASTING if self.options.is_broadcast else CLUSTERING,
            subscription_data_set=[subscription.data() for subscription in self._subscriptions.values()],
        )
