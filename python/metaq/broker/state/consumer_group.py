"""A consumer group's live members, and what they subscribe to."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from metaq.broker.state.client_limits import Size
from metaq.protocol.bodies import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    SubscriptionData,
)

VERSION_SKEW_MS = 60_000
"""Clients number the versions of their subscriptions by their clocks. A version counts as at most this much
newer than now, so that nobody can announce one that stays the newest."""
GROUP_TOPICS_MAX = 2_000
"""Topics that a group shows as subscribed to. Its members subscribe to the same ones, up to 1,000. A member
gets the messages of its own subscriptions in any case."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Change(Enum):
    """The effect of a heartbeat or a farewell on a group."""

    NOTHING = 0
    FILTERS = 1
    """The data plane needs the new filters; the shares of the consumers stay."""
    SHARES = 2
    """Its consumers must divide the queues again."""


@dataclass(slots=True)
class Member:
    """One client program in one group, on one connection."""

    connection: int
    client_id: str
    language: int
    version: int
    remote: str
    seen_ms: int
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic; none for a producer."""
    announced: dict[str, int] = field(default_factory=dict)
    """By topic, the versions that the client gave, where they are too high to count."""
    broadcasting: bool = False
    fingerprint: int = 0
    """The hash that the client gave with its last full heartbeat; 0 if it gave none."""
    size: Size | None = None
    """The memory that is counted for it."""
    client_version: str | None = None
    """The version of its own software, if it told it; `version` is that of RocketMQ's protocol."""
    standing: object = None
    """Its subscriptions as the data plane keeps them."""

    def version_of(self, topic: str) -> int:
        """The version that the client gave to its subscription. Its pulls give the same one."""
        return self.announced.get(topic, self.subscriptions[topic].sub_version)

    def announced_subscriptions(self) -> dict[str, SubscriptionData]:
        """Its subscriptions with the versions that it gave."""
        return self.subscriptions | {
            topic: msgspec.structs.replace(self.subscriptions[topic], sub_version=version)
            for topic, version in self.announced.items()
        }

    def subscribe(self, entries: Iterable[SubscriptionData], known: Member | None, now_ms: int) -> None:
        """Takes the subscriptions of a heartbeat. `known` is the same member before it."""
        newest_ms = now_ms + VERSION_SKEW_MS
        for entry in entries:
            version = min(max(entry.sub_version, INT64_MIN), INT64_MAX)
            if version > newest_ms:
                self.announced[entry.topic] = version
                entry = msgspec.structs.replace(entry, sub_version=newest_ms)
                if known is not None and known.announced.get(entry.topic) == version:
                    # The same heartbeat again changes nothing.
                    entry.sub_version = known.subscriptions[entry.topic].sub_version
            else:
                self.announced.pop(entry.topic, None)
            self.subscriptions[entry.topic] = entry

    def gets_the_same(self, other: Member) -> bool:
        """Whether the pulls of both get the same messages."""
        return (self.broadcasting, self.announced, self.subscriptions) == (
            other.broadcasting,
            other.announced,
            other.subscriptions,
        )


class ConsumerGroup:
    """A group's live consumers. Each member gets messages by its own subscriptions and its own mode."""

    def __init__(self, name: str, closed: Container[int] = frozenset()) -> None:
        """Members on `closed` connections are about to be removed."""
        self.name = name
        self._closed = closed
        self.consume_type = CONSUME_PASSIVELY
        self.consume_from_where = CONSUME_FROM_LAST_OFFSET
        self.members: dict[int, Member] = {}
        """By connection."""
        self.subscriptions: dict[str, SubscriptionData] = {}
        """By topic, for those who ask about the group: the newest if members differ."""
        self._subscribers: dict[str, dict[int, None]] = {}
        """Topic → the connections of its members that subscribe to it."""
        self._client_ids: Counter[str] = Counter()
        self._sorted_ids: list[str] = []
        """The same ids in order: all members ask for them at the same time."""
        self._broadcasters = 0

    @property
    def broadcasting(self) -> bool:
        """Whether all members are in broadcast mode."""
        return 0 < len(self.members) == self._broadcasters

    @property
    def message_model(self) -> str:
        return BROADCASTING if self.broadcasting else CLUSTERING

    def client_ids(self) -> list[str]:
        """Each id once, in order. Every consumer must compute the same shares from this list, and a client
        that has just reconnected can be here twice for a moment."""
        return list(self._sorted_ids)

    def has_client(self, client_id: str) -> bool:
        return client_id in self._client_ids

    def find(self, client_id: str, heard_since_ms: int) -> Member | None:
        """The member with this id. If several claim it, the first one that was heard since then: the later
        ones may be impostors. If none was, the last one, which may have just reconnected."""
        found = [member for member in self.present() if member.client_id == client_id]
        heard = (member for member in found if member.seen_ms >= heard_since_ms)
        return next(heard, found[-1] if found else None)

    def present(self) -> list[Member]:
        """The members whose connections are open."""
        return [member for member in list(self.members.values()) if member.connection not in self._closed]

    def put(self, member: Member) -> Change:
        """Adds or replaces the member. The cost does not grow with the number of members."""
        known = self.members.get(member.connection)
        ids_before, shown_before = len(self._client_ids), self._shown(member, known)
        if known is not None and known.client_id != member.client_id:
            self._count_out(known)
        is_new_id = member.client_id not in self._client_ids
        if known is None or known.client_id != member.client_id:
            self._client_ids[member.client_id] += 1
        if is_new_id:
            insort(self._sorted_ids, member.client_id)
        self.members[member.connection] = member
        self._broadcasters += member.broadcasting - (known is not None and known.broadcasting)
        for topic, subscription in member.subscriptions.items():
            self._subscribers.setdefault(topic, {})[member.connection] = None
            newest = self.subscriptions.get(topic)
            if newest is None and len(self.subscriptions) >= GROUP_TOPICS_MAX:
                continue
            if newest is None or subscription.sub_version >= newest.sub_version:
                self.subscriptions[topic] = subscription
        if known is not None:
            self._let_go(known)
        return self._compared(is_new_id or ids_before != len(self._client_ids), shown_before)

    def remove(self, connection: int) -> Change:
        known = self.members.pop(connection, None)
        if known is None:
            return Change.NOTHING
        ids_before, shown_before = len(self._client_ids), self._shown(known)
        self._broadcasters -= known.broadcasting
        self._count_out(known)
        self._let_go(known)
        return self._compared(ids_before != len(self._client_ids), shown_before)

    def _shown(self, *members: Member | None) -> dict[str, SubscriptionData | None]:
        """The group's subscriptions to the topics of these members. It may have many more topics."""
        topics = [topic for member in members if member is not None for topic in member.subscriptions]
        return {topic: self.subscriptions.get(topic) for topic in topics}

    def _compared(self, ids_changed: bool, shown_before: dict[str, SubscriptionData | None]) -> Change:
        shown = [(before, self.subscriptions.get(topic)) for topic, before in shown_before.items()]
        if ids_changed or any((before is None) != (now is None) for before, now in shown):
            return Change.SHARES
        return Change.FILTERS if any(before != now for before, now in shown) else Change.NOTHING

    def _count_out(self, member: Member) -> None:
        self._client_ids[member.client_id] -= 1
        if self._client_ids[member.client_id] == 0:
            del self._client_ids[member.client_id]
            del self._sorted_ids[bisect_left(self._sorted_ids, member.client_id)]

    def _let_go(self, former: Member) -> None:
        """Finds the next newest subscription for each topic where the former member's was the newest. The
        cost grows with the members that subscribe to the same topic, not with all of them."""
        successor = self.members.get(former.connection)
        if successor is not None and successor.subscriptions is former.subscriptions:
            return
        for topic, subscription in former.subscriptions.items():
            subscribers = self._subscribers.get(topic, {})
            if successor is None or topic not in successor.subscriptions:
                subscribers.pop(former.connection, None)
            if not subscribers:
                self._subscribers.pop(topic, None)
            if self.subscriptions.get(topic) is not subscription:
                continue
            others = [self.members[connection].subscriptions[topic] for connection in subscribers]
            if others:
                self.subscriptions[topic] = max(others, key=lambda entry: entry.sub_version)
            else:
                del self.subscriptions[topic]
