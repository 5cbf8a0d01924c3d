"""A master that hangs is replaced long before a client gives up its first attempt."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import metaq
from tests.faults.replication.nodes import BrokerNodes

LONG_S = 120.0
"""Nothing that this test waits for takes as long, however busy the machine is."""


def test_a_master_that_hangs_is_replaced_within_the_first_attempt_of_a_client(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path / "group", settings={"election_after_s": LONG_S}) as nodes:
        nodes.create_topic("orders", 4)
        taken: list[float] = []

        async def scenario() -> None:
            async with (
                metaq.aio.Client(nodes.namesrv) as client,
                client.producer("senders", timeout=3 * LONG_S, attempt_timeout=LONG_S) as producer,
            ):
                for number in range(3):
                    await producer.send("orders", b"before %d" % number)
                    old, epoch = nodes.master(), nodes.record().epoch
                    old.freeze()
                    began = time.monotonic()
                    sent = await producer.send("orders", b"after %d" % number, key="one")
                    taken.append(time.monotonic() - began)
                    found = nodes.record()
                    assert found.epoch > epoch and found.master != old.id
                    assert sent.status == "stored"
                    old.thaw()
                    await asyncio.to_thread(nodes.wait_in_sync)

        asyncio.run(scenario())
        # The hung master still has its connections, so only a newer epoch replaces it in the routes.
        logs = "".join(node.log() for node in nodes.nodes.values())
        assert "is master of epoch" in logs and "with state version 0" not in logs
        print("seconds that a send took while its master hung:", *(f"{seconds:.1f}" for seconds in taken))
        assert max(taken) < LONG_S, "neither the election nor the attempt waited for its whole time"
