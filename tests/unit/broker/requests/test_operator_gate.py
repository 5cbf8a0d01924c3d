"""Requests of operators about waiting messages, by the address of the peer."""

from __future__ import annotations

import socket

import pytest

from metaq.broker.requests.operator_gate import CODES, OperatorGate
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.topics import GetTopicConfig
from metaq.protocol.commands.waiting import ListTransactions
from metaq.protocol.dispatch import Handlers, Request, handles
from metaq.protocol.handling.local_peers import is_local
from metaq.protocol.handling.operator_requests import OperatorSources
from tests.support.fake_request import FakeRequest

HERE, ELSEWHERE = "127.0.0.1:50000", "192.0.2.1:50000"


class Role:
    @handles(ListTransactions)
    def list_transactions(self, command: ListTransactions, request: Request) -> None:
        """Answers with success."""

    @handles(GetTopicConfig)
    def get_topic_config(self, command: GetTopicConfig, request: Request) -> None:
        """Answers with success."""


@pytest.mark.parametrize(
    ("sources", "remote", "is_welcome"),
    [
        ("local", HERE, True),
        ("local", ELSEWHERE, False),
        ("any", ELSEWHERE, True),
        ("none", HERE, False),
    ],
)
def test_requests_come_from_where_they_may(sources: OperatorSources, remote: str, is_welcome: bool) -> None:
    gate = OperatorGate(Handlers(Role()), sources)
    operators = FakeRequest(ListTransactions.code, remote=remote)
    gate.begin(operators)
    ((code, remark, _, _),) = operators.answers
    assert (code == ResponseCode.SUCCESS) is is_welcome
    if not is_welcome:
        assert code == ResponseCode.NO_PERMISSION
        assert "operator_requests" in (remark or "")
    other = FakeRequest(GetTopicConfig.code, fields={"topic": "t"}, remote=remote)
    gate.begin(other)
    assert other.answers[0][0] == ResponseCode.SUCCESS, "other requests pass"


def test_a_oneway_request_is_refused_without_an_answer() -> None:
    request = FakeRequest(ListTransactions.code, oneway=True, remote=ELSEWHERE)
    OperatorGate(Handlers(Role()), "local").begin(request)
    assert request.answers == []


@pytest.mark.parametrize("remote", [HERE, "127.9.9.9:1", "[::1]:5", "[::ffff:127.0.0.1]:5"])
def test_loopback_is_this_machine(remote: str) -> None:
    assert is_local(remote)


@pytest.mark.parametrize("remote", [ELSEWHERE, "[2001:db8::1]:5", "[::ffff:192.0.2.1]:5", "10.255.255.254:1"])
def test_other_addresses_are_not_this_machine(remote: str) -> None:
    assert not is_local(remote)


def test_a_peer_that_uses_an_outer_address_of_this_machine_is_local() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            own = "127.0.0.1"  # This machine has no network.
        else:
            own = probe.getsockname()[0]
    assert is_local(f"{own}:50000")


def test_all_requests_about_waiting_messages_are_covered() -> None:
    assert sorted(CODES) == list(range(30_342, 30_347))
