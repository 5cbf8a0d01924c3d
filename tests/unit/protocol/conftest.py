"""A request without a socket, and a server with one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaq.protocol.command import Command
from tests.support.fake_request import FakeRequest


@pytest.fixture
def request_for() -> Callable[..., FakeRequest]:
    def build(command: Command, **rest: object) -> FakeRequest:
        return FakeRequest(command.code, command.to_fields(), **rest)  # type: ignore[arg-type]

    return build


@pytest.fixture
def raw_request() -> type[FakeRequest]:
    return FakeRequest
