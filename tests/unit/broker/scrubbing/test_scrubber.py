"""The scrub of a store that is closed and opened anew goes on where it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq._core import Clock, Store
from metaq.broker.scrubbing import scrubber as module
from metaq.broker.scrubbing.pace import ScrubSettings
from metaq.broker.scrubbing.scrubber import RETRIES_MAX, Peer, Scrubber
from metaq.settings import MIB, StoreSettings
from tests.support.waiting import run, until


class Owner:
    """A broker that counts how often the scrub asks for its store."""

    def __init__(self, store: Store) -> None:
        self.opened = store
        self.asked = 0

    @property
    def store(self) -> Store:
        self.asked += 1
        return self.opened

    @property
    def scrub_peer(self) -> Peer | None:
        return None


def test_a_closed_store_is_no_unreadable_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    clock, settings = Clock(), StoreSettings(directory=str(tmp_path / "store"))
    (tmp_path / "scrub").mkdir()
    owner = Owner(Store(settings, clock))
    owner.opened.close()

    async def scenario() -> None:
        scrubber = Scrubber(ScrubSettings(3_600, 64 * MIB), owner, tmp_path / "scrub", clock)
        scrubber.start()
        try:
            await until(lambda: owner.asked > 4 * RETRIES_MAX)
            assert (scrubber.record.position, scrubber.report().fault) == (0, None)
            owner.opened = Store(settings, clock)
            await until(lambda: scrubber.record.completed_ms is not None)
        finally:
            await scrubber.stop()
            await asyncio.to_thread(owner.opened.close)

    run(scenario)
