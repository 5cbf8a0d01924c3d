"""Decides whether a broker may take a place that another one holds.

A place is an id under a broker name, the cluster of a broker name, or an address. Without access control
anybody may claim any place, so a claim is judged by what can be true:

- A place whose holder was silent for longer than any broker stays silent is free.
- A member of the same group may take an id at once, if it claims the same epoch (`stateVersion`) or a
  slightly newer one. So a master switch needs no wait: the new master was registered as a replica before.
  Apache's brokers without a controller have epoch 0 before and after a switch.
- Everybody else is refused. A broker that was restarted at another address does not meet its former self,
  because the end of a connection removes its broker.
- A claimant that is refused and keeps registering for `PATIENCE_MS` gets the place, if it has held it for
  longer than the present holder, or if that one had just come. So a broker whose place was taken by a liar,
  whatever epoch that one claims, wins it back.
- Any other claimant gets it after `STRANGER_PATIENCE_MS`. So a liar that never gives up has the place of a
  living broker for half a minute in an hour, and the log names both.

A former master that does not know of a newer one is refused, too. In a group with a register it gives up
within seconds, because its lease ends, long before its patience would be rewarded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from metaq.protocol.handling.peer_log import peer_log

_log = logging.getLogger(__name__)

EPOCH_MAX: Final = 2**31 - 1
EPOCH_STEP_MAX: Final = 1_000
"""How many switches of a master a name server may have missed while it knows the group."""
LIVING_MS: Final = 75_000
"""No broker is silent for longer: all of them register at least once a minute."""
PATIENCE_MS: Final = 30_000
STRANGER_PATIENCE_MS: Final = 3_600_000
"""The same for a claimant that is up against somebody who has held the place for longer."""
CLAIMANTS_MAX: Final = 16
"""Claimants of one place that are remembered."""
TENURES_MAX: Final = 4_096
"""Former holders that are remembered, with the time for which they held their place."""
LOG_INTERVAL_MS: Final = 60_000


@dataclass(slots=True)
class _Claim:
    since_ms: int
    last_ms: int
    patience_ms: int
    has_lost: bool = False
    """It held the place and lost it to a patient claimant, so it needs patience itself."""


class Claims:
    """The claims that were refused, and by whom."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, _Claim]] = {}
        self._tenures_ms: dict[tuple[str, str], int] = {}
        """How long former holders had a place, the latest last."""
        self._logged_ms: dict[str, int] = {}

    def is_contested(self, place: str, claimant: str) -> bool:
        """Whether the claimant lost this place to a patient one."""
        claim = self._claims.get(place, {}).get(claimant)
        return claim is not None and claim.has_lost

    def refuse(
        self, place: str, claimant: str, holder: str, remote: str, now_ms: int, held_ms: int = 0
    ) -> bool:
        """Notes a claim against a holder that has had the place for `held_ms`. Returns False if the claimant
        was patient and gets the place."""
        claims = self._claims.setdefault(place, {})
        for name in [name for name, claim in claims.items() if now_ms - claim.last_ms > LIVING_MS]:
            del claims[name]
        claim = claims.get(claimant)
        if claim is not None and now_ms - claim.since_ms >= claim.patience_ms:
            peer_log.write(
                _log,
                logging.WARNING,
                remote,
                "%s (from %s) has claimed %s for %d s and gets it from %s: one of them is not what it says",
                *(claimant, remote, place, (now_ms - claim.since_ms) // 1000, holder),
            )
            return False
        if claim is not None:
            claim.last_ms = now_ms
        elif len(claims) < CLAIMANTS_MAX:
            claims[claimant] = _Claim(now_ms, now_ms, self._patience_ms(place, claimant, holder, held_ms))
        if now_ms - self._logged_ms.get(place, now_ms - LOG_INTERVAL_MS) >= LOG_INTERVAL_MS:
            self._logged_ms[place] = now_ms
            peer_log.write(
                _log,
                logging.WARNING,
                remote,
                "%s (from %s) claims %s and is refused, because %s holds it",
                *(claimant, remote, place, holder),
            )
        return True

    def taken(self, place: str, claimant: str, former: str, now_ms: int, held_ms: int = 0) -> None:
        """The claimant has taken the place from its former holder, which may win it back."""
        claims = self._claims.setdefault(place, {})
        claim = claims.pop(claimant, None)
        was_patient = claim is not None and now_ms - claim.since_ms >= claim.patience_ms
        self.left(place, former, held_ms)
        claims[former] = _Claim(now_ms, now_ms, self._patience_ms(place, former, claimant, 0), was_patient)

    def left(self, place: str, former: str, held_ms: int) -> None:
        """Remembers for how long the place was held."""
        tenure_ms = self._tenures_ms.pop((place, former), 0) + held_ms
        self._tenures_ms[(place, former)] = tenure_ms
        while len(self._tenures_ms) > TENURES_MAX:
            del self._tenures_ms[next(iter(self._tenures_ms))]

    def _patience_ms(self, place: str, claimant: str, holder: str, held_ms: int) -> int:
        """How long a claimant has to go on: not long if it has the older right."""
        holder_ms = held_ms + self._tenures_ms.get((place, holder), 0)
        is_young = holder_ms <= PATIENCE_MS
        is_senior = self._tenures_ms.get((place, claimant), 0) >= holder_ms
        return PATIENCE_MS if is_young or is_senior else STRANGER_PATIENCE_MS

    def withdraw(self, place: str, claimant: str) -> None:
        """The claimant has another place now."""
        self._claims.get(place, {}).pop(claimant, None)

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


def id_place(name: str, broker_id: int) -> str:
    return f"id {broker_id} of {name}"


def cluster_place(name: str) -> str:
    return f"the cluster of {name}"


def address_place(address: str) -> str:
    return f"the address {address}"
