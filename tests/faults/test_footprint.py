"""Memory and disk of an idle broker with default sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.process_figures import disk_bytes, memory_bytes
from tests.faults.waiting import wait_until
from tests.support.plain_client import SUCCESS, create_topic, send
from tests.support.serving import Serving

MB = 1_000_000
QUEUES = 8


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_an_idle_broker_is_small(tmp_path: Path, flush: str) -> None:
    data = tmp_path / "data"
    with Serving(tmp_path / "home", data, flush=flush, settings={}) as broker, broker.connect() as client:
        assert disk_bytes(data) < 100 * MB
        # A store gets its files with its first messages: one to every queue, with a key for the index.
        assert create_topic(client, "footprint", QUEUES).code == SUCCESS
        for queue_id in range(QUEUES):
            assert send(client, "footprint", queue_id, b"x" * 128, "KEYS\x01some\x02").code == SUCCESS
        wait_until(lambda: any((data / "index").glob("*")))
        assert disk_bytes(data) < 100 * MB
        assert memory_bytes(broker.pid)["resident"] < 120 * MB
        assert broker.stop() == 0
        assert disk_bytes(data) < 100 * MB
