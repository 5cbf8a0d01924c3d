"""10,000 topics and 2,000 groups on one broker: requests, work and memory are bounded."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from metaq.admin import aio
from metaq.console.live import history
from metaq.console.live.history import SERIES_BYTES_MAX, STILL_BYTES_MAX
from metaq.console.live.live import Live
from metaq.console.live.paging import page
from metaq.console.live.tables import TopicRow
from metaq.console.settings import ConsoleSettings
from metaq.protocol.commands.figures import PAGE_MAX
from tests.support.broker_cluster import broker_options, connected, started_broker, started_nameserver
from tests.support.counted_requests import count_requests
from tests.support.many_topics import GROUPS, TOPICS, group, topic, write_files
from tests.support.waiting import run

MOVING = 60
RINGS_MAX = 40
ANNOUNCEMENTS = ("QueryDataVersion", "RegisterBroker", "BrokerHeartbeat")
"""Requests of the broker itself."""


def test_ten_thousand_topics_and_two_thousand_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    write_files(store / "config")

    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            address = nameserver.address
            settings = ConsoleSettings(address, tmp_path, history_series_max=RINGS_MAX)
            async with (
                started_broker(broker_options(store, address)) as broker,
                aio.Admin(address, timeout=60.0, partial=True) as admin,
            ):
                live = Live(admin, settings)
                await live.poll()
                assert live.topics.value is not None and live.groups.value is not None
                assert len(live.topics.value.rows) >= TOPICS and len(live.groups.value.rows) >= GROUPS
                assert live.history.series_count == 0, "nothing has moved"
                async with connected(broker.address) as client:
                    for number in range(MOVING):
                        await client.send(topic(number), b"x")
                asked = count_requests(monkeypatch)
                tracemalloc.start()
                try:
                    await live.poll()
                    used = history_bytes()
                finally:
                    tracemalloc.stop()
                for name in ANNOUNCEMENTS:
                    asked.pop(name, None)
                assert asked.pop("GetTopicFigures") == len(live.topics.value.rows) // PAGE_MAX + 1
                assert asked.pop("GetGroupFigures") == len(live.groups.value.rows) // PAGE_MAX + 1
                assert asked.total() <= 12, f"a poll asks a bounded number of other questions: {asked}"
                assert live.history.series_count == RINGS_MAX, "more lags have moved than there are rings"
                # Rates that the first poll did not know yet begin as still figures with the second one.
                still = 2 * len(live.topics.value.rows) + 3 * len(live.groups.value.rows)
                assert used <= RINGS_MAX * SERIES_BYTES_MAX + still * STILL_BYTES_MAX, f"{used} bytes"
                asked.clear()
                await see_pages(live)
                assert not asked.keys() - set(ANNOUNCEMENTS), "a page asks the cluster nothing"
                work_is_bounded(live.topics.value.rows)

    run(scenario)


async def see_pages(live: Live) -> None:
    assert live.topics.value is not None and live.groups.value is not None
    worst = page(live.groups.value.rows, kind="normal", sort="lag", descending=True, limit=MOVING)
    assert {row.name for row in worst.rows} == {group(number) for number in range(MOVING)}
    assert {row.figures.lag for row in worst.rows} == {1}
    found = page(live.topics.value.rows, search="99", kind="normal", offset=50, limit=50)
    assert (found.total, len(found.rows)) == (TOPICS, 50)
    assert found.matching == sum("99" in topic(number) for number in range(TOPICS))
    rows = await live.look_at_topics([row.name for row in found.rows])
    assert list(rows.values()) == list(found.rows)
    for name in rows:
        assert len(live.history.series("topic", name, "in").values) == 360


def work_is_bounded(rows: Mapping[str, TopicRow]) -> None:
    """Compares with one plain sort of the names, on the same processor at the same time."""
    plain = least_s(lambda: sorted(rows, key=str.lower))
    for sort in ("name", "messages", "last"):
        work = least_s(lambda sort=sort: page(rows, search="t", sort=sort, descending=True))  # type: ignore[misc]
        assert work <= 25 * plain, f"{sort}: {work / plain:.1f} times a plain sort"


def least_s(work: Callable[[], object], times: int = 5) -> float:
    spent = []
    for _ in range(times):
        began_s = time.thread_time()
        work()
        spent.append(time.thread_time() - began_s)
    return min(spent)


def history_bytes() -> int:
    """The memory that the history has taken since the measurement began."""
    folder = Path(history.__file__).parent
    wanted = [tracemalloc.Filter(True, str(folder / name)) for name in ("history.py", "rings.py")]
    found = tracemalloc.take_snapshot().filter_traces(wanted)
    return sum(statistic.size for statistic in found.statistics("filename"))
