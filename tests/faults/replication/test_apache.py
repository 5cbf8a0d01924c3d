"""The same load and kills against Apache's own groups. `make soak` prints their losses beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.replication.apache_nodes import DEFAULTS, STRICT, ApacheNodes
from tests.faults.replication.load import GroupReaders, GroupSenders
from tests.faults.replication.trial import APACHE, QUEUES, SENDERS, TOPIC, judge
from tests.faults.senders import served_queues
from tests.support.plain_client import PlainClient
from tests.support.rounds import rounds
from tests.support.waiting import wait_until

FLOW_TIMEOUT_S = 120


@pytest.mark.soak
@pytest.mark.parametrize("settings", [DEFAULTS, STRICT], ids=["default", "strict"])
def test_kills_of_apaches_master(
    tmp_path: Path, settings: Mapping[str, object], request: pytest.FixtureRequest
) -> None:
    """Fails if Apache's group does not go on; its losses are counted and printed."""
    with ApacheNodes(tmp_path, settings) as nodes:
        nodes.create_topic(TOPIC, QUEUES)
        senders = GroupSenders(nodes.addresses, nodes.master_address, TOPIC, QUEUES, count=SENDERS, seed=1)
        readers = GroupReaders(nodes.addresses, TOPIC, QUEUES)

        def flows(count: int) -> None:
            enough = len(senders.acknowledged_at) + count
            wait_until(
                lambda: len(senders.acknowledged_at) >= enough, FLOW_TIMEOUT_S, f"{count} acknowledged"
            )

        senders.start()
        readers.start()
        faults = rounds(2, 10)
        try:
            flows(200)
            for _ in range(faults):
                master = nodes.master()
                epoch = nodes.last.epoch
                master.kill()
                wait_until(lambda epoch=epoch: nodes.last.epoch > epoch, FLOW_TIMEOUT_S, "an election")
                flows(100)
                master.restart()
                nodes.wait_in_sync()
                flows(100)
        finally:
            senders.stop()
            readers.stop()
        with PlainClient(nodes.master().address) as client:
            queues = served_queues(client, TOPIC, QUEUES)
        case = request.node.callspec.id
        counts, found = judge(
            f"{APACHE}{case}: kills",
            senders,
            queues,
            readers,
            faults=faults,
            masters=nodes.masters(),
        )
        counts.keep()
        print(*found[:5], *readers.replaced[:5], sep="\n")
    assert counts.acknowledged > 0 and counts.epochs > faults
