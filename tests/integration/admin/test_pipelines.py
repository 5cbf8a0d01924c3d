"""Reports of pipelines on MetaQ's broker and on Apache's: the same calls, a bounded number of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from metaq.admin import Admin, PipelineReport
from metaq.admin.pipelines import report_topic
from metaq.admin.pipelines.report_topic import PULLS_MAX
from metaq.errors import NoRoute
from metaq.protocol.command import Command
from metaq.protocol.commands.messages import PullMessage, SendMessageV2
from metaq.protocol.names import PIPELINE_REPORTS_TOPIC
from tests.integration.admin.conftest import Served
from tests.support.metaq import Metaq
from tests.support.waiting import eventually, wait_until


def report(**fields: Any) -> PipelineReport:
    first = PipelineReport(
        name="a name",
        kind="spark-query",
        run=uuid4().hex,
        host="here",
        pid=1,
        started_ms=1,
        state="running",
        topics=("orders",),
    )
    return replace(first, **fields)


def requests_of(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that grows with every request of the client."""
    connections = admin._admin._calls._connections
    call: Callable[..., Awaitable[Any]] = connections.call
    seen: list[str] = []

    async def counted(address: str, command: Command, *more: Any) -> Any:
        seen.append(type(command).__name__)
        return await call(address, command, *more)

    monkeypatch.setattr(connections, "call", counted)
    return seen


def test_reports_are_sent_and_listed(admin: Admin, cluster: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert admin.pipelines.list().reports == (), "no pipeline has reported yet"
    over = report(state="failed", last_error="boom", last_error_ms=5)
    admin.pipelines.send(over)
    runs = [report() for _ in range(3)]
    for run in runs:
        admin.pipelines.send(run)
    admin.pipelines.send(replace(runs[0], rows=7))
    [settings] = admin.topics.show(PIPELINE_REPORTS_TOPIC).settings
    assert (settings.read_queues, settings.write_queues) == (1, 1)

    with Admin(cluster.nameserver, timeout=30) as reader:
        found = eventually(
            reader.pipelines.list,
            lambda found: any(report.rows == 7 for report in found.reports),
            60,
            "all reports",
        )
        assert {found.run for found in found.reports} == {one.run for one in (over, *runs)}
        [failed] = [found for found in found.reports if found.run == over.run]
        assert replace(failed, reported_ms=None) == over
        assert (found.since_ms, found.failures) == (None, ())
        # The next look reads only what is new.
        seen = requests_of(reader, monkeypatch)
        assert len(reader.pipelines.list().reports) == 4
        assert PullMessage.__name__ not in seen and len(seen) <= 3, seen
        admin.pipelines.send(replace(runs[1], state="ended"))
        wait_until(lambda: any(one.state == "ended" for one in reader.pipelines.list().reports))
        assert seen.count(PullMessage.__name__) == 1

    assert [found.id for found in admin.messages.by_key(PIPELINE_REPORTS_TOPIC, "a_name", limit=1)]

    # With many reports, a new reader takes only the last ones, and still finds runs that are over.
    monkeypatch.setattr(report_topic, "LAST_REPORTS_MAX", 2)
    for number in range(3):
        admin.pipelines.send(replace(runs[2], rows=number))

    def fresh() -> set[str]:
        with Admin(cluster.nameserver, timeout=30) as reader:
            seen = requests_of(reader, monkeypatch)
            found = reader.pipelines.list()
            assert seen.count(PullMessage.__name__) <= PULLS_MAX and len(seen) < 10 + PULLS_MAX
            assert found.since_ms is not None
            return {report.run for report in found.reports}

    expected = {over.run, runs[1].run, runs[2].run}
    assert eventually(fresh, lambda found: found == expected, 60, "the newest and the last reports")


def test_a_message_that_cannot_be_decompressed_hides_no_report(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_of = report_topic._command

    def compressed(*given: Any) -> SendMessageV2:
        return msgspec.structs.replace(command_of(*given), sys_flag=1)

    with monkeypatch.context() as patch:
        patch.setattr(report_topic, "_command", compressed)
        for state in ("running", "ended"):
            admin.pipelines.send(report(state=state))
    readable = report()
    admin.pipelines.send(readable)
    wait_until(lambda: readable.run in [found.run for found in admin.pipelines.list().reports])
    admin.topics.delete(PIPELINE_REPORTS_TOPIC)


def test_without_brokers_nobody_knows_the_pipelines(tmp_path: Path) -> None:
    names = Metaq("nameserver", "--listen", "127.0.0.1:0", home=tmp_path)
    try:
        with Admin(names.nameserver, partial=True) as admin, pytest.raises(NoRoute, match="no broker"):
            admin.pipelines.list()
    finally:
        names.stop()


def test_a_topic_that_was_deleted_is_forgotten(admin: Admin) -> None:
    def runs() -> list[str]:
        return [report.run for report in admin.pipelines.list().reports]

    before, after = report(), report()
    admin.pipelines.send(before)
    wait_until(lambda: before.run in runs())
    admin.topics.delete(PIPELINE_REPORTS_TOPIC)
    wait_until(lambda: not runs())
    # The client still knows the queue that it sent to.
    admin.pipelines.send(after)
    wait_until(lambda: after.run in runs())
    assert before.run not in runs()
    [settings] = admin.topics.show(PIPELINE_REPORTS_TOPIC).settings
    assert settings.write_queues == 1
    admin.topics.delete(PIPELINE_REPORTS_TOPIC)
