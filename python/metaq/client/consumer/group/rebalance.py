"""A member's share of the group's queues, and the locks that ordered consumers need."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.options import ConsumerOptions
from metaq.client.session.answers import read_body
from metaq.client.session.routes import Queue
from metaq.client.stderr_fallback import once
from metaq.errors import MetaqError, NoRoute, explained
from metaq.protocol.bodies import ConsumerList, LockBatchRequestBody, LockBatchResponseBody
from metaq.protocol.commands.clients import GetConsumerListByGroup, LockBatchQueues, UnlockBatchQueues
from metaq.protocol.errors import Unreachable
from metaq.protocol.java_json import MessageQueue

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 5.0


class Shares:
    """Works out our share of each topic. If a topic or its broker cannot be asked, the old share stays."""

    def __init__(self, session: Session, options: ConsumerOptions) -> None:
        self._session = session
        self._options = options
        self.known: dict[str, frozenset[Queue]] = {}
        """All queues of each topic, as last seen."""
        self._shares: dict[str, frozenset[Queue]] = {}
        self._first_seen: dict[str, frozenset[Queue]] = {}
        """The queues that each topic had when we first looked; empty if the topic did not exist."""
        self.problems: dict[str, MetaqError] = {}
        """Why the share of a topic is not known, by topic."""

    @property
    def topics(self) -> list[str]:
        topics = [subscription.topic for subscription in self._options.subscriptions]
        return topics if self._options.is_broadcast else [*topics, self._options.retry_topic]

    async def work_out(self) -> frozenset[Queue]:
        """Returns the queues that are ours now."""
        await asyncio.gather(*(self._work_out_topic(topic) for topic in self.topics))
        return frozenset().union(*self._shares.values())

    async def look(self, topic: str) -> list[Queue]:
        """Returns the readable queues of a topic. Raises MetaqError."""
        try:
            queues = sorted(set((await self._session.routes.get(topic)).readable))
        except NoRoute as error:
            if not error.retriable:
                self._first_seen[topic] = frozenset()
            raise
        if queues:
            self._first_seen.setdefault(topic, frozenset(queues))
        return queues

    def has_appeared(self, queue: Queue) -> bool:
        """Returns whether a queue was created after we first looked at its topic."""
        return queue not in self._first_seen.get(queue.topic, (queue,))

    async def _work_out_topic(self, topic: str) -> None:
        try:
            queues = await self.look(topic)
            if not queues:
                return
            if self._options.is_broadcast:
                share = queues
            else:
                members = await self._members(queues)
                share = self._options.strategy(self._session.client_id, queues, members)
        except NoRoute as error:
            if not error.retriable:
                # The topic was deleted or does not exist yet.
                self.known.pop(topic, None)
                self._shares.pop(topic, None)
            self._report(topic, error)
            return
        except MetaqError as error:
            self._report(topic, error)
            return
        self.known[topic] = frozenset(queues)
        self._shares[topic] = frozenset(share)
        self.problems.pop(topic, None)

    def _report(self, topic: str, error: MetaqError) -> None:
        """Warns once about each kind of problem with a topic, until it is read again."""
        before = self.problems.get(topic)
        self.problems[topic] = error
        # The first heartbeat creates the retry topic, and until it has arrived no broker knows us.
        is_expected = topic == self._options.retry_topic or not isinstance(error, (NoRoute, Unreachable))
        if is_expected or type(before) is type(error):
            _log.debug("group %s has no share of %s: %s", self._options.group, topic, error)
            return
        _log.warning(
            "group %s gets no messages of %s: %s",
            self._options.group,
            topic,
            explained(error),
            extra=once(type(error), self._options.group, topic),
        )

    async def _members(self, queues: list[Queue]) -> list[str]:
        """Returns the client ids of the group, from the first broker of the topic that knows us."""
        command = GetConsumerListByGroup(consumer_group=self._options.group)
        problem: MetaqError | None = None
        for queue in {queue.broker: queue for queue in queues}.values():
            try:
                reply = (await self._session.call_group(queue, command, timeout=CALL_TIMEOUT_S)).check()
                members = (await read_body(ConsumerList, reply.body)).consumer_id_list
            except MetaqError as error:
                problem = error
                continue
            # We are missing until our heartbeat has arrived there, for example after a restart of the broker.
            if self._session.client_id in members:
                return sorted(set(members))
        raise problem or MetaqError(
            f"no broker knows {self._session.client_id} as a member of group {self._options.group} yet"
        )


class Locks:
    """Queue locks for ordered consumption. A broker grants a queue to one member at a time, for a minute."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def lock(self, queues: frozenset[Queue]) -> frozenset[Queue]:
        """Takes or renews locks and returns the queues that were granted.

        A broker that cannot be asked grants nothing.
        """

        async def ask(broker: str, wanted: list[Queue]) -> list[Queue]:
            try:
                reply = await self._session.call_group(
                    wanted[0], LockBatchQueues(), self._body(wanted), timeout=CALL_TIMEOUT_S
                )
                granted = (await read_body(LockBatchResponseBody, reply.check().body)).lock_ok_mq_set
            except MetaqError as error:
                _log.debug("group %s: no locks from %s: %s", self._group, broker, error)
                return []
            names = {(queue.topic, queue.broker_name, queue.queue_id) for queue in granted}
            return [queue for queue in wanted if (queue.topic, queue.broker, queue.id) in names]

        answers = await asyncio.gather(*(ask(*item) for item in _by_broker(queues).items()))
        return frozenset(queue for answer in answers for queue in answer)

    async def unlock(self, queues: frozenset[Queue]) -> None:
        """Gives locks back, as far as brokers can be reached. The others expire."""
        for broker, held in _by_broker(queues).items():
            try:
                await self._session.call_group(
                    held[0], UnlockBatchQueues(), self._body(held), timeout=CALL_TIMEOUT_S
                )
            except MetaqError as error:
                _log.debug("group %s: locks stay at %s until they expire: %s", self._group, broker, error)

    def _body(self, queues: list[Queue]) -> bytes:
        return LockBatchRequestBody(
            client_id=self._session.client_id,
            consumer_group=self._group,
            mq_set=[
                MessageQueue(broker_name=queue.broker, queue_id=queue.id, topic=queue.topic)
                for queue in queues
            ],
        ).encode()


def _by_broker(queues: frozenset[Queue]) -> dict[str, list[Queue]]:
    grouped: dict[str, list[Queue]] = {}
    for queue in sorted(queues, key=lambda queue: (queue.broker, queue.topic, queue.id)):
        grouped.setdefault(queue.broker, []).append(queue)
    return grouped
