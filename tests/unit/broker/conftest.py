"""A broker's parts without a socket or a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.broker.options import BrokerOptions
from metaq.broker.state.apache_files import open_journal
from metaq.broker.state.groups import Groups
from metaq.broker.state.journal import Journal
from metaq.broker.state.topics import Topics
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings

NOW_MS = 1_750_000_000_000


@dataclass
class FakeRequest:
    """Keeps what it was answered."""

    body: bytes = b""
    connection: int = 1
    code: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    version: int = 513
    language: int = 0
    oneway: bool = False
    remark: str | None = None
    remote: str = "127.0.0.1:50000"
    answers: list[tuple[int, str | None]] = field(default_factory=list)
    answer_fields: dict[str, str] = field(default_factory=dict)
    retried: int = 0

    def respond(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        self.answers.append((code, remark))
        self.answer_fields = dict(fields or {})

    def retry(self) -> None:
        self.retried += 1


def options_for(directory: Path, **changes: object) -> BrokerOptions:
    return BrokerOptions(
        broker=BrokerSettings(cluster="DefaultCluster", name="broker-a", store_host="127.0.0.1:0"),
        server=ServerSettings(host="127.0.0.1", port=0),
        store=StoreSettings(directory=str(directory)),
        **changes,  # type: ignore[arg-type]
    )


@dataclass
class Tables:
    """Topics and groups with a record of what they told the rest of the broker."""

    topics: Topics
    groups: Groups
    journal: Journal
    clock: Clock
    published: list[str]


@pytest.fixture
def request_with() -> type[FakeRequest]:
    return FakeRequest


@pytest.fixture
def clock() -> Clock:
    return Clock.manual(NOW_MS)


@pytest.fixture
def make_tables(tmp_path: Path, clock: Clock) -> Callable[..., Tables]:
    def make(**changes: object) -> Tables:
        published: list[str] = []

        async def publish(touched: Collection[str]) -> None:
            published.extend(touched)

        options = options_for(tmp_path, **changes)
        journal = asyncio.run(open_journal(tmp_path))
        tables = Tables(
            Topics(options, clock, journal, publish),
            Groups(options, clock, journal, published.extend),
            journal,
            clock,
            published,
        )
        tables.topics.load()
        tables.groups.load()
        return tables

    return make


@pytest.fixture
def tables(make_tables: Callable[..., Tables]) -> Tables:
    return make_tables()
