"""Requests that change what belongs to all, by the address of the peer."""

from __future__ import annotations

import pytest

from metaq._core import Clock
from metaq.nameserver import NameServer
from metaq.nameserver.brokers import Registration
from metaq.nameserver.operator_gate import CODES
from metaq.protocol.bodies import DataVersion, QueueData, TopicConfig, TopicConfigTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.routes import DeleteTopicInNameServer, GetKeyValue, WipeWritePermissionOfBroker
from metaq.protocol.handling.operator_requests import OperatorSources
from metaq.settings import NameServerSettings, ServerSettings
from tests.support.fake_request import FakeRequest

HERE, ELSEWHERE = "127.0.0.1:50000", "192.0.2.1:50000"


@pytest.mark.parametrize(
    ("sources", "remote", "permission"),
    [("local", HERE, 4), ("local", ELSEWHERE, 6), ("any", ELSEWHERE, 4), ("none", HERE, 6)],
)
def test_only_operators_take_the_write_permission_of_a_broker(
    sources: OperatorSources, remote: str, permission: int
) -> None:
    limits = NameServerSettings(nameserver_operator_requests=sources)
    server = NameServer(ServerSettings("127.0.0.1", 0), Clock.manual(1_000_000), limits=limits)
    topics = {name: TopicConfig(topic_name=name) for name in ("A", "B")}
    broker = Registration("c", "b", 0, "10.0.0.1:1", TopicConfigTable(DataVersion(1), topics), connection=1)
    server.routes.register(broker, 1_000_000)
    request = FakeRequest(WipeWritePermissionOfBroker.code, {"brokerName": "b"}, remote=remote, connection=2)
    server._handlers.begin(request)
    [(code, remark, _, _)] = request.answers
    route = server.routes.route("A")
    assert route is not None
    assert [data.perm for data in route.queue_datas] == [permission]
    if permission == 6:
        assert (code, "nameserver_operator_requests" in (remark or "")) == (ResponseCode.NO_PERMISSION, True)


@pytest.mark.parametrize(("sources", "remote"), [("local", ELSEWHERE), ("none", HERE)])
def test_a_topic_that_brokers_still_have_stays_in_the_routes(sources: OperatorSources, remote: str) -> None:
    """Anybody could hide it until its broker registered again. After its brokers have deleted it, a tool on
    another machine still gets success."""
    limits = NameServerSettings(nameserver_operator_requests=sources)
    server = NameServer(ServerSettings("127.0.0.1", 0), Clock.manual(1_000_000), limits=limits)
    topics = {name: TopicConfig(topic_name=name) for name in ("A", "B")}
    broker = Registration("c", "b", 0, "10.0.0.1:1", TopicConfigTable(DataVersion(1), topics), connection=1)
    server.routes.register(broker, 1_000_000)

    def delete() -> int:
        request = FakeRequest(DeleteTopicInNameServer.code, {"topic": "A"}, remote=remote, connection=2)
        server._handlers.begin(request)
        return request.answers[0][0]

    assert delete() == ResponseCode.NO_PERMISSION
    assert server.routes.topics() == ["A", "B"]
    server.routes.put_queues("A", [QueueData("b", 0, 0, 0, 0)], connection=2)
    assert server.routes.topics() == ["A", "B"], "only its broker says that it is gone"
    server.routes.put_queues("A", [QueueData("b", 0, 0, 0, 0)], connection=1)
    assert server.routes.topics() == ["B"]
    assert delete() == ResponseCode.SUCCESS


def test_every_change_of_an_operator_is_refused_from_elsewhere_and_questions_are_not() -> None:
    server = NameServer(ServerSettings("127.0.0.1", 0), Clock.manual(1_000_000))
    for code in CODES:
        request = FakeRequest(code, remote=ELSEWHERE)
        server._handlers.begin(request)
        assert [answer[0] for answer in request.answers] == [ResponseCode.NO_PERMISSION]
    question = FakeRequest(GetKeyValue.code, {"namespace": "n", "key": "k"}, remote=ELSEWHERE)
    server._handlers.begin(question)
    assert [answer[0] for answer in question.answers] == [ResponseCode.QUERY_NOT_FOUND]
