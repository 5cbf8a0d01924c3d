"""Values past their range: the request is refused, nothing of it is kept, and the broker starts again."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from metaq.protocol.command import Command
from metaq.protocol.commands.clients import HeartBeat
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.commands.groups import (
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
)
from metaq.protocol.commands.topics import UpdateAndCreateTopicList
from tests.support.broker_cluster import broker_options, connected, started_broker, started_nameserver
from tests.support.patient import Connection
from tests.support.waiting import run

INVALID_PARAMETER = 29

GROUP = {"groupName": "victims"}
TOPIC = {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
REQUESTS: list[tuple[Command, dict[str, object], str]] = [
    (UpdateAndCreateSubscriptionGroup(), {**GROUP, "retryMaxTimes": 2**31}, "retryMaxTimes"),
    (UpdateAndCreateSubscriptionGroup(), {**GROUP, "brokerId": 2**63}, "brokerId"),
    (
        UpdateAndCreateSubscriptionGroup(),
        {**GROUP, "whichBrokerWhenConsumeSlowly": 2**63},
        "whichBrokerWhenConsumeSlowly",
    ),
    (
        UpdateAndCreateSubscriptionGroupList(),
        {"groupConfigList": [GROUP, {"groupName": "others", "retryMaxTimes": -(2**31) - 1}]},
        "retryMaxTimes",
    ),
    (
        UpdateAndCreateTopicList(),
        {"topicConfigList": [TOPIC, {**TOPIC, "topicName": "refunds", "topicSysFlag": 2**80}]},
        "topicSysFlag",
    ),
    (
        HeartBeat(),
        {
            "clientID": "stranger",
            "consumerDataSet": [
                {
                    "groupName": "victims",
                    "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 2**70}],
                }
            ],
        },
        "subVersion",
    ),
]


@pytest.mark.parametrize(("command", "body", "field"), REQUESTS, ids=lambda part: str(part)[:40])
def test_a_refused_value_leaves_nothing_and_the_broker_starts_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    command: Command,
    body: dict[str, object],
    field: str,
) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path)
        async with started_broker(options) as broker, connected(broker.address, "stranger") as client:
            before = {entry.key for entry in broker.node.journal.snapshot().entries}
            reply = await client.connection.call(command, msgspec.json.encode(body))
            assert (reply.code, field in (reply.remark or "")) == (INVALID_PARAMETER, True)
            assert broker.node.clients.all_consumer_groups() == []
            # Whatever is left of the request would be written with the next change.
            await client.heartbeat("honest", "orders")
            await client.send("TBW102_free", b"m")
            state = broker.master.state
            await state.groups.publish(())
            kept = {entry.key for entry in broker.node.journal.snapshot().entries} - before
            assert kept == {"honest", "%RETRY%honest", "TBW102_free"}
            assert all(state.groups.get(name) is None for name in ("victims", "others"))
            assert all(state.topics.get(name) is None for name in ("orders", "refunds"))
        async with started_broker(options) as broker, connected(broker.address) as client:
            assert (await client.send("TBW102_free", b"again")).queue_offset == 1
            assert broker.master.state.groups.get("honest") is not None
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

    run(scenario)


def test_a_registration_past_the_range_changes_no_route() -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            connection = await Connection.open(nameserver.address)
            try:
                command = RegisterBroker("broker-a", "127.0.0.1:10911", "c", 0)
                for perm, code in ((10**30, INVALID_PARAMETER), (6, 0)):
                    topics = {"orders": {**TOPIC, "perm": perm}, "other": TOPIC}
                    table = {"topicConfigSerializeWrapper": {"topicConfigTable": topics}}
                    body = msgspec.json.encode(table)
                    assert (await connection.call(command, body)).code == code
                    assert (nameserver.routes.route("orders") is None) == (code != 0)
            finally:
                await connection.close()

    run(scenario)
