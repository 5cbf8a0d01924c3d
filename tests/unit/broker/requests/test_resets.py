"""Resets: the new offsets of a group, and the notices to its running consumers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, Listener, Store
from metaq.broker.requests import resets
from metaq.broker.requests.resets import CPP, ResetParts, Resets
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.offsets import Offsets
from metaq.broker.state.runtime_switches import Switches
from metaq.broker.state.stats import Statistics
from metaq.protocol.bodies import ConsumerData, ResetOffsetBody, SubscriptionGroupConfig, TopicConfig
from metaq.protocol.command import Command
from metaq.protocol.commands.offsets import CloneGroupOffset, ResetConsumerOffset
from metaq.protocol.errors import Refused
from metaq.protocol.java_json import MessageQueue
from metaq.settings import MIB
from metaq.work_pools import WorkPools


class FakePlane:
    """It has no `offsets()`: nothing here may copy the offsets of all groups."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {"orders@billing": {0: 50, 1: 5}}

    def offsets_of(self, group: str, topic: str) -> dict[int, int]:
        return self.table.get(f"{topic}@{group}", {})

    def topics_of_group(self, group: str) -> list[str]:
        return sorted(key.partition("@")[0] for key in self.table if key.endswith(f"@{group}"))

    def reset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        self.table.setdefault(f"{topic}@{group}", {})[queue_id] = queue_offset


class FakeStore:
    """Both queues hold messages 10 to 99; message n was stored at time n."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 10

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 100

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return max(10, min(timestamp_ms, 100))


class FakeOffsets:
    persisted = 0

    def check_room(self, group: str, wanted: Mapping[str, Mapping[int, int]]) -> None:
        pass

    async def persist(self) -> bool:
        self.persisted += 1
        return True


class Desk:
    def __init__(self, tables: Any, notices_bytes_max: int = MIB) -> None:
        self.tables = tables
        self.plane = FakePlane()
        self.offsets = FakeOffsets()
        self.switches = Switches()
        self.told: list[tuple[int, Command, bytes]] = []
        self.clients = Clients(tables.clock, 120.0, lambda group, change: None)
        tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
        tables.groups.put(SubscriptionGroupConfig(group_name="billing"))
        plane, store = cast(BrokerPlane, self.plane), cast(Store, FakeStore())
        self.resets = Resets(
            ResetParts(
                plane=plane,
                store=store,
                topics=tables.topics,
                groups=tables.groups,
                clients=self.clients,
                offsets=cast(Offsets, self.offsets),
                statistics=Statistics(cast(Listener, None), store, tables.clock, "c"),
                switches=self.switches,
                broker_name="b",
                notices_bytes_max=notices_bytes_max,
                tell=lambda connection, command, body: self.told.append((connection, command, body)),
                pools=WorkPools(),
            )
        )

    def join(
        self, connection: int, *, language: int = 0, version: int = 513, model: str = "CLUSTERING"
    ) -> None:
        data = ConsumerData(group_name="billing", message_model=model)
        self.clients.put_consumer(data, Member(connection, f"c{connection}", language, version, "h:1", 0))

    def reset(self, request: Any, timestamp_ms: int = -1, **fields: Any) -> dict[int, int]:
        fields = {"topic": "orders", "group": "billing", "is_force": True, **fields}
        command = ResetConsumerOffset(timestamp=timestamp_ms, **fields)
        answer = asyncio.run(self.resets.reset_consumer_offset(command, request))
        table = ResetOffsetBody.decode(answer.body).offset_table
        return {queue.queue_id: place for queue, place in table.items()}


@pytest.fixture
def desk(tables: Any) -> Desk:
    return Desk(tables)


def test_to_a_time_to_the_end_and_to_an_offset(desk: Desk, request_with: Any) -> None:
    assert desk.reset(request_with(), 30) == {0: 30, 1: 30}
    assert desk.plane.table["orders@billing"] == {0: 30, 1: 30}
    assert desk.reset(request_with(), -1) == {0: 100, 1: 100}
    assert desk.reset(request_with(), 40, queue_id=1) == {1: 40}
    assert desk.reset(request_with(), 0, queue_id=1, queue_offset=77) == {1: 77}
    assert desk.reset(request_with(), 20, queue_id=1, queue_offset=-1) == {1: 20}
    assert desk.plane.table["orders@billing"] == {0: 100, 1: 20}
    assert desk.offsets.persisted == 5, "an answer means that a kill does not undo it"
    assert desk.told == []


def test_without_force_nothing_is_skipped(desk: Desk, request_with: Any) -> None:
    assert desk.reset(request_with(), 30, is_force=False) == {0: 30, 1: 5}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, 17),
        ({"group": "nobody"}, 26),
        ({"queue_id": 2}, 29),
        ({"queue_id": 0, "queue_offset": 9}, 1),
        ({"queue_id": 0, "queue_offset": 101}, 1),
    ],
)
def test_what_cannot_be_is_refused(desk: Desk, request_with: Any, fields: dict[str, Any], code: int) -> None:
    with pytest.raises(Refused) as raised:
        desk.reset(request_with(), 30, **fields)
    assert raised.value.code == code
    assert desk.plane.table == {"orders@billing": {0: 50, 1: 5}}


def test_running_consumers_are_told_in_the_form_each_can_read(desk: Desk, request_with: Any) -> None:
    desk.switches.server_side_reset = False
    desk.join(1)
    desk.join(2, language=CPP)
    assert desk.reset(request_with(), 30) == {0: 30, 1: 30}
    (first, order, body), (second, _, listed) = desk.told
    assert (first, second, order.code) == (1, 2, 220)
    assert order.to_fields() == {"topic": "orders", "group": "billing", "timestamp": "30", "isForce": "true"}
    assert ResetOffsetBody.decode(body).offset_table[MessageQueue("b", 1, "orders")] == 30
    assert b'{{"brokerName":"b"' in body, "objects as keys, which Java reads"
    assert json.loads(listed) == {
        "offsetTable": [
            {"brokerName": "b", "offset": 30, "queueId": queue_id, "topic": "orders"} for queue_id in (0, 1)
        ]
    }
    assert desk.plane.table["orders@billing"] == {0: 50, 1: 5}, "the consumers commit it themselves"


def test_a_tool_that_speaks_for_cpp_consumers_has_all_told_so(desk: Desk, request_with: Any) -> None:
    desk.switches.server_side_reset = False
    desk.join(1)
    desk.reset(request_with(language=CPP), 30)
    assert json.loads(desk.told[0][2])["offsetTable"][0]["queueId"] == 0


def test_nobody_to_tell_and_clients_that_would_not_understand(desk: Desk, request_with: Any) -> None:
    desk.switches.server_side_reset = False
    with pytest.raises(Refused) as raised:
        desk.reset(request_with(), 30)
    assert raised.value.code == 206, "tools then set the offsets themselves"
    desk.join(1, version=1)
    with pytest.raises(Refused, match="too old"):
        desk.reset(request_with(), 30)


def test_a_broadcast_keeps_its_offsets_itself(desk: Desk, request_with: Any) -> None:
    desk.join(1, model="BROADCASTING")
    desk.reset(request_with(), 30)
    assert [connection for connection, _, _ in desk.told] == [1]
    assert desk.plane.table["orders@billing"] == {0: 50, 1: 5}


def test_a_reset_that_would_send_too_much_is_refused(tables: Any, request_with: Any) -> None:
    desk = Desk(tables, notices_bytes_max=10_000)
    for connection in range(1, 20):
        desk.join(connection, model="BROADCASTING")
    with pytest.raises(Refused, match=r"to 19 consumers of group billing.*10000 \(reset_notices_bytes_max\)"):
        desk.reset(request_with(), 30)
    assert desk.told == []
    for connection in range(10, 20):
        desk.clients.remove_connection(connection)
    desk.reset(request_with(), 30)
    assert len(desk.told) == 9


def test_consumers_are_told_of_a_reset_in_turns(
    desk: Desk, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resets, "SENT_AT_ONCE_BYTES", 4 * resets.NOTICE_BYTES)
    for connection in range(1, 101):
        desk.join(connection, model="BROADCASTING")
    command = ResetConsumerOffset(topic="orders", group="billing", is_force=True, timestamp=30)

    async def scenario() -> None:
        reset = asyncio.create_task(desk.resets.reset_consumer_offset(command, request_with()))
        before = 0
        while not reset.done():
            await asyncio.sleep(0)
            assert len(desk.told) - before <= 5
            before = len(desk.told)
        await reset

    asyncio.run(scenario())
    assert [connection for connection, _, _ in desk.told] == list(range(1, 101))


def clone(desk: Desk, request: Any, **fields: Any) -> None:
    command = CloneGroupOffset(src_group="billing", dest_group="copy", **fields)
    asyncio.run(desk.resets.clone_group_offset(command, request))


def test_offsets_are_copied_to_another_group(desk: Desk, request_with: Any) -> None:
    desk.plane.table |= {"gone@billing": {0: 1}}
    clone(desk, request_with())
    assert desk.plane.table["orders@copy"] == {0: 50, 1: 5}
    assert "gone@copy" not in desk.plane.table, "that topic is no more"
    assert desk.tables.groups.get("copy") is not None


def test_a_copy_of_many_topics_is_written_once(desk: Desk, request_with: Any) -> None:
    for number in range(5):
        desk.tables.topics.put(TopicConfig(topic_name=f"topic-{number}"))
        desk.plane.table[f"topic-{number}@billing"] = {0: number}
    clone(desk, request_with())
    assert desk.plane.table["topic-4@copy"] == {0: 4}
    assert desk.offsets.persisted == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"src_group": "CID_RMQ_SYS_TRANS", "dest_group": "copy"},
        {"src_group": "billing", "dest_group": "CID_RMQ_SYS_TRANS"},
        {"src_group": "billing", "dest_group": "copy", "topic": "RMQ_SYS_TRANS_HALF_TOPIC"},
    ],
)
def test_nothing_is_copied_from_or_to_what_the_broker_relies_on(
    desk: Desk, request_with: Any, fields: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match="the broker's own"):
        asyncio.run(desk.resets.clone_group_offset(CloneGroupOffset(**fields), request_with()))


def test_a_topic_that_the_source_has_given_up_is_copied_only_when_asked_for(
    desk: Desk, request_with: Any
) -> None:
    desk.join(1)
    group = desk.clients.consumer_group("billing")
    assert group is not None
    group.subscriptions = {"other": cast(Any, None)}
    clone(desk, request_with(), topic="orders")
    assert "orders@copy" not in desk.plane.table
    clone(desk, request_with(), topic="orders", offline=True)
    assert desk.plane.table["orders@copy"] == {0: 50, 1: 5}
