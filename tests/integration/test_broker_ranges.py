"""Values past their range: the request is refused, nothing of it is kept, and the broker starts again."""

from __future__ import annotations

import logging
import typing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from metaq.broker.state.policy import checked
from metaq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import HeartBeat
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.commands.groups import (
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
)
from metaq.protocol.commands.topics import UpdateAndCreateTopicList
from metaq.protocol.errors import Refused
from metaq.settings import GroupPolicy, TopicPolicy
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


def test_the_ranges_of_the_policy_are_those_of_the_data_plane(tmp_path: Path) -> None:
    """Every number of a policy fits at both ends of its range, and is refused beyond them before it is
    kept."""

    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            plane = broker.master.plane
            seen = 0
            for policy in (TopicPolicy("t", 1, 1, 6), GroupPolicy("g")):
                for name, hint in typing.get_type_hints(type(policy), include_extras=True).items():
                    if typing.get_origin(hint) is not typing.Annotated:
                        assert hint is not int, f"{name} has no range"
                        continue
                    meta = hint.__metadata__[0]
                    for value in (meta.ge, meta.le):
                        whole = checked(replace(policy, **{name: value}))
                        if isinstance(whole, TopicPolicy):
                            plane.put_topics([whole])
                        else:
                            plane.put_groups([whole])
                    for value in (meta.ge - 1, meta.le + 1):
                        with pytest.raises(Refused, match=name):
                            checked(replace(policy, **{name: value}))
                    seen += 1
            assert seen == 10

    run(scenario)


def test_a_topic_or_group_that_the_data_plane_cannot_hold_is_never_put(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            state = broker.master.state
            with pytest.raises(Refused, match="permission"):
                state.topics.put(TopicConfig(topic_name="t", perm=256))
            with pytest.raises(Refused, match="retry_times_max"):
                state.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=2**31))
            await state.topics.publish(["t"])
            await state.groups.publish(["g"])
            assert broker.node.journal.get("topics", "t") is None
            assert broker.node.journal.get("groups", "g") is None

    run(scenario)
