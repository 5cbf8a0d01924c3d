"""Shares the room for topics among the machines that register brokers.

- The brokers of one machine have at most `nameserver_topics_per_address_percent` of `nameserver_topics_max`.
- If there is no room left, it is taken from the machine whose brokers have the most topics, unless the
  newcomer would have as many. First goes the room that is kept for brokers that left. Then go broker names
  whose brokers all came within `NEWCOMER_MS`, from that machine: the latest first. Others keep their topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from metaq.nameserver.brokers import NEWCOMER_MS, Broker, Replicas
from metaq.nameserver.shares import Shares
from metaq.nameserver.topic_table import TopicTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import NameServerSettings


class TopicShares:
    """Decides who makes room for the topics of a broker."""

    def __init__(
        self, limits: NameServerSettings, replicas: Mapping[str, Replicas], topics: TopicTable, shares: Shares
    ) -> None:
        self._limits = limits
        self._replicas = replicas
        self._topics = topics
        self._shares = shares

    def room_for(self, name: str, source: str, added: int, kept: int, now_ms: int) -> list[Broker]:
        """Returns the brokers that make room if a broker of this name and machine adds `added` topics.
        `kept` of the places are kept for it. Raises Refused if there is no room."""
        total = self._topics.shown + self._shares.reserved_topics - kept
        limit = self._limits.nameserver_topics_max
        share = limit * self._limits.nameserver_topics_per_address_percent // 100
        if not added or total + added <= share:
            return []
        counts = self._by_source()
        # A name that had no broker until now is not in the counts.
        own = counts[source] + added - kept
        if own > max(share, 1):
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{added} more topics of {name} would be more than {share} topics from {source}: one address "
                f"may have {self._limits.nameserver_topics_per_address_percent} % of {limit} "
                "(nameserver_topics_max and nameserver_topics_per_address_percent of the name server)",
            )
        missing = total + added - limit
        return self._made_room(missing, counts, own, source, now_ms) if missing > 0 else []

    def _made_room(
        self, missing: int, counts: Counter[str], own: int, source: str, now_ms: int
    ) -> list[Broker]:
        freed, leaving = 0, list[Broker]()
        places = []
        for busiest, count in counts.most_common():
            if count <= own or busiest == source or freed >= missing:
                break
            for place in self._shares.reserved:
                if place.topics and place.party.source == busiest and freed < missing:
                    places.append(place)
                    freed += place.topics
            for replicas in self._newcomers(busiest, now_ms):
                if freed >= missing:
                    break
                leaving += replicas.brokers.values()
                freed += len(self._topics.on(replicas.name))
        if freed < missing:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"there is no room for {missing} more topics: there may be "
                f"{self._limits.nameserver_topics_max} (nameserver_topics_max of the name server)",
            )
        for place in places:
            self._shares.free(place)
        return leaving

    def _newcomers(self, source: str, now_ms: int) -> list[Replicas]:
        """The broker names with topics whose brokers have all just come from this machine, latest first."""
        found = [
            replicas
            for replicas in self._replicas.values()
            if self._topics.on(replicas.name)
            and all(
                broker.party.source == source and now_ms - broker.joined_ms < NEWCOMER_MS
                for broker in replicas.brokers.values()
            )
        ]
        return sorted(found, key=_since_ms, reverse=True)

    def _by_source(self) -> Counter[str]:
        """Machine → the topics of the broker names that it leads, and those that are kept for it."""
        counts: Counter[str] = Counter()
        for name, replicas in self._replicas.items():
            counts[replicas.brokers[min(replicas.brokers)].party.source] += len(self._topics.on(name))
        for kept in self._shares.reserved:
            counts[kept.party.source] += kept.topics
        return counts


def _since_ms(replicas: Replicas) -> int:
    return min(broker.joined_ms for broker in replicas.brokers.values())
