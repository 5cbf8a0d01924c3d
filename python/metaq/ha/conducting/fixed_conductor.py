"""Runs one node of a group whose roles an operator has fixed, without a register."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaq.ha.actions import Action
from metaq.ha.conducting.node_driver import NodeDriver, Peer
from metaq.ha.conducting.node_files import FIXED_GROUP
from metaq.ha.decisions.fixed import FixedView, decide_fixed
from metaq.ha.node import Clock, Files, Node
from metaq.ha.settings import HaSettings
from metaq.ha.view import Role, Source


class FixedConductor:
    """One node with a fixed role, from `run` until it is cancelled."""

    def __init__(
        self,
        node_id: int,
        master: Peer,
        replica_ids: Sequence[int],
        node: Node,
        files: Files,
        settings: HaSettings,
        clock: Clock,
        new_incarnation: Callable[[], str],
    ) -> None:
        """`replica_ids` names the replicas that a starting master waits for."""
        self._master = master
        self._replica_ids = frozenset(replica_ids)
        self._node = node
        self._settings = settings
        self._clock = clock
        self._started_at = clock.now()
        self._source: Source | None = None
        self.view: FixedView | None = None
        """The view of the last decision; None before the first."""
        self.driver = NodeDriver(node_id, node, files, settings, clock, new_incarnation, self._find_peer)
        self.driver.group_id = FIXED_GROUP

    async def run(self) -> None:
        """Plays its role until it is cancelled. Raises MetadataDamaged or OSError."""
        await self.driver.open()
        await self.driver.decide_regularly(self._decide, self._carry_out)

    def _decide(self) -> list[Action]:
        now, facts, driver = self._clock.now(), self._node.facts(), self.driver
        self._source = facts.source
        links = (
            driver.catch_up.observe(now, facts.appended_end, facts.state_version, facts.links)
            if driver.role is Role.MASTER
            else {}
        )
        self.view = FixedView(
            now=now,
            settings=self._settings,
            own=driver.look(facts),
            master=self._master.node_id,
            replica_ids=self._replica_ids,
            started_at=self._started_at,
            incomplete=driver.kept.incomplete,
            offers=facts.offers,
            links=links,
            source=facts.source,
        )
        return decide_fixed(self.view)

    async def _carry_out(self, action: Action) -> None:
        await self.driver.carry_out(action, self._source)

    def _find_peer(self, node_id: int) -> Peer | None:
        return self._master if node_id == self._master.node_id else None
