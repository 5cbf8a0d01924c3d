"""Hot requests that cross: topics and groups on first use. And looking messages up."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, Store
from metaq.broker.background.subscription_inquiry import Inquiry
from metaq.broker.requests.messages import VIEWS_MAX, Messages
from metaq.broker.state.clients import Clients
from metaq.broker.state.filters import Filters
from metaq.protocol.command import Command
from metaq.protocol.commands.messages import (
    PullMessage,
    QueryMessage,
    SendMessage,
    SendMessageV2,
    ViewMessageById,
)
from metaq.protocol.commands.offsets import GetEarliestMessageStoreTime
from metaq.protocol.dispatch import RESPONDED
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply
from metaq.settings import Program
from metaq.work_pools import WorkPools


def record(topic: str) -> bytes:
    """A record without a body, as the commit log has it."""
    name = topic.encode()
    size = 91 + len(name)
    fixed = struct.pack(">IIIiiqqiqQqQiqI", size, 0xDAA320A7, 0, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 0)
    return fixed + bytes([len(name)]) + name + bytes(2)


STORED, HALF = record("t"), record("RMQ_SYS_TRANS_HALF_TOPIC")


class FakeStore:
    """Answers what the test says."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.is_cut_short = False
        self.asked: dict[str, Any] = {}

    def record_at(self, physical_offset: int) -> bytes | None:
        return {42: STORED, 43: HALF}.get(physical_offset)

    def query(self, topic: str, key: str, **rest: Any) -> tuple[list[bytes], int, int, bool]:
        self.asked = {"topic": topic, "key": key, **rest}
        return self.records, 11, 22, self.is_cut_short

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 5

    def store_time_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return 1_000 + queue_offset


class FakePlane:
    """Remembers the expressions that it got."""

    def __init__(self) -> None:
        self.expressions: dict[str, Program] = {}
        self.exhausted = False

    def retries_exhausted(self, group: str, reconsume_times: int, times_max: int | None = None) -> bool:
        return self.exhausted

    def put_expression(self, text: str, program: Program) -> None:
        self.expressions[text] = program


async def nobody(connection: int, command: Command) -> Reply:
    raise Unreachable("nobody is there")


class Desk:
    """The handlers over tables of their own."""

    def __init__(self, tables: Any, request_with: Any) -> None:
        self.tables = tables
        self.store = FakeStore()
        self.plane = FakePlane()
        self.messages = Messages(
            tables.topics,
            tables.groups,
            cast(Store, self.store),
            cast(BrokerPlane, self.plane),
            Filters(),
            Inquiry(
                Clients(tables.clock, 120.0, lambda group, change: None), tables.clock, nobody, Filters()
            ),
            WorkPools(),
        )
        self.request_with = request_with

    def send(self, topic: str, **rest: Any) -> Any:
        request = self.request_with()
        command = SendMessage(producer_group="p", topic=topic, **rest)
        asyncio.run(self.messages.send_message(command, request))
        return request

    def pull(self, group: str, **rest: Any) -> Any:
        request = self.request_with()
        command = PullMessage(consumer_group=group, topic="t", queue_id=0, queue_offset=0, **rest)
        asyncio.run(self.messages.pull_message(command, request))
        return request


@pytest.fixture
def make_desk(make_tables: Callable[..., Any], request_with: Any) -> Callable[..., Desk]:
    return lambda **changes: Desk(make_tables(**changes), request_with)


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()


def test_a_topic_is_made_told_and_the_send_handed_back(desk: Desk) -> None:
    request = desk.send("orders", default_topic_queue_nums=3)
    assert (request.retried, request.answers) == (1, [])
    assert desk.tables.topics.get("orders").write_queue_nums == 3
    assert desk.tables.published == ["orders"]


def test_a_topic_made_meanwhile_only_has_to_be_told(desk: Desk) -> None:
    desk.tables.topics.create_from_template("orders", "TBW102", 2)
    assert desk.send("orders").retried == 1
    assert desk.tables.topics.get("orders").write_queue_nums == 2


def test_many_senders_at_once_make_one_topic(desk: Desk) -> None:
    async def scenario() -> list[Any]:
        requests = [desk.request_with() for _ in range(50)]
        command = SendMessageV2(producer_group="p", topic="orders")
        await asyncio.gather(*(desk.messages.send_message(command, request) for request in requests))
        return requests

    version = desk.tables.topics.data_version.counter
    assert all(request.retried == 1 for request in asyncio.run(scenario()))
    assert desk.tables.topics.data_version.counter == version + 2, "made, and then served"


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        ("a b", 13, "other than"),
        ("x" * 128, 13, "the limit is 127"),
        ("", 13, "blank"),
        ("rmq_sys_anything", 16, "system's own"),
    ],
)
def test_names_are_checked_before_anything_is_made(desk: Desk, topic: str, code: int, says: str) -> None:
    before = len(desk.tables.topics)
    with pytest.raises(Refused) as raised:
        desk.send(topic)
    assert raised.value.code == code
    assert says in raised.value.remark
    assert len(desk.tables.topics) == before


def test_without_permission_to_make_topics_the_answer_says_what_to_do(make_desk: Callable[..., Desk]) -> None:
    with pytest.raises(Refused) as raised:
        make_desk(auto_create_topic=False).send("orders")
    assert raised.value.code == 17
    assert "metaq topic create orders" in raised.value.remark


def test_the_data_plane_says_whether_a_resent_message_needs_the_dead_letters(
    make_desk: Callable[..., Desk],
) -> None:
    desk = make_desk()
    desk.send("%RETRY%billing", reconsume_times=99)
    assert desk.tables.topics.get("%DLQ%billing") is None
    desk.plane.exhausted = True
    assert desk.send("%RETRY%billing").retried == 1
    assert desk.tables.topics.get("%DLQ%billing") is not None


def test_a_retry_topic_needs_its_group_and_not_the_template(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(auto_create_topic=False)
    assert desk.send("%RETRY%billing").retried == 1
    assert desk.tables.topics.get("%RETRY%billing").write_queue_nums == 1
    assert desk.tables.published == ["billing", "%RETRY%billing"]
    with pytest.raises(Refused) as raised:
        make_desk(auto_create_group=False).send("%RETRY%nobody")
    assert raised.value.code == 26


def test_an_expression_is_compiled_told_and_the_pull_handed_back(desk: Desk) -> None:
    carried = {"sys_flag": 4, "expression_type": "SQL92"}
    assert desk.pull("billing", subscription="a = 1", **carried).retried == 1
    assert desk.plane.expressions == {"a = 1": (("property", "a"), ("integer", 1), ("equal", None))}
    for wrong in ("a =", "", None):
        with pytest.raises(Refused) as raised:
            desk.pull("billing", subscription=wrong, **carried)
        assert raised.value.code == 23
    with pytest.raises(Refused, match="no filters of type GROOVY"):
        desk.pull("billing", subscription="a = 1", sys_flag=4, expression_type="GROOVY")
    assert desk.pull("billing", subscription="a =", sys_flag=0, expression_type="SQL92").retried == 1
    assert list(desk.plane.expressions) == ["a = 1"]


def test_a_group_is_made_and_the_pull_handed_back(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    assert desk.pull("billing").retried == 1
    assert desk.tables.published == ["billing"]
    with pytest.raises(Refused) as raised:
        desk.pull("a b")
    assert raised.value.code == 29
    with pytest.raises(Refused) as raised:
        make_desk(auto_create_group=False).pull("nobody")
    assert raised.value.code == 26
    assert "autoCreateSubscriptionGroup" in raised.value.remark


def test_one_message_by_its_place(desk: Desk, request_with: Any) -> None:
    async def view(physical_offset: int) -> list[bytes]:
        request = request_with()
        command = ViewMessageById(physical_offset=physical_offset)
        assert await desk.messages.view_message_by_id(command, request) is RESPONDED
        return [body for _, _, _, body in request.answers]

    assert asyncio.run(view(42)) == [STORED]
    with pytest.raises(Refused, match="broker's own"):
        asyncio.run(view(43))
    for nowhere in (41, -1):
        with pytest.raises(Refused, match=str(nowhere)):
            asyncio.run(view(nowhere))


def test_no_more_messages_are_read_than_can_be_answered(
    desk: Desk, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request_with() for _ in range(50)]
    begun: list[int] = []
    unanswered: list[int] = []

    def record_at(physical_offset: int) -> bytes:
        begun.append(physical_offset)
        unanswered.append(len(begun) - sum(len(request.answers) for request in requests))
        return STORED

    async def view_all() -> None:
        command = ViewMessageById(physical_offset=42)
        await asyncio.gather(*(desk.messages.view_message_by_id(command, request) for request in requests))

    monkeypatch.setattr(desk.store, "record_at", record_at)
    asyncio.run(view_all())
    assert len(unanswered) == 50
    assert max(unanswered) <= VIEWS_MAX


def query(desk: Desk, **changes: Any) -> Any:
    fields = {"topic": "t", "key": "k", "max_num": 10, "begin_timestamp": 1, "end_timestamp": 2, **changes}
    return asyncio.run(desk.messages.query_message(QueryMessage(**fields), desk.request_with()))


def test_messages_by_key(desk: Desk) -> None:
    desk.store.records = [b"one", b"two"]
    answer = query(desk)
    assert answer.body == b"onetwo"
    assert answer.header() == {"indexLastUpdateTimestamp": "11", "indexLastUpdatePhyoffset": "22"}
    assert desk.store.asked == {"topic": "t", "key": "k", "count_max": 10, "begin_ms": 1, "end_ms": 2}


@pytest.mark.parametrize(
    ("change", "count_max"), [({"max_num": 10_000}, 64), ({"max_num": -1}, 1), ({"unique_key": True}, 32)]
)
def test_the_count_is_bounded(desk: Desk, change: dict[str, Any], count_max: int) -> None:
    desk.store.records = [b"one"]
    query(desk, **change)
    assert desk.store.asked["count_max"] == count_max


def test_nothing_found_is_told(desk: Desk) -> None:
    with pytest.raises(Refused) as raised:
        query(desk)
    assert raised.value.code == 22
    desk.store.is_cut_short = True
    with pytest.raises(Refused, match=r"ended at its limit \(query_entries_max\)"):
        query(desk)
    with pytest.raises(Refused, match="the limit is 32767"):
        query(desk, key="k" * 40_000)


def test_the_time_of_the_first_message(desk: Desk, request_with: Any) -> None:
    command = GetEarliestMessageStoreTime(topic="t", queue_id=0)
    answer = asyncio.run(desk.messages.get_earliest_message_store_time(command, request_with()))
    assert answer.header() == {"timestamp": "1005"}


def test_half_messages_are_not_found_by_key(desk: Desk) -> None:
    desk.store.records = [b"half"]
    with pytest.raises(Refused, match="broker's own"):
        query(desk, topic="RMQ_SYS_TRANS_HALF_TOPIC")
    assert desk.store.asked == {}


@pytest.mark.parametrize("topic", ["%DLQ%", "%RETRY%", "%DLQ%nogroup"])
def test_dead_letters_of_no_group_are_never_made(desk: Desk, topic: str) -> None:
    with pytest.raises(Refused, match="group"):
        desk.send(topic)
    assert topic not in desk.tables.topics


def test_dead_letters_of_a_group_are_made_by_its_consumers(desk: Desk) -> None:
    desk.tables.groups.find_or_create("billing")
    assert desk.send("%DLQ%billing").retried == 1
    assert "%DLQ%billing" in desk.tables.topics
