"""Locks of queues: which consumer may read each queue of a group that consumes in order."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from metaq._core import Clock
from metaq.broker.options import LEASE_MS
from metaq.broker.state.broker_own import check_group
from metaq.broker.state.topics import Topics
from metaq.journal.journal import Journal, NotWritten, Unwritten
from metaq.protocol import names
from metaq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import LockBatchQueues, UnlockBatchQueues
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.body_reading import is_short, read_body
from metaq.protocol.java_json import MessageQueue
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

TABLE = "locks"
"""In the journal: `group@topic@queue` → the client that may read it. When the lease ends is not there: the
next master gives every owner a whole one."""
QUEUES_PER_REQUEST_MAX = 10_000

QueueKey = tuple[str, int]
"""Topic and queue."""


@dataclass(slots=True)
class Lease:
    """The client that may read a queue, and until when."""

    client_id: str
    ends_ms: int


Leases = dict[str, dict[QueueKey, Lease]]
"""By group and queue."""
Held = dict[QueueKey, int]
"""Queues of one client, and when each lease ends."""


class QueueLocks:
    """Leases by group and queue. A new owner is in the journal before it hears of it, so that the next
    master knows it too; renewals are not written."""

    def __init__(
        self,
        clock: Clock,
        topics: Topics,
        journal: Journal,
        leases: Leases | None = None,
        lease_ms: int = LEASE_MS,
        replicated: Callable[[], Awaitable[None]] | None = None,
        pools: WorkPools | None = None,
    ) -> None:
        """`replicated` returns when the replicas that may become master have the journal."""
        self._clock = clock
        self._topics = topics
        self._journal = journal
        self._leases: Leases = {} if leases is None else leases
        self._lease_ms = lease_ms
        self._replicated = replicated
        self._pools = pools or WorkPools()
        self._unwritten = Unwritten(journal, self._value_of)

    def load(self) -> None:
        """Gives every owner a whole lease from now on. Nobody could renew while there was no master, and a
        queue whose lease ran out meanwhile may still have its reader. Raises MetadataDamaged."""
        for key, client_id in self._journal.decoded(TABLE, bytes.decode, _read_key).items():
            group, queue_key = _read_key(key)
            self._leases.setdefault(group, {})[queue_key] = Lease(client_id, 0)
        ends_ms = self._clock.now_ms() + self._lease_ms
        for leases in self._leases.values():
            for lease in leases.values():
                lease.ends_ms = ends_ms

    def follow(self, key: str, value: bytes | None) -> None:
        """Takes over a lock that this replica's master has given or taken away. Raises ValueError."""
        group, queue_key = _read_key(key)
        if value is not None:
            ends_ms = self._clock.now_ms() + self._lease_ms
            self._leases.setdefault(group, {})[queue_key] = Lease(value.decode(), ends_ms)
        elif group in self._leases:
            self._leases[group].pop(queue_key, None)
            if not self._leases[group]:
                del self._leases[group]

    async def keep(self) -> None:
        """Writes the changes. Raises NotWritten."""
        await self._unwritten.keep()

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Locks or renews the queues that are free, expired or the client's own, and returns these. A queue
        that this broker does not have is never granted."""
        now_ms = self._clock.now_ms()
        leases = self._leases.setdefault(group, {})
        granted: list[MessageQueue] = []
        for queue in queues:
            queue_key = (queue.topic, queue.queue_id)
            lease = leases.get(queue_key)
            is_taken = lease is not None and lease.client_id != client_id and lease.ends_ms > now_ms
            if is_taken or not self._exists(queue_key):
                continue
            if lease is None or lease.client_id != client_id:
                self._touch(group, queue_key)
            leases[queue_key] = Lease(client_id, now_ms + self._lease_ms)
            granted.append(queue)
        if not leases:
            del self._leases[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Releases the queues that are the client's; others stay."""
        leases = self._leases.get(group, {})
        for queue in queues:
            queue_key = (queue.topic, queue.queue_id)
            lease = leases.get(queue_key)
            if lease is not None and lease.client_id == client_id:
                del leases[queue_key]
                self._touch(group, queue_key)
        if not leases:
            self._leases.pop(group, None)

    def held_by(self, group: str, client_id: str) -> Held:
        """The queues that a client has locked, and when each lease ends."""
        leases = self._leases.get(group, {})
        return {key: lease.ends_ms for key, lease in leases.items() if lease.client_id == client_id}

    def release(self, group: str, client_id: str, held: Held) -> int:
        """Takes queues away from a client, unless it has renewed them since `held`. Returns how many."""
        leases = self._leases.get(group, {})
        released = 0
        for queue_key, ends_ms in held.items():
            lease = leases.get(queue_key)
            if lease is not None and lease == Lease(client_id, ends_ms):
                del leases[queue_key]
                self._touch(group, queue_key)
                released += 1
        if not leases:
            self._leases.pop(group, None)
        return released

    def has_lease(self, group: str) -> bool:
        """Whether some queue of the group is locked now."""
        now_ms = self._clock.now_ms()
        return any(lease.ends_ms > now_ms for lease in self._leases.get(group, {}).values())

    def forget_expired(self) -> None:
        now_ms = self._clock.now_ms()
        for group, leases in list(self._leases.items()):
            for queue_key, lease in list(leases.items()):
                if lease.ends_ms <= now_ms:
                    del leases[queue_key]
                    self._touch(group, queue_key)
            if not leases:
                del self._leases[group]

    def shift_time(self, by_ms: int) -> None:
        """Extends all leases after the clock was set or this process did not run: nobody could renew."""
        for leases in self._leases.values():
            for lease in leases.values():
                lease.ends_ms += by_ms

    @handles(LockBatchQueues)
    async def lock_batch_queues(self, command: LockBatchQueues, request: Request) -> Response:
        asked = await self._read(request)
        granted = self.lock(asked.consumer_group, asked.client_id, asked.mq_set)
        is_new = self._unwritten.is_behind
        try:
            await self.keep()
            if is_new and self._replicated is not None:
                # The next master must know the owner, or it could let another consumer read the queue.
                await self._replicated()
        except NotWritten as error:
            # A full disk must not keep anybody from reading.
            _log.error("locks of group %s are not written yet: %s", asked.consumer_group, error)
        return Response(body=LockBatchResponseBody(lock_ok_mq_set=granted).encode())

    @handles(UnlockBatchQueues)
    def unlock_batch_queues(self, command: UnlockBatchQueues, request: Request) -> Awaitable[None] | None:
        if not is_short(request.body):
            return self._unlock_later(request)
        asked = _checked(LockBatchRequestBody.decode(request.body))
        self.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return None

    async def _unlock_later(self, request: Request) -> None:
        asked = await self._read(request)
        self.unlock(asked.consumer_group, asked.client_id, asked.mq_set)

    async def _read(self, request: Request) -> LockBatchRequestBody:
        body = request.body
        return _checked(await read_body(self._pools.reading, request.connection, body, LockBatchRequestBody))

    def _touch(self, group: str, queue_key: QueueKey) -> None:
        self._unwritten.touch(TABLE, f"{group}@{queue_key[0]}@{queue_key[1]}")

    def _value_of(self, table: str, key: str) -> bytes | None:
        group, queue_key = _read_key(key)
        lease = self._leases.get(group, {}).get(queue_key)
        return None if lease is None else lease.client_id.encode()

    def _exists(self, queue_key: QueueKey) -> bool:
        topic = self._topics.get(queue_key[0])
        return topic is not None and 0 <= queue_key[1] < max(topic.read_queue_nums, topic.write_queue_nums)


def _checked(asked: LockBatchRequestBody) -> LockBatchRequestBody:
    """Raises Refused."""
    check_group(asked.consumer_group)
    fault = names.group_fault(asked.consumer_group) or names.client_id_fault(asked.client_id)
    if len(asked.mq_set) > QUEUES_PER_REQUEST_MAX:
        fault = f"{len(asked.mq_set)} queues in one request, the limit is {QUEUES_PER_REQUEST_MAX}"
    if fault is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    return asked


def _read_key(key: str) -> tuple[str, QueueKey]:
    group, topic, queue_id = key.split("@")
    return group, (topic, int(queue_id))
