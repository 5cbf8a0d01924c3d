"""Decides whether a broker may take a place that another one holds.

A place is an id under a broker name, the cluster of a broker name, or an address. Without access control
anybody may claim any place, so a living broker keeps its own, whatever id, epoch or address a claim names:

- The connection that registered a broker may change it. Its end makes the place free, so a broker that was
  killed meets nobody when it comes back.
- A place whose holder was silent for longer than any broker stays silent is free.
- A claimant with the key of the holder is the same broker, or a node of its group. It gets the address at
  once, and the id with a newer epoch (`stateVersion`). MetaQ's brokers have keys, so a master switch needs
  no wait. A copy of a broker, at another address with the same epoch, does not replace the original.
- In a group without a common key, the former master leaves its id first: it registers as a replica over its
  own connection. If it hangs, a member with a newer epoch gets the id once the master has missed three of the
  signs of life that such groups send every second.
- A claimant that has held the place for longer than the present holder gets it back: at once with its key,
  otherwise after `PATIENCE_MS`. So a broker wins its place back from a liar that came while it was away.
- A holder that has just come, and from another host than it registers, loses the place after `PATIENCE_MS` to
  a claimant that connects from the host that it registers. It loses the address even if it came long ago.
- A claimant with the key of the master gets the id of a replica that has another key or none.
- Everybody else is refused for as long as the holder lives, and the log names both.

A former master that does not know of a newer one is refused, too. In a group with a register it gives up
within seconds, because its lease ends, long before its patience would be rewarded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from metaq.nameserver.brokers import LIVING_MS, Broker, Party, Registration
from metaq.protocol.handling.peer_log import peer_log

_log = logging.getLogger(__name__)

EPOCH_MAX: Final = 2**31 - 1
EPOCH_STEP_MAX: Final = 1_000
"""How many switches of a master a name server may have missed while it knows the group."""
PATIENCE_MS: Final = 30_000
BEATING_EXPIRY_MS_MAX: Final = 15_000
"""A broker that asks to be forgotten so soon sends a sign of life every second."""
MISSED_BEATS_MS: Final = 3_000
CLAIMANTS_MAX: Final = 16
"""Claimants of one place that are remembered."""
TENURES_MAX: Final = 4_096
"""Former holders that are remembered, with the time for which they held their place."""
LOG_INTERVAL_MS: Final = 60_000


@dataclass(slots=True)
class _Claim:
    since_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Tenure:
    """How long a party had a place."""

    place: str
    owner: str
    source: str
    """The machine from which the party connected."""
    held_ms: int


class Tenures:
    """How long former holders had a place."""

    def __init__(self) -> None:
        self._tenures: dict[tuple[str, str], Tenure] = {}

    def __len__(self) -> int:
        return len(self._tenures)

    def __iter__(self) -> Iterator[Tenure]:
        return iter(self._tenures.values())

    def of(self, place: str, owner: str) -> int:
        tenure = self._tenures.get((place, owner))
        return 0 if tenure is None else tenure.held_ms

    def add(self, place: str, party: Party, held_ms: int) -> None:
        if held_ms <= 0:
            return
        former_ms = self.of(place, party.owner)
        self.restore([Tenure(place, party.owner, party.source, former_ms + held_ms)])

    def restore(self, tenures: Iterable[Tenure]) -> None:
        """Takes tenures as they are, in place of others of the same party."""
        for tenure in tenures:
            self._tenures[tenure.place, tenure.owner] = tenure
            if len(self._tenures) > TENURES_MAX:
                self._forget_some()

    def _forget_some(self) -> None:
        """Forgets the shortest tenures of the machine that has the most."""
        [(busiest, count)] = Counter(tenure.source for tenure in self._tenures.values()).most_common(1)
        of_busiest = [key for key, tenure in self._tenures.items() if tenure.source == busiest]
        of_busiest.sort(key=lambda key: self._tenures[key].held_ms)
        for key in of_busiest[: min(count, TENURES_MAX // 8)]:
            del self._tenures[key]


class Claims:
    """The claims that were refused, and by whom."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, _Claim]] = {}
        self.tenures = Tenures()
        self._logged_ms: dict[str, int] = {}

    def refuse(
        self, place: str, claimant: Party, holder: Party, now_ms: int, held_ms: int, words: tuple[str, str]
    ) -> bool:
        """Notes a claim against a holder that has had the place for `held_ms`. Returns False if the claimant
        gets the place. `words` name the claimant and the holder in the log."""
        claims = self._claims.setdefault(place, {})
        for owner in [owner for owner, claim in claims.items() if now_ms - claim.last_ms > LIVING_MS]:
            del claims[owner]
        patience_ms = self._patience_ms(place, claimant, holder, held_ms)
        claim = claims.get(claimant.owner)
        if claim is None and patience_ms is not None:
            if len(claims) >= CLAIMANTS_MAX:
                del claims[max(claims, key=lambda owner: claims[owner].since_ms)]
            claim = claims[claimant.owner] = _Claim(now_ms, now_ms)
        if claim is not None:
            claim.last_ms = now_ms
            if patience_ms is not None and now_ms - claim.since_ms >= patience_ms:
                peer_log.write(
                    _log,
                    logging.WARNING,
                    claimant.remote,
                    "%s (from %s) has claimed %s for %d s and gets it from %s: one of the two lies",
                    *(words[0], claimant.remote, place, (now_ms - claim.since_ms) // 1000, words[1]),
                )
                return False
        if now_ms - self._logged_ms.get(place, now_ms - LOG_INTERVAL_MS) >= LOG_INTERVAL_MS:
            self._logged_ms[place] = now_ms
            peer_log.write(
                _log,
                logging.WARNING,
                claimant.remote,
                "%s (from %s) claims %s and is refused, because %s holds it",
                *(words[0], claimant.remote, place, words[1]),
            )
        return True

    def _patience_ms(self, place: str, claimant: Party, holder: Party, held_ms: int) -> int | None:
        """How long a claimant has to go on; None if it gets the place only when the holder is gone."""
        is_at_home, holder_is = claimant.is_at_its_address, holder.is_at_its_address
        # An address belongs to its host, however long somebody else has had it.
        is_about_host = place == address_place(claimant.address)
        if is_about_host and holder_is and not is_at_home:
            return None
        holder_ms = held_ms + self.tenures.of(place, holder.owner)
        if self.tenures.of(place, claimant.owner) > holder_ms:
            return PATIENCE_MS if claimant.key is None else 0
        is_young = holder_ms <= PATIENCE_MS or claimant.owner in self._claims[place]
        if (is_young or is_about_host) and is_at_home and not holder_is:
            return PATIENCE_MS
        return None

    def withdraw(self, place: str, claimant: Party) -> None:
        """The claimant has this place now, or another one."""
        self._claims.get(place, {}).pop(claimant.owner, None)

    def forget(self, place: str) -> None:
        """The place is free."""
        self._claims.pop(place, None)
        self._logged_ms.pop(place, None)

    def shift_time(self, by_ms: int) -> None:
        """Shifts all times, after the clock jumped."""
        for claims in self._claims.values():
            for claim in claims.values():
                claim.since_ms += by_ms
                claim.last_ms += by_ms
        for place in self._logged_ms:
            self._logged_ms[place] += by_ms


def may_follow(new: Registration, holder: Broker, member: Broker | None, now_ms: int) -> bool:
    """Whether a claimant of a living holder's id is the next master of the same group. `member` is the broker
    that is registered at the claimant's address."""
    held_epoch = holder.version.state_version
    if not held_epoch < new.epoch <= held_epoch + EPOCH_STEP_MAX:
        return False
    if new.party.has_same_key(holder.party):
        return True
    return (
        member is not None
        and (member.name, member.connection) == (new.name, new.connection)
        and holder.expiry_ms <= BEATING_EXPIRY_MS_MAX
        and now_ms - holder.seen_ms > MISSED_BEATS_MS
    )


def id_place(name: str, broker_id: int) -> str:
    return f"id {broker_id} of {name}"


def cluster_place(name: str) -> str:
    return f"the cluster of {name}"


def address_place(address: str) -> str:
    return f"the address {address}"
