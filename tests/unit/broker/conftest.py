"""A broker's parts without a socket or a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.broker.options import BrokerOptions
from metaq.broker.state.apache_files import open_journal
from metaq.broker.state.groups import Groups
from metaq.broker.state.topics import Topics
from metaq.journal.journal import Journal
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings
from tests.support.fake_request import FakeRequest

NOW_MS = 1_750_000_000_000


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
def request_with() -> Callable[..., FakeRequest]:
    def build(body: bytes = b"", connection: int = 1, **rest: object) -> FakeRequest:
        return FakeRequest(body=body, connection=connection, **rest)  # type: ignore[arg-type]

    return build


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
