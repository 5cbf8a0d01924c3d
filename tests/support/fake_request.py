"""A request without a socket, for handlers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class FakeRequest:
    """Keeps its answers."""

    code: int = 0
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
