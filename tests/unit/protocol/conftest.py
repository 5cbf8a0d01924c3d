"""A request without a socket, and a server with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from metaq.protocol.command import Command


@dataclass
class FakeRequest:
    """Keeps what it was answered."""

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = 513
    language: int = 0
    oneway: bool = False
    remark: str | None = None
    connection: int = 1
    remote: str = "127.0.0.1:50000"
    answers: list[tuple[int, str | None, dict[str, str], bytes]] = field(default_factory=list)
    retried: int = 0

    def respond(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        self.answers.append((code, remark, dict(fields or {}), body))

    def retry(self) -> None:
        self.retried += 1


@pytest.fixture
def request_for() -> Callable[..., FakeRequest]:
    def build(command: Command, **rest: object) -> FakeRequest:
        return FakeRequest(command.code, command.to_fields(), **rest)  # type: ignore[arg-type]

    return build


@pytest.fixture
def raw_request() -> type[FakeRequest]:
    return FakeRequest
