"""A master answers a change of its control state once the replicas in sync have it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from metaq._core import Clock as StoreClock
from metaq._core import Store
from metaq.broker.replication.replica_links import ReplicaLinks
from metaq.ha.conducting.boot_clock import BootClock
from metaq.ha.epochs import History
from metaq.ha.group_record import Member
from metaq.journal.journal import Journal
from metaq.settings import ReplicationSettings
from tests.support.broker_cluster import small_store
from tests.support.waiting import run

OWN, REPLICA = Member(1, "one"), Member(2, "two")
LONG_S = 60.0


def test_a_change_is_not_replicated_because_the_mastership_ended(tmp_path: Path) -> None:
    """Nobody is required then, and the topic was acknowledged although no replica had it."""

    async def scenario() -> None:
        store = Store(small_store(tmp_path / "m"), StoreClock())
        journal = Journal.open(tmp_path / "journal")
        history = History.of([(1, 0)])
        links = ReplicaLinks(store, journal, ReplicationSettings(), history, OWN, BootClock(), lambda: None)
        assert await links.wait_state((1, 1), LONG_S), "a master alone waits for nobody"
        links.require([OWN, REPLICA])
        assert not await links.wait_state((1, 1), 0.01)
        waiting = asyncio.create_task(links.wait_state((1, 1), LONG_S))
        await asyncio.sleep(0)
        await links.stop()
        assert not await waiting
        assert not await links.wait_state((1, 1), LONG_S)
        await asyncio.to_thread(store.close)

    run(scenario)
