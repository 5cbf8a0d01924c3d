"""Shares the places of a name server among the machines that register brokers.

Everybody may register, so one machine could use up the places of all. These rules leave room:

- One machine has at most `nameserver_brokers_per_address_max` brokers.
- A broker that leaves may come back: nobody else gets its place, or the room of its topics, for as long as it
  was there, at least `RESERVED_MS_MIN` and at most `RESERVED_MS_MAX`. When it is back, its former time
  counts.
- If all places are taken, a newcomer gets one from the machine that has the most, if that one has at least
  two more. First go places that are kept for brokers that left. Then go brokers that came within
  `NEWCOMER_MS`: those first that register a host from which they do not connect, the latest first. Brokers
  that have been there for longer keep their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from metaq.nameserver.brokers import NEWCOMER_MS, Broker, Party, Registration
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import source_of
from metaq.protocol.names import MASTER_ID
from metaq.settings import NameServerSettings

RESERVED_MS_MIN: Final = 30_000
RESERVED_MS_MAX: Final = 3_600_000


@dataclass(slots=True)
class Reserved:
    """The place of a broker that left."""

    name: str
    broker_id: int
    party: Party
    held_ms: int
    left_ms: int
    until_ms: int
    topics: int
    """The topics that it had and that nobody else has under its name."""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.name, self.party.address, self.party.owner

    def is_of(self, new: Registration) -> bool:
        """Whether a registration is that of the broker that left."""
        if self.name != new.name:
            return False
        if self.party.key is not None or new.key is not None:
            same = self.party.has_same_key(new.party)
        else:
            same = self.party.source == source_of(new.remote)
        return same and (self.party.address == new.address or self.broker_id == new.broker_id)


class Shares:
    """How many places each machine has, and the places that are kept for brokers that left."""

    def __init__(self, limits: NameServerSettings) -> None:
        self._limits = limits
        self._reserved: dict[tuple[str, str, str], Reserved] = {}
        """By name, address and owner."""
        self._by_source: Counter[str] = Counter()
        """Machine → its brokers and the places that are kept for it."""
        self.reserved_topics = 0

    @property
    def reserved(self) -> Collection[Reserved]:
        """The places that are kept."""
        return self._reserved.values()

    def free(self, kept: Reserved) -> None:
        """Gives a place away that was kept."""
        self._drop(kept.place)

    def came(self, broker: Broker) -> None:
        self._by_source[broker.party.source] += 1

    def left(self, broker: Broker) -> None:
        self._give_back(broker.party.source)

    def keep_place(self, broker: Broker, now_ms: int, topics: int) -> None:
        """Keeps the place of a broker that left, with room for this many topics."""
        held_ms = max(now_ms - broker.joined_ms, 0)
        until_ms = now_ms + min(max(held_ms, RESERVED_MS_MIN), RESERVED_MS_MAX)
        kept = Reserved(broker.name, broker.broker_id, broker.party, held_ms, now_ms, until_ms, topics)
        self._drop(kept.place)
        self._reserved[kept.place] = kept
        self._by_source[broker.party.source] += 1
        self.reserved_topics += topics

    def reserved_for(self, new: Registration) -> Reserved | None:
        """The place that is kept for this broker."""
        of_name = [kept for kept in self._reserved.values() if kept.is_of(new)]
        return max(of_name, key=lambda kept: kept.party.address == new.address, default=None)

    def reserved_master(self, name: str) -> Reserved | None:
        """The place that is kept for a master of this name."""
        of_name = (
            kept for kept in self._reserved.values() if (kept.name, kept.broker_id) == (name, MASTER_ID)
        )
        return max(of_name, key=lambda kept: kept.held_ms, default=None)

    def took(self, kept: Reserved) -> None:
        """Its broker is back."""
        self._drop(kept.place)

    def expire(self, now_ms: int) -> None:
        """Frees places whose brokers have stayed away for too long."""
        for place in [place for place, kept in self._reserved.items() if kept.until_ms < now_ms]:
            self._drop(place)

    def shift_time(self, by_ms: int) -> None:
        for kept in self._reserved.values():
            kept.left_ms += by_ms
            kept.until_ms += by_ms

    def room_for(
        self, new: Registration, brokers: Collection[Broker], members: Collection[Broker], now_ms: int
    ) -> list[Broker]:
        """Returns the brokers that make room for a new one without a place. Raises Refused if there is no
        room; then nothing has changed."""
        limits, source = self._limits, source_of(new.remote)
        self.expire(now_ms)
        leaving: list[Broker] = []
        if self._by_source[source] >= limits.nameserver_brokers_per_address_max:
            victim = self._newcomer(source, brokers, now_ms, new.party)
            if victim is None:
                raise _full(
                    f"{limits.nameserver_brokers_per_address_max} brokers from {source}",
                    "nameserver_brokers_per_address_max",
                )
            leaving.append(victim)
        elif len(brokers) + len(self._reserved) >= limits.nameserver_brokers_max:
            leaving += self._made_room(
                new,
                brokers,
                self._reserved.values(),
                now_ms,
                limits.nameserver_brokers_max,
                "nameserver_brokers_max",
            )
        kept = [kept for kept in self._reserved.values() if kept.name == new.name]
        of_name = [member for member in members if member not in leaving]
        if len(of_name) + len(kept) >= limits.nameserver_members_max:
            what, option = f"under the name {new.name}", "nameserver_members_max"
            leaving += self._made_room(
                new, of_name, kept, now_ms, limits.nameserver_members_max, option, what
            )
        return leaving

    def _made_room(
        self,
        new: Registration,
        brokers: Collection[Broker],
        kept: Iterable[Reserved],
        now_ms: int,
        limit: int,
        option: str,
        what: str = "",
    ) -> list[Broker]:
        """Frees a kept place of the machine that has the most of these places, or returns its newcomer."""
        source, reserved = source_of(new.remote), list(kept)
        counts = Counter(broker.party.source for broker in brokers)
        counts.update(one.party.source for one in reserved)
        [(busiest, count)] = counts.most_common(1)
        if busiest == source or count < counts[source] + 2:
            victim = self._newcomer(source, brokers, now_ms, new.party)
        else:
            of_busiest = [one for one in reserved if one.party.source == busiest]
            if of_busiest:
                self._drop(min(of_busiest, key=lambda one: one.held_ms).place)
                return []
            victim = self._newcomer(busiest, brokers, now_ms)
        if victim is None:
            raise _full(f"{limit} brokers {what}".rstrip(), option)
        return [victim]

    def _newcomer(
        self, source: str, brokers: Iterable[Broker], now_ms: int, against: Party | None = None
    ) -> Broker | None:
        """The broker of a machine that has proved least. `against` is a claimant from the same machine: it
        has to connect from the host that it registers, and the broker not."""
        if against is not None and not against.is_at_its_address:
            return None
        newcomers = [
            broker
            for broker in brokers
            if broker.party.source == source
            and now_ms - broker.joined_ms < NEWCOMER_MS
            and (against is None or not broker.party.is_at_its_address)
        ]
        return max(
            newcomers,
            key=lambda broker: (not broker.party.is_at_its_address, broker.joined_ms),
            default=None,
        )

    def _drop(self, place: tuple[str, str, str]) -> None:
        kept = self._reserved.pop(place, None)
        if kept is not None:
            self.reserved_topics -= kept.topics
            self._give_back(kept.party.source)

    def _give_back(self, source: str) -> None:
        self._by_source[source] -= 1
        if self._by_source[source] <= 0:
            del self._by_source[source]


def _full(what: str, option: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_BUSY, f"there are already {what} ({option} of the name server)")
