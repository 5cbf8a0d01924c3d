"""A master's end of the links to its replicas, for one epoch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from metaq._core import LinkSocket, ReplicationHub, Store
from metaq.broker.replication.state_stream import StateFeed
from metaq.ha.epochs import History
from metaq.ha.group_record import Member
from metaq.ha.handshake import Follow
from metaq.ha.node import Clock, LinkFacts
from metaq.ha.view import StateVersion
from metaq.journal.journal import Journal, Point
from metaq.settings import ReplicationSettings

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.02
"""How long the links are left alone after a look. Under load, nearly every acknowledgement is a reason to
look, and each look decides about the whole group."""


class ReplicaLinks:
    """The links of one lifetime as master. All methods belong to the event loop."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        settings: ReplicationSettings,
        history: History,
        own: Member,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._own = own
        self._clock = clock
        self._changed = changed
        self._hub = ReplicationHub(store, settings, history.pairs())
        self._feed = StateFeed(journal, self._hub, settings.state_bytes_max)
        self._numbers: dict[Member, int] = {}
        """The hub knows members by number."""
        self._links: dict[Member, int] = {}
        self._required: frozenset[Member] = frozenset()
        self._has_stopped = False
        self._progressed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.TimerHandle | None = None
        self._listen()
        self.facts: Mapping[Member, LinkFacts] = {}
        """The links that live, as of the last `look`."""

    def add(self, socket: LinkSocket, member: Member, follow: Follow) -> None:
        """Serves a replica that has proved who it is. An older link of the same node ends. Raises OSError."""
        for other, link in self._links.items():
            if other.id == member.id:
                self._hub.close_link(link, "the node has connected again")
        link = self._hub.add_link(socket, self._number(member), follow.from_offset)
        self._links[member] = link
        self._feed.begin(link, Point(*follow.state))
        _log.info("node %s follows from %d on, as %s", member.id, follow.from_offset, socket.remote)
        self._look()

    def require(self, members: Iterable[Member]) -> None:
        """Sets who must hold a record before it is confirmed. In force when it returns."""
        self._required = frozenset(members) - {self._own}
        self._hub.require([self._number(member) for member in sorted(self._required)])
        self._wake()

    def look(self) -> Mapping[Member, LinkFacts]:
        """Returns the links that live now."""
        now = self._clock.now()
        by_link = {link: member for member, link in self._links.items()}
        living: dict[Member, LinkFacts] = {}
        for figures in self._hub.links():
            member = by_link.get(figures.id)
            if figures.closed is not None:
                self._feed.end(figures.id)
                _log.warning("the link to node %s has ended: %s", member or "(replaced)", figures.closed)
                if member is not None:
                    del self._links[member]
            elif member is not None:
                contact_at = now - figures.silent_ms / 1000
                living[member] = LinkFacts(
                    member, figures.held_offset, figures.state, contact_at, figures.ack_ms
                )
        self.facts = living
        return living

    async def wait_state(self, version: StateVersion, timeout_s: float) -> bool:
        """Waits until every required replica holds the control state up to there. False if that takes
        longer, or if the mastership ends."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._has_stopped and not self._hold_state(version):
                    await self._progressed.wait()
        except TimeoutError:
            return False
        # Without a mastership nobody is required any more, so it proves nothing that all of them hold it.
        return not self._has_stopped

    async def stop(self) -> None:
        """Confirms nothing more and closes every link."""
        self._has_stopped = True
        self._wake()
        if self._listening is not None:
            self._listening.cancel()
        self._loop.remove_reader(self._hub.fileno())
        self._feed.stop()
        await asyncio.to_thread(self._hub.stop)
        self._required = frozenset()

    def _hold_state(self, version: StateVersion) -> bool:
        return all(
            (link := self.facts.get(member)) is not None and link.state_version >= version
            for member in self._required
        )

    def _number(self, member: Member) -> int:
        return self._numbers.setdefault(member, len(self._numbers) + 1)

    def _listen(self) -> None:
        self._loop.add_reader(self._hub.fileno(), self._noticed)

    def _noticed(self) -> None:
        # The hub's notice stays until the next look, so nothing is missed.
        self._loop.remove_reader(self._hub.fileno())
        self._listening = self._loop.call_later(LOOK_INTERVAL_S, self._listen)
        self._look()

    def _look(self) -> None:
        self.look()
        self._wake()
        self._changed()

    def _wake(self) -> None:
        self._progressed.set()
        self._progressed = asyncio.Event()
