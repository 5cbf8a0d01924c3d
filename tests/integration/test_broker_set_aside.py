"""Entries of the journal that cannot be applied: they are set aside, and the broker starts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest

from metaq.admin.health.findings import judge
from metaq.admin.health.state import BrokerState, ClusterState
from metaq.broker.state import delay_progress, groups, locks, offsets, topics
from metaq.broker.state.versions import VERSIONS
from metaq.journal.files import Entry
from metaq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from metaq.protocol.commands.health import BrokerReport, GetBrokerReport
from tests.support.broker_cluster import broker_options, connected, started_broker
from tests.support.waiting import run

UNREADABLE = [
    (groups.TABLE, "victims", {"groupName": "victims", "retryMaxTimes": 2**31}, "retryMaxTimes"),
    (topics.TABLE, "lost", {"topicName": "lost", "perm": 10**30}, "perm"),
    (topics.TABLE, "TBW102", {"topicName": "TBW102", "readQueueNums": 2**40}, "readQueueNums"),
    (topics.TABLE, "empty", "", "TopicConfig"),
    (groups.FORBIDDEN, "victims", {"orders": 2**31}, "2147483647"),
    (offsets.OFFSETS, "orders@victims@0", {"0": 2**63}, "9223372036854775807"),
    (offsets.RESETS, "orders@victims@0", {str(2**31): 0}, "2147483647"),
    (delay_progress.TABLE, "1", 2**63, "9223372036854775807"),
    (delay_progress.TABLE, "-1", 5, ">= 0"),
    (locks.TABLE, "no key", "client", "unpack"),
    (VERSIONS, topics.TABLE, {"counter": 2**63}, "counter"),
]


@pytest.mark.parametrize(
    ("table", "key", "value", "reason"), UNREADABLE, ids=lambda part: str(part)[:24].replace("/", "")
)
def test_an_entry_that_cannot_be_applied_is_set_aside_and_the_broker_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, key: str, value: object, reason: str
) -> None:
    content = msgspec.json.encode(value)

    async def scenario() -> None:
        options = broker_options(tmp_path)
        async with started_broker(options) as broker, connected(broker.address) as client:
            await client.heartbeat("honest", "orders")
            await client.send("orders", b"first")
        # Not by a broker that runs: its stop would write its own value.
        async with started_broker(options) as broker:
            await broker.step_down()
            journal = broker.node.journal
            await journal.write([(table, key, content)])
        for _ in range(2):
            async with started_broker(options) as broker, connected(broker.address) as client:
                assert broker.node.journal.get(table, key) != content
                assert (await client.send("orders", b"again")).queue_offset > 0
                assert broker.master.state.groups.get("honest") is not None
                reply = await client.connection.call(GetBrokerReport())
                report = BrokerReport.decode(reply.check().body)
                assert report.set_aside == 1
        (kept,) = (tmp_path / "set-aside").iterdir()
        assert kept.stat().st_mode & 0o077 == 0
        told = json.loads(kept.read_text())
        assert (told["table"], told["key"], told["value"]) == (table, key, content.decode())
        assert reason in told["reason"]
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(lines) == 1 and str(kept) in lines[0] and reason in lines[0]
        ill = BrokerState("broker-a", "C", 0, "h:1", kind="metaq", report=report)
        state = ClusterState(now_ms=report.now_ms, brokers=(ill,))
        assert "set-aside" in {finding.kind for finding in judge(state)}
        kept.unlink()
        async with started_broker(options) as broker:
            assert broker.node.journal.set_aside is not None
            assert broker.node.journal.set_aside.count() == 0

    run(scenario)


def test_a_replica_sets_aside_what_it_cannot_apply_and_takes_the_rest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            state = broker.master.state
            state.follow(
                [
                    Entry(1, 901, topics.TABLE, "lost", b'{"topicName":"lost","topicSysFlag":2147483648}'),
                    Entry(1, 902, groups.TABLE, "g", b'{"groupName":"g","brokerId":9223372036854775808}'),
                    Entry(1, 903, offsets.OFFSETS, "orders@g@0", b'{"0":"x"}'),
                    Entry(1, 904, locks.TABLE, "g@orders@x", b"client"),
                    Entry(1, 905, topics.TABLE, "orders", TopicConfig(topic_name="orders").encode()),
                    Entry(1, 906, groups.TABLE, "h", SubscriptionGroupConfig(group_name="h").encode()),
                    Entry(1, 907, offsets.OFFSETS, "orders@h@0", b'{"0":7}'),
                ]
            )
            assert state.topics.get("lost") is None and state.groups.get("g") is None
            assert state.topics.get("orders") is not None and state.groups.get("h") is not None
            assert broker.master.plane.offsets_of("h", "orders") == {0: 7}
            assert broker.node.journal.set_aside is not None
            assert broker.node.journal.set_aside.count() == 4

    run(scenario)


def test_one_bad_entry_of_rocketmqs_files_does_not_hide_the_others(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    table = {"orders": {"readQueueNums": 3, "perm": 6}, "odd": {"perm": 2**31}}
    (config / "topics.json").write_text(
        json.dumps({"dataVersion": {"counter": 3}, "topicConfigTable": table})
    )
    found = {"g": {"retryMaxTimes": 5}, "odd": {"retryMaxTimes": 2**31}}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": found}))

    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            state = broker.master.state
            orders, group = state.topics.get("orders"), state.groups.get("g")
            assert orders is not None and orders.read_queue_nums == 3
            assert group is not None and group.retry_max_times == 5
            assert state.topics.get("odd") is None and state.groups.get("odd") is None
            assert len(list((tmp_path / "set-aside").iterdir())) == 2

    run(scenario)
