"""Remembers when each replica last held everything that its master had appended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from metaq.ha.group_record import Member
from metaq.ha.node import LinkFacts
from metaq.ha.view import Link, StateVersion

_SAMPLES_MAX = 64
_SAMPLE_INTERVAL_S = 0.05


class CatchUp:
    """Compares the progress of replicas with samples of the master's log end.

    Under load a replica is always a little behind. It counts as caught up at a time T once it has flushed
    everything that the master had appended at T.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, StateVersion]] = deque(maxlen=_SAMPLES_MAX)
        self._links: dict[Member, Link] = {}

    def reset(self) -> None:
        """Forgets everything; for the start of a new master."""
        self._samples.clear()
        self._links.clear()

    def observe(
        self,
        now: float,
        appended_end: int,
        state_version: StateVersion,
        connected: Mapping[Member, LinkFacts],
    ) -> Mapping[Member, Link]:
        """Takes in the state of now, and returns every replica that was ever connected to this master."""
        for member, link in self._links.items():
            if member not in connected and link.connected:
                self._links[member] = _disconnected(link)
        for member, facts in connected.items():
            before = self._links.get(member)
            caught_up_at = before.caught_up_at if before is not None else float("-inf")
            if facts.flushed_end >= appended_end and facts.state_version >= state_version:
                caught_up_at = max(caught_up_at, facts.contact_at)
            else:
                caught_up_at = max(caught_up_at, self._sample_reached(facts))
            self._links[member] = Link(
                *(member, True, facts.flushed_end, facts.state_version, facts.contact_at, caught_up_at),
                facts.ack_ms,
            )
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_INTERVAL_S:
            self._samples.append((now, appended_end, state_version))
        return dict(self._links)

    def _sample_reached(self, facts: LinkFacts) -> float:
        for at, appended_end, state_version in reversed(self._samples):
            if facts.flushed_end >= appended_end and facts.state_version >= state_version:
                return at
        return float("-inf")


def _disconnected(link: Link) -> Link:
    return Link(link.member, False, link.flushed_end, link.state_version, link.contact_at, link.caught_up_at)
