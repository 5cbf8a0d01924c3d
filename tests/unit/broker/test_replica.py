"""The requests that a replica answers itself."""

from __future__ import annotations

import pytest

from metaq.broker.replica import ReplicaHandlers
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import UpdateBrokerConfig
from metaq.protocol.dispatch import Handlers, Request, handles
from tests.support.fake_request import FakeRequest


class Here:
    @handles(UpdateBrokerConfig)
    def update(self, command: UpdateBrokerConfig, request: Request) -> None:
        """Answers with success."""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"log_level=debug\nslow_request_ms=5", ResponseCode.SUCCESS),
        (b"log_level=debug\nfileReservedTime=24", ResponseCode.SUCCESS),
        (b"brokerPermission=4", ResponseCode.SERVICE_NOT_AVAILABLE),
        (b"log_level=debug\nbrokerPermission=4", ResponseCode.INVALID_PARAMETER),
        (b"nonsense", ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
def test_a_replica_changes_its_own_process_and_nothing_of_its_master(body: bytes, code: int) -> None:
    request = FakeRequest(UpdateBrokerConfig.code, body=body)
    ReplicaHandlers(Handlers(Here()), stands_in=False).begin(request)
    ((answered, *_),) = request.answers
    assert answered == code
