"""Locks of queues: which consumer may read each queue of a group that consumes in order."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from metaq._core import Clock
from metaq.broker.options import LEASE_MS
from metaq.broker.state.broker_own import check_group
from metaq.broker.state.client_limits import LockLimits
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.topics import Topics
from metaq.journal.journal import Journal, NotWritten, Unwritten
from metaq.protocol import names
from metaq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import LockBatchQueues, UnlockBatchQueues
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.body_reading import is_short, read_body
from metaq.protocol.handling.local_peers import source_of
from metaq.protocol.java_json import MessageQueue
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

TABLE = "locks"
"""In the journal: `group@topic@queue` → the client that may read it. When the lease ends is not there: the
next master gives every owner a whole one."""
QUEUES_PER_REQUEST_MAX = 10_000

QUEUES_AT_ONCE = 256
"""Queues that are locked, unlocked or looked at before other requests have their turn."""

QueueKey = tuple[str, int]
"""Topic and queue."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The connection that a request for locks came by."""

    connection: int = 0
    host: str = ""
    """Its machine, as `source_of` names it."""


UNKNOWN = Sender()


@dataclass(slots=True)
class Lease:
    """The client that may read a queue, and until when."""

    client_id: str
    ends_ms: int
    sender: Sender = field(default=UNKNOWN, compare=False)
    """The connection that asked for it last; unknown if another master gave the lease."""


class _Owner:
    """The client with one id, which owns leases of a group. It is looked up among the members once for a
    request, however many queues that names."""

    def __init__(self, clients: Clients | None, group: str, client_id: str) -> None:
        self._clients = clients
        self._group = group
        self._client_id = client_id
        self._found: tuple[Member | None] | None = None

    def speaks(self, lease: Lease, sender: Sender) -> bool:
        """Whether the owner of the lease speaks, and not somebody else who knows its client id."""
        if lease.sender.connection == sender.connection or self._clients is None:
            return True
        if self._found is None:
            live = self._clients.consumer_group(self._group)
            since_ms = self._clients.heard_since_ms()
            self._found = (None if live is None else live.find(self._client_id, since_ms),)
        (member,) = self._found
        if member is None:
            # A client that has lost its connection may not have sent a heartbeat on the next one yet.
            return lease.sender.host == sender.host
        return member.connection == sender.connection


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
        clients: Clients | None = None,
        limits: LockLimits | None = None,
        pools: WorkPools | None = None,
    ) -> None:
        """`replicated` returns when the replicas that may become master have the journal."""
        self._clients = clients
        self._limits = limits or LockLimits()
        self._clock = clock
        self._topics = topics
        self._journal = journal
        self._leases: Leases = {} if leases is None else leases
        self._of_client: dict[tuple[str, str], dict[QueueKey, None]] = {}
        """Group and client → the queues that it has locked."""
        self._count = 0
        self._of_connection: Counter[int] = Counter()
        self._of_host: Counter[str] = Counter()
        for group, of_group in self._leases.items():
            for queue_key, lease in of_group.items():
                self._note(group, queue_key, lease)
        self._lease_ms = lease_ms
        self._replicated = replicated
        self._pools = pools or WorkPools()
        self._unwritten = Unwritten(journal, self._value_of)

    def load(self) -> None:
        """Gives every owner a whole lease from now on. Nobody could renew while there was no master, and a
        queue whose lease ran out meanwhile may still have its reader. Raises MetadataDamaged."""
        for key, client_id in self._journal.decoded(TABLE, bytes.decode, _read_key).items():
            group, queue_key = _read_key(key)
            self._put(group, queue_key, Lease(client_id, 0))
        ends_ms = self._clock.now_ms() + self._lease_ms
        for leases in self._leases.values():
            for lease in leases.values():
                lease.ends_ms = ends_ms

    def follow(self, key: str, value: bytes | None) -> None:
        """Takes over a lock that this replica's master has given or taken away. Raises ValueError."""
        group, queue_key = _read_key(key)
        if value is not None:
            ends_ms = self._clock.now_ms() + self._lease_ms
            self._put(group, queue_key, Lease(value.decode(), ends_ms))
        else:
            self._drop(group, queue_key)

    async def keep(self) -> None:
        """Writes the changes. Raises NotWritten."""
        await self._unwritten.keep()

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], sender: Sender = UNKNOWN
    ) -> list[MessageQueue]:
        """Locks or renews the queues that are free, expired or the client's own, and returns these. A queue
        that this broker does not have is never granted.

        Raises Refused if a limit keeps the client from all of them. It can renew its own in any case."""
        now_ms = self._clock.now_ms()
        granted: list[MessageQueue] = []
        fault: Refused | None = None
        owner = _Owner(self._clients, group, client_id)
        for queue in queues:
            queue_key = (queue.topic, queue.queue_id)
            lease = self._leases.get(group, {}).get(queue_key)
            is_own = lease is not None and lease.client_id == client_id
            if lease is not None and not is_own and lease.ends_ms > now_ms:
                continue
            if not self._exists(queue_key):
                continue
            if not is_own:
                fault = fault or self._limit_fault(group, sender)
                if fault is not None:
                    continue
                self._touch(group, queue_key)
            renewed_by = sender
            if lease is not None and is_own and not owner.speaks(lease, sender):
                renewed_by = lease.sender
            self._put(group, queue_key, Lease(client_id, now_ms + self._lease_ms, renewed_by))
            granted.append(queue)
        if fault is not None and not granted:
            raise fault
        return granted

    def unlock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], sender: Sender = UNKNOWN
    ) -> None:
        """Releases the queues that are the client's, if it is the client that asks; others stay."""
        leases = self._leases.get(group, {})
        owner = _Owner(self._clients, group, client_id)
        for queue in queues:
            queue_key = (queue.topic, queue.queue_id)
            lease = leases.get(queue_key)
            is_own = lease is not None and lease.client_id == client_id
            if lease is not None and is_own and owner.speaks(lease, sender):
                self._drop(group, queue_key)
                self._touch(group, queue_key)

    def _limit_fault(self, group: str, sender: Sender) -> Refused | None:
        """Why this sender gets no further lock in the group."""
        limits = self._limits
        per_connection = limits.per_connection_max
        name = "queue_locks_per_connection_max"
        if not self._is_member(group, sender):
            per_connection = min(per_connection, limits.per_stranger_max)
            name += " for groups that it is not a member of"
        if self._of_connection[sender.connection] >= per_connection:
            who, limit = "one connection", f"{per_connection} queues ({name})"
        elif self._of_host[sender.host] >= limits.per_host_max:
            who, limit = f"address {sender.host}", f"{limits.per_host_max} queues (half of queue_locks_max)"
        elif self._count >= limits.total_max:
            who, limit = "all clients", f"{limits.total_max} queues (queue_locks_max)"
        else:
            return None
        return Refused(
            ResponseCode.SYSTEM_BUSY,
            f"[OVERLOAD] {who} may lock {limit} at the same time: unlock some, or try again later",
        )

    def _is_member(self, group: str, sender: Sender) -> bool:
        live = None if self._clients is None else self._clients.consumer_group(group)
        return live is not None and sender.connection in live.members

    def held_by(self, group: str, client_id: str) -> Held:
        """The queues that a client has locked, and when each lease ends."""
        leases = self._leases.get(group, {})
        return {key: leases[key].ends_ms for key in self._of_client.get((group, client_id), ())}

    def release(self, group: str, client_id: str, held: Held) -> int:
        """Takes queues away from a client, unless it has renewed them since `held`. Returns how many."""
        leases = self._leases.get(group, {})
        released = 0
        for queue_key, ends_ms in held.items():
            lease = leases.get(queue_key)
            if lease is not None and lease == Lease(client_id, ends_ms):
                self._drop(group, queue_key)
                self._touch(group, queue_key)
                released += 1
        return released

    def has_lease(self, group: str) -> bool:
        """Whether some queue of the group is locked now."""
        now_ms = self._clock.now_ms()
        return any(lease.ends_ms > now_ms for lease in self._leases.get(group, {}).values())

    def forget_expired(self) -> Iterator[None]:
        """Gives up leases that have ended. Other work may have its turn after each step."""
        now_ms = self._clock.now_ms()
        looked_at = 0
        for group in list(self._leases):
            for queue_key in list(self._leases.get(group, ())):
                lease = self._leases.get(group, {}).get(queue_key)
                if lease is not None and lease.ends_ms <= now_ms:
                    self._drop(group, queue_key)
                    self._touch(group, queue_key)
                looked_at += 1
                if looked_at % QUEUES_AT_ONCE == 0:
                    yield

    def shift_time(self, by_ms: int) -> None:
        """Extends all leases after the clock was set or this process did not run: nobody could renew."""
        for leases in self._leases.values():
            for lease in leases.values():
                lease.ends_ms += by_ms

    @handles(LockBatchQueues)
    async def lock_batch_queues(self, command: LockBatchQueues, request: Request) -> Response:
        asked = await self._read(request)
        granted = await self._lock_in_steps(asked, _sender(request))
        is_new = self._unwritten.is_behind
        try:
            await self.keep()
            if is_new and self._replicated is not None:
                # The next master must know the owner, or it could let another consumer read the queue.
                await self._replicated()
        except NotWritten as error:
            # A full disk must not keep anybody from reading.
            _log.error("locks of group %s are not written yet: %s", asked.consumer_group, error)
        body = LockBatchResponseBody(lock_ok_mq_set=granted)
        if len(granted) <= QUEUES_AT_ONCE:
            return Response(body=body.encode())
        return Response(body=await self._pools.look_ups.run(request, body.encode))

    async def _lock_in_steps(self, asked: LockBatchRequestBody, sender: Sender) -> list[MessageQueue]:
        granted: list[MessageQueue] = []
        for first in range(0, len(asked.mq_set), QUEUES_AT_ONCE):
            queues = asked.mq_set[first : first + QUEUES_AT_ONCE]
            try:
                granted += self.lock(asked.consumer_group, asked.client_id, queues, sender)
            except Refused:
                # It may own some of the queues that are left.
                if first + QUEUES_AT_ONCE >= len(asked.mq_set) and not granted:
                    raise
            await asyncio.sleep(0)
        return granted

    @handles(UnlockBatchQueues)
    def unlock_batch_queues(self, command: UnlockBatchQueues, request: Request) -> Awaitable[None] | None:
        if not is_short(request.body):
            return self._unlock_later(request)
        asked = _checked(LockBatchRequestBody.decode(request.body))
        if len(asked.mq_set) > QUEUES_AT_ONCE:
            return self._unlock_in_steps(asked, _sender(request))
        self.unlock(asked.consumer_group, asked.client_id, asked.mq_set, _sender(request))
        return None

    async def _unlock_later(self, request: Request) -> None:
        await self._unlock_in_steps(await self._read(request), _sender(request))

    async def _unlock_in_steps(self, asked: LockBatchRequestBody, sender: Sender) -> None:
        for first in range(0, len(asked.mq_set), QUEUES_AT_ONCE):
            queues = asked.mq_set[first : first + QUEUES_AT_ONCE]
            self.unlock(asked.consumer_group, asked.client_id, queues, sender)
            await asyncio.sleep(0)

    async def _read(self, request: Request) -> LockBatchRequestBody:
        body = request.body
        return _checked(await read_body(self._pools.reading, request, body, LockBatchRequestBody))

    def _put(self, group: str, queue_key: QueueKey, lease: Lease) -> None:
        of_group = self._leases.setdefault(group, {})
        before = of_group.get(queue_key)
        if before is not None:
            self._forget(group, queue_key, before)
        of_group[queue_key] = lease
        self._note(group, queue_key, lease)

    def _drop(self, group: str, queue_key: QueueKey) -> None:
        of_group = self._leases.get(group, {})
        lease = of_group.pop(queue_key, None)
        if lease is not None:
            self._forget(group, queue_key, lease)
        if not of_group:
            self._leases.pop(group, None)

    def _note(self, group: str, queue_key: QueueKey, lease: Lease) -> None:
        self._of_client.setdefault((group, lease.client_id), {})[queue_key] = None
        self._add(lease.sender, 1)

    def _forget(self, group: str, queue_key: QueueKey, lease: Lease) -> None:
        of_client = self._of_client[group, lease.client_id]
        del of_client[queue_key]
        if not of_client:
            del self._of_client[group, lease.client_id]
        self._add(lease.sender, -1)

    def _add(self, sender: Sender, more: int) -> None:
        self._count += more
        self._of_connection[sender.connection] += more
        if not self._of_connection[sender.connection]:
            del self._of_connection[sender.connection]
        self._of_host[sender.host] += more
        if not self._of_host[sender.host]:
            del self._of_host[sender.host]

    def _touch(self, group: str, queue_key: QueueKey) -> None:
        self._unwritten.touch(TABLE, f"{group}@{queue_key[0]}@{queue_key[1]}")

    def _value_of(self, table: str, key: str) -> bytes | None:
        group, queue_key = _read_key(key)
        lease = self._leases.get(group, {}).get(queue_key)
        return None if lease is None else lease.client_id.encode()

    def _exists(self, queue_key: QueueKey) -> bool:
        topic = self._topics.get(queue_key[0])
        return topic is not None and 0 <= queue_key[1] < max(topic.read_queue_nums, topic.write_queue_nums)


def _sender(request: Request) -> Sender:
    return Sender(request.connection, source_of(request.remote))


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
