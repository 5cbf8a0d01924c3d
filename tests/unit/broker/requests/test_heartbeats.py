"""Heartbeats: the groups they create and change, and the ones that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.broker.requests.heartbeats import GROUPS_AT_ONCE, Heartbeats
from metaq.broker.sql92 import program
from metaq.broker.state.clients import REMOVED_AT_ONCE, Clients
from metaq.broker.state.filters import Filters
from metaq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerConnection,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    ProducerConnection,
    ProducerData,
    ProducerTable,
    SubscriptionData,
    TopicConfig,
)
from metaq.protocol.command import AnswerMax
from metaq.protocol.commands.clients import (
    CheckClientConfig,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetProducerConnectionList,
    HeartBeat,
    UnregisterClient,
)
from metaq.protocol.dispatch import RESPONDED, Response
from metaq.protocol.errors import Refused
from metaq.work_pools import WorkPools
from tests.support.fake_request import FakeRequest

# A 4.x client sends neither a fingerprint nor withoutSub.
OLD_CLIENTS_BODY = b"""{"clientID":"10.0.0.1@7",
"consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"billing","messageModel":"CLUSTERING","subscriptionDataSet":[
{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1700000000001,
"tagsSet":[],"topic":"orders"},{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",
"subVersion":1700000000002,"tagsSet":[],"topic":"%RETRY%billing"}],"unitMode":false}],
"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}"""


class Desk:
    """Takes heartbeats and keeps what they changed."""

    def __init__(self, tables: Any, request_with: Any) -> None:
        self.tables = tables
        self.changes: list[str] = []
        self.clients = Clients(tables.clock, 120.0, lambda group, change: self.changes.append(group.name))
        self.filters = Filters()
        self.heartbeats = Heartbeats(
            self.clients, tables.groups, tables.topics, tables.clock, self.filters, WorkPools()
        )
        self.request_with = request_with

    def beat(self, body: bytes, connection: int = 1) -> Response:
        request = self.request_with(body, connection)

        async def take() -> Response:
            outcome = self.heartbeats.heart_beat(HeartBeat(), request)
            response = outcome if isinstance(outcome, Response) else await outcome
            if response is not RESPONDED:
                return response
            assert request.answers, "answered before anything is written"
            return Response(fields=request.answers[-1][2])

        return asyncio.run(take())

    def subscriptions_wanted(self, body: bytes, connection: int = 1) -> bool:
        return self.beat(body, connection).header()["IS_SUB_CHANGE"] == "true"


@pytest.fixture
def make_desk(make_tables: Callable[..., Any], request_with: Any) -> Callable[..., Desk]:
    return lambda **changes: Desk(make_tables(**changes), request_with)


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()


def heartbeat(*topics: str, fingerprint: int = 0, without_sub: bool = False, group: str = "billing") -> bytes:
    subscriptions = [SubscriptionData(topic=topic, sub_version=1) for topic in topics]
    return HeartbeatData(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=subscriptions)],
        heartbeat_fingerprint=fingerprint,
        without_sub=without_sub,
    ).encode()


def test_a_first_heartbeat_makes_the_group_and_its_retry_topic(desk: Desk) -> None:
    answer = desk.beat(OLD_CLIENTS_BODY)
    assert answer.header() == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert desk.tables.groups.get("billing") is not None
    assert desk.tables.topics.get("%RETRY%billing").write_queue_nums == 1
    assert desk.tables.published == ["billing", "%RETRY%billing"]
    assert desk.changes == ["billing"]
    group = desk.clients.consumer_group("billing")
    assert group is not None and sorted(group.subscriptions) == ["%RETRY%billing", "orders"]
    desk.beat(OLD_CLIENTS_BODY)
    assert desk.tables.published == ["billing", "%RETRY%billing"], "nothing new the second time"
    assert desk.changes == ["billing"]


def test_a_group_that_is_repeated_counts_once_as_its_last_entry_says(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.beat(heartbeat("x", group="g"))
    desk.changes.clear()
    put: list[str] = []
    take_producer = desk.clients.put_producer
    monkeypatch.setattr(
        desk.clients,
        "put_producer",
        lambda group, member: (put.append(group), take_producer(group, member)),
    )
    entries = [
        ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic=topic)])
        for topic in ["a", "b"] * 15 + ["last"]
    ]
    producers = [ProducerData(group_name="p")] * 31
    beat = HeartbeatData(client_id="c", consumer_data_set=entries, producer_data_set=producers)
    desk.beat(beat.encode())
    group = desk.clients.consumer_group("g")
    assert group is not None and list(group.subscriptions) == ["last"]
    assert desk.changes == ["g"]
    assert put == ["p"]


def test_a_group_that_may_not_be_made_is_left_out(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(auto_create_group=False)
    assert desk.beat(OLD_CLIENTS_BODY).code == 0
    assert desk.clients.consumer_group("billing") is None
    assert "%RETRY%billing" not in desk.tables.topics
    assert desk.clients.producers("CLIENT_INNER_PRODUCER")


def test_the_retry_topic_of_ordered_consumers_is_ordered(desk: Desk) -> None:
    desk.tables.topics.put(TopicConfig(topic_name="orders", order=True))
    desk.beat(heartbeat("orders", fingerprint=5))
    assert desk.tables.topics.get("%RETRY%billing").order
    desk.beat(heartbeat(fingerprint=5, without_sub=True))
    assert desk.tables.topics.get("%RETRY%billing").order, "a short heartbeat does not say what is subscribed"


def test_short_heartbeats_need_a_full_one_of_the_same_kind_before(desk: Desk) -> None:
    short = heartbeat(fingerprint=5, without_sub=True)
    assert desk.subscriptions_wanted(short), "as after a restart of the broker"
    assert not desk.subscriptions_wanted(heartbeat("orders", fingerprint=5))
    assert not desk.subscriptions_wanted(short)
    assert desk.subscriptions_wanted(heartbeat(fingerprint=6, without_sub=True))
    assert desk.subscriptions_wanted(short, connection=2), "another connection has said nothing yet"
    group = desk.clients.consumer_group("billing")
    assert group is not None and sorted(group.subscriptions) == ["orders"]


def many(count: int) -> list[ConsumerData]:
    return [ConsumerData(group_name=f"g{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (HeartbeatData(client_id=""), "client id"),
        (HeartbeatData(client_id="x" * 600), "512"),
        (HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="a b")]), "group name"),
        (HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="")]), "blank"),
        (HeartbeatData(client_id="c", consumer_data_set=many(1001)), "limit is 1000"),
        (
            HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="p")] * 1001),
            "1001 groups in one heartbeat, the limit is 1000",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="t")] * 700)
                ]
                * 3,
            ),
            "2100 subscriptions in one heartbeat, the limit is 2000",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="t")] * 1001)
                ],
            ),
            "limit is 1000",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="t u")])
                ],
            ),
            "topic name",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(
                        group_name="g",
                        subscription_data_set=[SubscriptionData(topic="t", sub_string="a" * 70_000)],
                    )
                ],
            ),
            "65536 characters",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(
                        group_name="g",
                        subscription_data_set=[
                            SubscriptionData(topic="t", sub_string="a" * 16_000, expression_type="SQL92")
                        ]
                        * 5,
                    )
                ],
            ),
            "expressions of 80000 characters",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(
                        group_name="g",
                        subscription_data_set=[SubscriptionData(topic="t", sub_string="a||" * 20_000)] * 5,
                    )
                ],
            ),
            "tags of 300000 characters, the limit is 262144",
        ),
    ],
)
def test_what_no_honest_client_sends_is_refused_whole(desk: Desk, data: HeartbeatData, says: str) -> None:
    with pytest.raises(Refused) as raised:
        desk.beat(data.encode())
    assert raised.value.code == 29
    assert says in raised.value.remark
    assert desk.tables.published == []
    assert desk.clients.groups_of(1) == (set(), set())


def test_groups_of_a_connection_are_bounded_over_time(desk: Desk) -> None:
    desk.beat(HeartbeatData(client_id="c", producer_data_set=producers(0, 900)).encode())
    desk.beat(HeartbeatData(client_id="c", producer_data_set=producers(100, 1000)).encode())
    with pytest.raises(Refused, match="on one connection"):
        desk.beat(HeartbeatData(client_id="c", producer_data_set=producers(1000, 1001)).encode())


def producers(begin: int, end: int) -> list[ProducerData]:
    return [ProducerData(group_name=f"p{number}") for number in range(begin, end)]


def test_a_heartbeat_of_many_megabytes_is_not_even_read(desk: Desk) -> None:
    with pytest.raises(Refused, match="the limit is 1048576"):
        desk.beat(b"{" * (1024 * 1024 + 1))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.one_of(
        st.binary(max_size=80),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["clientID", "consumerDataSet", "groupName", "subscriptionDataSet", "topic"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_no_bytes_do_harm(desk: Desk, body: bytes) -> None:
    with contextlib.suppress(Refused):
        desk.beat(body)


def test_unregistering_leaves_the_named_groups(desk: Desk, request_with: Any) -> None:
    desk.beat(OLD_CLIENTS_BODY)
    desk.heartbeats.unregister_client(
        UnregisterClient(client_id="10.0.0.1@7", consumer_group="billing"), request_with()
    )
    assert desk.clients.consumer_group("billing") is None
    assert desk.clients.producers("CLIENT_INNER_PRODUCER")
    desk.heartbeats.unregister_client(
        UnregisterClient(client_id="10.0.0.1@7", producer_group="CLIENT_INNER_PRODUCER"), request_with()
    )
    assert desk.clients.producers("CLIENT_INNER_PRODUCER") == []


def test_who_is_in_a_group(desk: Desk, request_with: Any) -> None:
    command = GetConsumerListByGroup(consumer_group="billing")
    with pytest.raises(Refused) as raised:
        desk.heartbeats.get_consumer_list_by_group(command, request_with())
    assert raised.value.code == 1
    desk.beat(OLD_CLIENTS_BODY)
    body = desk.heartbeats.get_consumer_list_by_group(command, request_with()).body
    assert ConsumerList.decode(body).consumer_id_list == ["10.0.0.1@7"]


def test_connections_are_described(desk: Desk, request_with: Any) -> None:
    def consumers_of(group: str) -> ConsumerConnection:
        command = GetConsumerConnectionList(consumer_group=group)
        answer = asyncio.run(desk.heartbeats.get_consumer_connection_list(command, request_with()))
        return ConsumerConnection.decode(answer.body)

    def producers_of(group: str) -> ProducerConnection:
        command = GetProducerConnectionList(producer_group=group)
        answer = asyncio.run(desk.heartbeats.get_producer_connection_list(command, request_with()))
        return ProducerConnection.decode(answer.body)

    with pytest.raises(Refused) as raised:
        consumers_of("billing")
    assert raised.value.code == 206
    desk.beat(OLD_CLIENTS_BODY)
    consumers = consumers_of("billing")
    assert [entry.language for entry in consumers.connection_set] == ["JAVA"]
    assert set(consumers.subscription_table) == {"orders", "%RETRY%billing"}
    found = producers_of("CLIENT_INNER_PRODUCER")
    assert [entry.client_addr for entry in found.connection_set] == ["127.0.0.1:50000"]
    with pytest.raises(Refused, match="no producer"):
        producers_of("x")


def test_a_list_of_all_producers_is_counted_before_it_is_collected_on_a_thread(
    desk: Desk, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected_on: list[threading.Thread] = []

    def note(name: str) -> None:
        collect = getattr(desk.clients, name)

        def noting(*arguments: Any) -> Any:
            collected_on.append(threading.current_thread())
            return collect(*arguments)

        monkeypatch.setattr(desk.clients, name, noting)

    def ask() -> ProducerTable:
        request = request_with()
        answer = asyncio.run(desk.heartbeats.get_all_producer_info(GetAllProducerInfo(), request))
        return ProducerTable.decode(answer.body)

    monkeypatch.setattr(GetAllProducerInfo, "answer_max", AnswerMax(lines=30))
    for connection in (1, 2):
        body = HeartbeatData(client_id="c", producer_data_set=producers(0, 10)).encode()
        desk.beat(body, connection)
    note("producer_groups")
    note("producers")
    assert {group: len(found) for group, found in ask().data.items()} == {f"p{n}": 2 for n in range(10)}
    assert len(collected_on) == 11 and threading.main_thread() not in collected_on
    collected_on.clear()
    desk.beat(HeartbeatData(client_id="c", producer_data_set=producers(0, 11)).encode())
    with pytest.raises(Refused, match="32 lines or more, the limit is 30 lines"):
        ask()
    assert collected_on == []


def test_a_client_is_taken_although_there_is_no_room_for_its_retry_topic(
    make_desk: Callable[..., Desk], make_tables: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    desk = make_desk(topics_max=len(make_tables().topics))
    for _ in range(3):
        answer = desk.beat(OLD_CLIENTS_BODY)
        assert answer.header()["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    assert desk.clients.consumer_group("billing") is not None
    assert desk.clients.producers("CLIENT_INNER_PRODUCER")
    assert "%RETRY%billing" not in desk.tables.topics
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1 and "group billing" in told[0] and "topics_max" in told[0]
    # The next heartbeat after some topic was deleted makes it.
    desk.tables.topics.remove("BenchmarkTest")
    desk.beat(OLD_CLIENTS_BODY)
    assert "%RETRY%billing" in desk.tables.topics
    assert desk.tables.published == ["billing", "%RETRY%billing"]


def test_filters_that_are_not_understood_are_told_early(desk: Desk, request_with: Any) -> None:
    def check(expression_type: str, expression: str = "a > 1") -> None:
        body = CheckClientRequestBody(
            client_id="c",
            group="g",
            subscription_data=SubscriptionData(expression_type=expression_type, sub_string=expression),
        )
        asyncio.run(desk.heartbeats.check_client_config(CheckClientConfig(), request_with(body.encode())))

    with pytest.raises(Refused, match="the check has 300000 bytes, the limit is 262144"):
        asyncio.run(desk.heartbeats.check_client_config(CheckClientConfig(), request_with(b" " * 300_000)))
    check("TAG")
    check("TAG", "a > ")
    check("SQL92")
    for expression_type, expression, says in [
        ("SQL92", "a > ", "line 1, column 4: the expression ends too early"),
        ("SQL93", "a > 1", "no filters of type SQL93"),
    ]:
        with pytest.raises(Refused, match=says) as raised:
            check(expression_type, expression)
        assert raised.value.code == 23


def by_sql(expression: str, group: str = "billing") -> bytes:
    subscription = SubscriptionData(topic="t", sub_string=expression, expression_type="SQL92", sub_version=1)
    return HeartbeatData(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=[subscription])],
    ).encode()


@pytest.fixture
def compiling_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that compile an expression, in their order."""
    threads: list[str] = []
    compile_tree = program.compile_tree

    def compile_noted(tree: Any) -> Any:
        threads.append(threading.current_thread().name)
        return compile_tree(tree)

    monkeypatch.setattr(program, "compile_tree", compile_noted)
    return threads


def test_expressions_are_compiled_once_and_off_the_event_loop(
    desk: Desk, request_with: Any, compiling_threads: list[str]
) -> None:
    body = CheckClientRequestBody(
        client_id="c",
        group="g",
        subscription_data=SubscriptionData(expression_type="SQL92", sub_string="checked_apart = 1"),
    )
    for _ in range(3):
        asyncio.run(desk.heartbeats.check_client_config(CheckClientConfig(), request_with(body.encode())))
        desk.beat(by_sql("beaten_apart = 1"))
        desk.beat(by_sql("beaten_apart = = 1", group="wrong"))
    assert desk.clients.consumer_group("billing") is not None
    assert desk.clients.consumer_group("wrong") is not None, "the answers to its pulls tell what is wrong"
    assert len(compiling_threads) == 2, "the wrong one has no tree"
    assert all(name.startswith("metaq-compilation") for name in compiling_threads)


def test_a_client_that_leaves_while_its_filter_is_compiled_is_not_taken(
    desk: Desk, request_with: Any
) -> None:
    async def scenario() -> None:
        gate = threading.Event()
        blocked = asyncio.create_task(desk.filters.pool.run(FakeRequest(connection=9), gate.wait))
        await asyncio.sleep(0)
        beats = []
        for connection, group in ((1, "gone"), (2, "here")):
            request = request_with(by_sql(f"{group}_meanwhile = 1", group), connection)
            outcome = desk.heartbeats.heart_beat(HeartBeat(), request)
            assert not isinstance(outcome, Response)
            beats.append(asyncio.ensure_future(outcome))
        await asyncio.sleep(0)
        desk.clients.remove_connection(1)
        gate.set()
        await asyncio.gather(blocked, *beats)

    asyncio.run(scenario())
    assert desk.clients.consumer_group("gone") is None
    assert desk.clients.consumer_group("here") is not None


def test_many_requests_with_one_new_expression_compile_it_once(
    desk: Desk, compiling_threads: list[str]
) -> None:
    async def scenario() -> None:
        pulls = [
            asyncio.create_task(desk.filters.compile_apart(FakeRequest(), "SQL92", "of_many_queues = 1"))
            for _ in range(500)
        ]
        await asyncio.sleep(0)
        pulls[0].cancel()
        programs = await asyncio.gather(*pulls, return_exceptions=True)
        assert isinstance(programs[0], asyncio.CancelledError)
        assert all(program == programs[1] for program in programs[2:])
        with pytest.raises(Refused, match="column 22"):
            await desk.filters.compile_apart(FakeRequest(), "SQL92", "of_many_queues_too = = 1")

    asyncio.run(scenario())
    assert len(compiling_threads) == 1


def test_members_that_differ_in_order_change_the_retry_topic_once(desk: Desk) -> None:
    desk.tables.topics.put(TopicConfig(topic_name="ordered", order=True))
    desk.tables.topics.put(TopicConfig(topic_name="plain"))
    versions = []
    for turn in range(10):
        topic = "plain" if turn % 2 else "ordered"
        data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic=topic)])
        desk.beat(HeartbeatData(client_id="c", consumer_data_set=[data]).encode(), connection=turn % 2 + 1)
        versions.append(desk.tables.topics.data_version.counter)
    assert len(set(versions[1:])) == 1, "no further entry of the journal, and no registration"
    assert desk.tables.topics.get("%RETRY%g").order


def _many(groups: int) -> bytes:
    consumers = [ConsumerData(group_name=f"g{number}") for number in range(groups)]
    return HeartbeatData(client_id="c", consumer_data_set=consumers).encode()


def test_many_groups_of_a_heartbeat_are_taken_in_turns(desk: Desk, request_with: Any) -> None:
    async def scenario() -> None:
        request = request_with(_many(1_000))
        taken = asyncio.create_task(_outcome(desk, request))
        before = 0
        while not taken.done():
            await asyncio.sleep(0)
            assert len(desk.changes) - before <= GROUPS_AT_ONCE
            before = len(desk.changes)
        assert await taken is RESPONDED and request.answers

    asyncio.run(scenario())
    assert len(desk.changes) == 1_000 and len(desk.tables.published) == 2_000


def _many_producers(groups: int) -> bytes:
    producers = [ProducerData(group_name=f"p{number}") for number in range(groups)]
    return HeartbeatData(client_id="c", producer_data_set=producers).encode()


def test_many_producer_groups_are_taken_in_turns(desk: Desk, request_with: Any) -> None:
    async def scenario() -> None:
        taken = asyncio.create_task(_outcome(desk, request_with(_many_producers(1_000))))
        before = 0
        while not taken.done():
            await asyncio.sleep(0)
            groups = len(desk.clients.producer_groups())
            assert groups - before <= GROUPS_AT_ONCE
            before = groups
        assert before == 1_000

    asyncio.run(scenario())


def test_a_client_with_a_new_id_leaves_many_groups_in_turns(desk: Desk, request_with: Any) -> None:
    async def scenario() -> None:
        await _outcome(desk, request_with(_many(900)))
        desk.changes.clear()
        data = [ConsumerData(group_name="g899"), ConsumerData(group_name="other")]
        beat = HeartbeatData(client_id="d", consumer_data_set=data).encode()
        taken = asyncio.create_task(_outcome(desk, request_with(beat)))
        before = 0
        while not taken.done():
            await asyncio.sleep(0)
            assert len(desk.changes) - before <= REMOVED_AT_ONCE + len(data)
            before = len(desk.changes)
        assert desk.clients.groups_of(1) == ({"g899", "other"}, set())
        assert [group.client_ids() for group in desk.clients.all_consumer_groups()] == [["d"], ["d"]]

    asyncio.run(scenario())


def test_a_client_that_leaves_meanwhile_is_no_member(desk: Desk, request_with: Any) -> None:
    async def scenario() -> None:
        taken = asyncio.create_task(_outcome(desk, request_with(_many(500))))
        while not desk.changes:
            await asyncio.sleep(0)
        desk.clients.remove_connection(1)
        assert await taken is RESPONDED

    asyncio.run(scenario())
    made = [group.group_name for group in desk.tables.groups if group.group_name.startswith("g")]
    assert 0 < len(made) < 500
    assert all(desk.clients.consumer_group(name) is None for name in made)
    assert {*made, *(f"%RETRY%{name}" for name in made)} <= set(desk.tables.published)


async def _outcome(desk: Desk, request: Any) -> Response:
    outcome = desk.heartbeats.heart_beat(HeartBeat(), request)
    return outcome if isinstance(outcome, Response) else await outcome


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (b'"0.1.0"', "0.1.0"),
        (b'"1.2.3+local-4"', "1.2.3+local-4"),
        (b'""', None),
        (b'"\\u001b[2J"', None),
        (b'"' + b"9" * 33 + b'"', None),
        (b"null", None),
    ],
)
def test_a_client_tells_its_own_version(
    desk: Desk, request_with: Any, told: bytes, shown: str | None
) -> None:
    body = b'{"clientID":"c@1","clientVersion":' + told + b',"consumerDataSet":[{"groupName":"billing"}]}'
    desk.beat(body)
    command = GetConsumerConnectionList(consumer_group="billing")
    answer = asyncio.run(desk.heartbeats.get_consumer_connection_list(command, request_with()))
    [member] = ConsumerConnection.decode(answer.body).connection_set
    assert (member.client_version, b"clientVersion" in answer.body) == (shown, shown is not None)
