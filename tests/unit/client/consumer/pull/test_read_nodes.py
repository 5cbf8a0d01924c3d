"""The choice of the node that a queue is pulled from."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

import metaq
from metaq.client.consumer.pull.pull_consumer import PullConsumer
from metaq.client.consumer.pull.read_nodes import ReadFrom, ReadNode, ReadNodes
from metaq.client.consumer.pull.requests import PullRequests
from metaq.client.consumer.subscription import Subscription
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import MetaqError, NoRoute, UsageError
from metaq.protocol.commands.messages import PullMessage
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply
from tests.support.waiting import until

QUEUES = [Queue("orders", "b", number) for number in range(12)]
ALL = {0: "master:1", 1: "one:1", 3: "three:1"}


def nodes_of(addresses: dict[int, str], read_from: ReadFrom = "master") -> ReadNodes:
    session = Session("127.0.0.1:1")
    session.routes._brokers = {"b": addresses}
    return ReadNodes(session.routes, read_from)


def selected(nodes: ReadNodes, **options: int) -> Counter[int]:
    async def select() -> Counter[int]:
        return Counter(nodes.select(queue, **options).broker_id for queue in QUEUES)

    return asyncio.run(select())


def test_the_master_is_read_or_the_replica_that_it_suggests() -> None:
    assert selected(nodes_of(ALL)) == {0: 12}
    assert selected(nodes_of(ALL), suggested_id=3) == {3: 12}
    assert selected(nodes_of(ALL), suggested_id=2) == {0: 12}, "nobody knows it"


def test_replicas_share_the_queues_if_they_are_preferred() -> None:
    assert selected(nodes_of(ALL, "replica")) == {1: 6, 3: 6}
    assert selected(nodes_of(ALL, "replica"), suggested_id=0) == {1: 6, 3: 6}
    assert selected(nodes_of({0: "master:1"}, "replica")) == {0: 12}


def test_a_queue_keeps_to_its_replica() -> None:
    async def scenario() -> None:
        first, second = nodes_of(ALL, "replica"), nodes_of(ALL, "replica")
        for queue in QUEUES:
            assert first.select(queue) == first.select(queue) == second.select(queue)

    asyncio.run(scenario())


@pytest.mark.parametrize("read_from", ["master", "replica"])
def test_replicas_share_the_queues_while_there_is_no_master(read_from: ReadFrom) -> None:
    assert selected(nodes_of({1: "one:1", 3: "three:1"}, read_from)) == {1: 6, 3: 6}


def test_a_failed_node_is_avoided_while_there_is_another() -> None:
    async def scenario() -> None:
        nodes = nodes_of(ALL, "replica")
        (queue, *_) = QUEUES
        order = []
        for _ in ALL:
            order.append(nodes.select(queue))
            nodes.failed(order[-1])
        assert [node.broker_id for node in order] in ([1, 3, 0], [3, 1, 0])
        assert nodes.select(queue) == order[0], "all have failed"
        assert 0 < nodes.avoided_s(order[1]) <= 1
        nodes.worked(order[1])
        assert nodes.select(queue) == order[1]

    asyncio.run(scenario())


def test_a_broker_without_nodes_has_no_route() -> None:
    async def scenario() -> None:
        with pytest.raises(NoRoute, match="no route contains a node of b"):
            nodes_of({}).select(QUEUES[0])

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["consumer", "puller"])
def test_another_value_is_refused(kind: str) -> None:
    with metaq.Client("127.0.0.1:1") as client, pytest.raises(UsageError, match="one of master, replica"):
        if kind == "consumer":
            client.consumer("t", group="g", read_from="slave")  # type: ignore[arg-type]
        else:
            client.puller(read_from="slave")  # type: ignore[arg-type]


class Nodes:
    """Answers the pulls of a session as scripted by address."""

    def __init__(self, **answers: Reply | MetaqError) -> None:
        self.session = Session("127.0.0.1:1")
        self.session.routes._brokers = {"b": {0: "master:1", 1: "replica:1"}}
        self.session.routes.get = self._refresh  # type: ignore[method-assign,assignment]
        self.session.call = self._call  # type: ignore[method-assign,assignment]
        self.asked: list[str] = []
        self._answers = answers

    async def _refresh(self, topic: str, **_: object) -> None:
        self.asked.append("route")

    async def _call(self, address: str, command: PullMessage, **_: object) -> Reply:
        name = address.removesuffix(":1")
        self.asked.append(name)
        answer = self._answers[name]
        if isinstance(answer, MetaqError):
            raise answer
        return answer

    def pull(self, read_from: ReadFrom, times: int = 1) -> tuple[int, bool]:
        requests = PullRequests(self.session, "g", carries_subscription=False, read_from=read_from)

        async def pull() -> tuple[int, bool]:
            for _ in range(times):
                result = await requests.pull(QUEUES[0], 7, Subscription.of("orders"), 32)
            return result.next_offset, result.is_moved

        return asyncio.run(pull())


def answered(code: int, next_offset: int) -> Reply:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": "9",
    }
    return Reply(code, None, fields, b"")


def test_only_a_master_moves_a_consumer() -> None:
    nodes = Nodes(replica=answered(21, 3), master=answered(20, 8))
    assert nodes.pull("replica") == (8, False)
    assert nodes.asked == ["replica", "master"]
    nodes = Nodes(replica=answered(21, 3), master=answered(21, 9))
    assert nodes.pull("replica") == (9, True)
    nodes = Nodes(replica=answered(21, 3))
    nodes.session.routes._brokers = {"b": {1: "replica:1"}}
    assert nodes.pull("replica") == (7, False), "without a master it waits"


@pytest.mark.parametrize("problem", [Unreachable("gone"), Refused(2, "busy"), Refused(17, "no topic")])
def test_a_pull_that_a_replica_does_not_answer_goes_to_the_master(problem: MetaqError) -> None:
    nodes = Nodes(replica=problem, master=answered(20, 8))
    assert nodes.pull("replica", times=2) == (8, False)
    assert [name for name in nodes.asked if name != "route"] == ["replica", "master", "master"]


def test_a_pull_that_reaches_no_master_goes_to_a_replica() -> None:
    nodes = Nodes(replica=answered(20, 8), master=Unreachable("gone"))
    assert nodes.pull("master", times=2) == (8, False)
    assert nodes.asked == ["master", "route", "replica", "replica"]


def test_a_refusal_of_the_master_is_final() -> None:
    nodes = Nodes(replica=answered(20, 8), master=Refused(16, "not allowed"))
    with pytest.raises(Refused, match="not allowed"):
        nodes.pull("master")
    assert nodes.asked == ["master"]


def test_the_error_of_the_last_node_is_raised() -> None:
    nodes = Nodes(replica=Unreachable("gone"), master=Unreachable("gone too"))
    with pytest.raises(Unreachable, match="gone"):
        nodes.pull("replica")
    assert [name for name in nodes.asked if name != "route"] == ["replica", "master"]


class Stream:
    """Replaces the native stream of a puller."""

    def __init__(self, kind: str, value: int = 7) -> None:
        self.resumed: list[tuple[str, Any]] = []
        self._event = SimpleNamespace(number=0, kind=kind, value=value, text="", is_empty=True)

    def events(self) -> list[Any]:
        return [self._event]

    def position(self, number: int) -> int:
        return 0

    def resume(self, number: int, address: str, *, broker_id: int, queue_offset: int | None) -> None:
        self.resumed.append((address, queue_offset))

    def relocate(self, number: int, address: str) -> None:
        self.resumed.append((address, "relocated"))


def continued(
    kind: str, source: ReadNode, read_from: ReadFrom, addresses: dict[int, str]
) -> list[tuple[str, Any]]:
    """Returns where a puller continues after an event of its stream."""

    async def scenario() -> list[tuple[str, Any]]:
        session = Session("127.0.0.1:1")
        session.routes._brokers = {"b": addresses}
        session.routes.get = _found  # type: ignore[method-assign]
        assigned = PullConsumer(session, read_from=read_from)._assigned
        stream = Stream(kind)
        assigned.stream = stream  # type: ignore[assignment]
        assigned._numbers = {QUEUES[0]: 0}
        assigned._queues = {0: QUEUES[0]}
        assigned._sources = {0: source}
        assigned._read_events()
        for task in list(assigned._tasks._tasks):
            await task
        return stream.resumed

    return asyncio.run(scenario())


async def _found(topic: str, **_: object) -> Any:
    return SimpleNamespace(readable=[])


PAIR = {0: "master:1", 1: "replica:1"}
MASTER, REPLICA = ReadNode(0, "master:1"), ReadNode(1, "replica:1")


@pytest.mark.parametrize(
    ("kind", "source", "read_from", "expected"),
    [
        ("failed", MASTER, "master", ("replica:1", None)),
        ("failed", REPLICA, "replica", ("master:1", None)),
        ("refused", REPLICA, "replica", ("master:1", None)),
        ("moved", REPLICA, "replica", ("master:1", None)),
        ("moved", MASTER, "master", ("master:1", 7)),
        ("moved", MASTER, "replica", ("replica:1", 7)),
        ("suggested", REPLICA, "replica", ("replica:1", None)),
        ("suggested", MASTER, "master", ("master:1", None)),
    ],
)
def test_a_puller_continues_at_the_node_that_can_be_read(
    kind: str, source: ReadNode, read_from: ReadFrom, expected: tuple[str, Any]
) -> None:
    assert continued(kind, source, read_from, PAIR) == [expected]


def test_a_puller_returns_to_its_node() -> None:
    async def scenario() -> None:
        session = Session("127.0.0.1:1")
        session.routes._brokers = {"b": PAIR}
        assigned = PullConsumer(session, read_from="replica")._assigned
        stream = Stream("failed")
        assigned.stream = stream  # type: ignore[assignment]
        assigned._queues = {0: QUEUES[0]}
        assigned._sources = {0: MASTER}
        assigned._return_later(QUEUES[0], 0, 0.0)
        await until(lambda: stream.resumed)
        assert stream.resumed == [("replica:1", "relocated")]

    asyncio.run(scenario())
