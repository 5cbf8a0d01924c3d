"""One request, one answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import LockBatchQueues
from metaq.protocol.commands.messages import SendMessage
from metaq.protocol.commands.offsets import QueueOffset
from metaq.protocol.commands.routes import (
    DeleteKeyValue,
    GetBrokerClusterInfo,
    GetKeyValue,
    GetRouteInfoByTopic,
    GetTopicsByCluster,
    PutKeyValue,
)
from metaq.protocol.dispatch import RESPONDED, Handlers, Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import LINES_MAX
from tests.support.fake_request import FakeRequest

Build = Callable[..., Any]


class Example:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @handles(GetRouteInfoByTopic)
    def get_route(self, command: GetRouteInfoByTopic, request: Request) -> Response:
        self.seen.append(command.topic)
        return Response(fields=QueueOffset(5), body=b"route")

    @handles(GetTopicsByCluster)
    async def get_topics(self, command: GetTopicsByCluster, request: Request) -> None:
        await asyncio.sleep(0)
        if command.cluster == "none":
            raise Refused(ResponseCode.QUERY_NOT_FOUND, "no such cluster")

    @handles(GetBrokerClusterInfo)
    def fails(self, command: GetBrokerClusterInfo, request: Request) -> None:
        raise RuntimeError("a secret of the inside")

    @handles(PutKeyValue, DeleteKeyValue)
    def itself(self, command: PutKeyValue | DeleteKeyValue, request: Request) -> Response:
        request.retry()
        return RESPONDED


def answer(request: Any) -> Any:
    asyncio.run(Handlers(Example()).answer(request))
    return request.answers


def test_a_handler_answers(request_for: Build) -> None:
    assert answer(request_for(GetRouteInfoByTopic("T"))) == [(0, None, {"offset": "5"}, b"route")]


def test_an_asynchronous_handler_answers(request_for: Build) -> None:
    assert answer(request_for(GetTopicsByCluster("c"))) == [(0, None, {}, b"")]


def test_a_refusal_is_an_answer(request_for: Build) -> None:
    assert answer(request_for(GetTopicsByCluster("none"))) == [(22, "no such cluster", {}, b"")]


def test_a_header_that_cannot_be_read(raw_request: Build) -> None:
    [(code, remark, _, _)] = answer(raw_request(105))
    assert code == 29
    assert remark == "GetRouteInfoByTopic: missing required field `topic`"


def test_an_unknown_code(raw_request: Build) -> None:
    assert answer(raw_request(31337)) == [(3, "request code 31337 is not supported", {}, b"")]


def test_an_unexpected_failure_is_logged_and_told_briefly(
    request_for: Build, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        [(code, remark, _, _)] = answer(request_for(GetBrokerClusterInfo()))
    assert (code, remark) == (1, "request 106 failed: RuntimeError")
    assert "a secret of the inside" in caplog.text


def test_a_oneway_gets_no_answer(request_for: Build, raw_request: Build) -> None:
    assert answer(request_for(GetRouteInfoByTopic("T"), oneway=True)) == []
    assert answer(raw_request(31337, oneway=True)) == []
    assert answer(request_for(GetTopicsByCluster("none"), oneway=True)) == []


def test_a_request_handed_back_is_not_answered(request_for: Build) -> None:
    request = request_for(PutKeyValue("n", "k", "v"))
    assert answer(request) == []
    assert request.retried == 1


def test_two_handlers_of_one_command_are_refused() -> None:
    with pytest.raises(ValueError, match="has two handlers"):
        Handlers(Example(), Example())


def test_the_commands_of_handlers() -> None:
    assert GetKeyValue not in Handlers(Example()).commands()
    assert DeleteKeyValue in Handlers(Example()).commands()


def test_a_peer_whose_requests_fail_does_not_fill_the_log(
    request_for: Build, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            assert answer(request_for(GetBrokerClusterInfo(), remote="10.1.2.3:5"))[0][0] == 1
    assert len(caplog.records) == LINES_MAX


class Reader:
    @handles(LockBatchQueues)
    def lock(self, command: LockBatchQueues, request: Request) -> None:
        raise AssertionError("the body is read")

    @handles(SendMessage)
    def send(self, command: SendMessage, request: Request) -> None:
        """Nothing of a message is read here."""


def test_a_body_that_takes_long_to_read_is_refused_unread() -> None:
    limit = LockBatchQueues.body_bytes_max
    request = FakeRequest(LockBatchQueues.code, body=b" " * (limit + 1))
    assert Handlers(Reader()).begin(request) is None
    ((code, remark, _, _),) = request.answers
    assert (code, remark) == (
        ResponseCode.INVALID_PARAMETER,
        f"the body of this request (LockBatchQueues) has {limit + 1} bytes, the limit is {limit}",
    )
    fields = {"producerGroup": "g", "topic": "t"}
    sent = FakeRequest(SendMessage.code, fields, body=b" " * (limit + 1))
    assert Handlers(Reader()).begin(sent) is None
    assert [answer[0] for answer in sent.answers] == [0]
