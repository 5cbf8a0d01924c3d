"""Delayed messages, transactions and pipelines: shared answers, and no zero that nobody knows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from metaq.admin.pipelines.reports import PipelineReport, PipelineReports
from metaq.admin.results import BrokerFailure
from metaq.admin.waiting.results import DelayedMessages, DelayedOverview, DueBucket, OpenTransactions
from metaq.console.pages.delayed import count_labels, delayed, time_labels
from metaq.console.pages.pipelines import pipelines
from metaq.console.pages.transactions import transactions
from metaq.errors import NoRoute
from tests.support.console_pages import Viewed, html_of
from tests.support.waiting import run

AWAY = (BrokerFailure("broker-b", "no answer"),)
HOUR_MS = 3_600_000
BEGIN_MS = 1_800_000_000_000
PAGES = {"/delayed": delayed, "/transactions": transactions, "/pipelines": pipelines}


class Waiting:
    """Stands in for the admin client and its parts."""

    def __init__(self, **facts: Any) -> None:
        self.delayed, self.transactions, self.pipelines = _Delayed(self), _Open(self), _Reports(self)
        self.facts = facts
        self.asked = 0
        self.is_down = False

    async def answer(self, value: Any) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_down:
            raise NoRoute("nobody is here")
        return value


class _Part:
    def __init__(self, cluster: Waiting) -> None:
        self.cluster = cluster


class _Delayed(_Part):
    async def overview(self, *, buckets: int) -> Any:
        pending = self.cluster.facts.get("pending", 0)
        step_ms = HOUR_MS
        histogram = tuple(
            DueBucket(BEGIN_MS + n * step_ms, BEGIN_MS + (n + 1) * step_ms, n)
            for n in range(5 if pending else 0)
        )
        shown = {name: self.cluster.facts.get(name, ()) for name in ("failures", "missing")}
        return await self.cluster.answer(
            DelayedOverview(pending, 0, None, None, (), histogram, shown["failures"], shown["missing"])
        )

    async def list(self, **_: object) -> Any:
        return await self.cluster.answer(DelayedMessages((), False))


class _Open(_Part):
    async def list(self, **_: object) -> Any:
        facts = self.cluster.facts
        return await self.cluster.answer(
            OpenTransactions((), 0, False, facts.get("failures", ()), facts.get("missing", ()))
        )


class _Reports(_Part):
    async def list(self) -> Any:
        return await self.cluster.answer(PipelineReports((), None, self.cluster.facts.get("failures", ())))


def page_of(folder: Path, path: str, cluster: Waiting, **query: str) -> str:
    viewed = Viewed(folder, cluster)
    return html_of(asyncio.run(PAGES[path](viewed.request(path, **query))))


@pytest.mark.parametrize(
    ("path", "nothing"), [("/delayed", "No message waits"), ("/transactions", "No transaction is open")]
)
def test_nothing_waits_only_if_all_brokers_say_so(tmp_path: Path, path: str, nothing: str) -> None:
    assert nothing in page_of(tmp_path, path, Waiting())
    for facts in ({"failures": AWAY}, {"missing": ("apache does not report them",)}):
        text = page_of(tmp_path, path, Waiting(**facts))
        assert nothing not in text and "The others may have some." in text


def test_a_count_that_lacks_a_broker_is_partial(tmp_path: Path) -> None:
    whole = page_of(tmp_path, "/delayed", Waiting(pending=7))
    assert '<span class="v">7</span>' in whole
    for facts in ({"failures": AWAY}, {"missing": ("apache does not report them",)}):
        assert '<span class="v partial"' in page_of(tmp_path, "/delayed", Waiting(pending=7, **facts))


@pytest.mark.parametrize("path", sorted(PAGES))
def test_ten_viewers_cost_as_much_as_one_and_an_error_leaves_the_answer(tmp_path: Path, path: str) -> None:
    cluster = Waiting(pending=7)
    viewed = Viewed(tmp_path, cluster)

    async def scenario() -> None:
        await PAGES[path](viewed.request(path))
        alone, cluster.asked = cluster.asked, 0
        viewed.app.state.latest.forget()
        shown = await asyncio.gather(*(PAGES[path](viewed.request(path)) for _ in range(10)))
        assert cluster.asked == alone
        cluster.is_down = True
        viewed.app.state.latest.forget()
        stale = html_of(await PAGES[path](viewed.request(path)))
        assert "nobody is here" in stale
        assert ">7</span>" in stale if path == "/delayed" else len(stale) > len(html_of(shown[0]))

    run(scenario)


def test_a_cluster_that_never_answered_is_no_empty_cluster(tmp_path: Path) -> None:
    for path in PAGES:
        cluster = Waiting()
        cluster.is_down = True
        text = page_of(tmp_path, path, cluster)
        assert "nobody is here" in text and 'class="empty"' not in text, path


def test_the_lag_of_a_pipeline_has_a_unit(tmp_path: Path) -> None:
    reports = tuple(
        PipelineReport(f"copy-{lag}", "kafka", f"r{lag}", "h", 1, 1, "running", lag_messages=lag)
        for lag in (42, 1)
    )

    class Reporting(Waiting):
        async def answer(self, value: Any) -> Any:
            return PipelineReports(reports)

    text = page_of(tmp_path, "/pipelines", Reporting(), all="1")
    assert "42 messages" in text and "1 message<" in text


def test_a_chosen_topic_does_not_filter_the_tiles_and_says_so(tmp_path: Path) -> None:
    assert "All topics:" not in page_of(tmp_path, "/delayed", Waiting(pending=7))
    chosen = page_of(tmp_path, "/delayed", Waiting(pending=7), topic="orders")
    assert "All topics:" in chosen and "Messages by due time, all topics" in chosen


def test_the_histogram_has_axes(tmp_path: Path) -> None:
    text = page_of(tmp_path, "/delayed", Waiting(pending=7))
    assert re.findall(r'<text class="histogram__count"[^>]*>([^<]+)</text>', text) == ["0", "2", "4"]
    assert len(re.findall(r'text-anchor="', text)) == 5
    assert count_labels(20_001) == [("0", 0), ("10.0K", 75), ("20.0K", 150)]
    assert count_labels(1) == [("0", 0), ("1", 150)]
    buckets = [DueBucket(BEGIN_MS + n * HOUR_MS, BEGIN_MS + (n + 1) * HOUR_MS, n) for n in range(48)]
    assert time_labels(buckets, 0) == [
        "01-15 08:00",
        "20:00",
        "01-16 08:00",
        "20:00",
        "01-17 08:00",
    ]
    narrow = [DueBucket(BEGIN_MS, BEGIN_MS + 20_000, 1)]
    assert time_labels(narrow, 60)[:2] == ["01-15 09:00:00", "09:00:05"]
    assert time_labels([], 0) == []
