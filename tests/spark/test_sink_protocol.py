"""Exactly once, crash by crash: what the sink does in tasks and on the driver, without Spark around it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from metaq.admin import Admin
from metaq.client.producer.row_sender import HalfBatch
from metaq.client.sync import Client
from metaq.errors import NoRoute
from metaq.protocol.bodies import KVTable
from metaq.protocol.commands.admin import GetBrokerRuntimeInfo
from metaq.spark.errors import OptionError
from metaq.spark.sink import exactly_once, half_ends
from metaq.spark.sink.batch import write_rows
from metaq.spark.sink.client import client_of, run, session_of
from metaq.spark.sink.columns import Layout
from metaq.spark.sink.exactly_once import Identity
from metaq.spark.sink.half_ends import NotShown
from metaq.spark.sink.markers import PLAIN_BYTES_MAX, Marker, MarkerNotSeen, Markers, StoredMarker
from metaq.spark.sink.options import sink_options
from tests.support.reading import stored
from tests.support.servers import Cluster, start_metaq
from tests.support.waiting import wait_until

SCHEMA = StructType().add("body", "string").add("shardingKey", "string")
MINUTE_MS = 60_000


class Crash(Exception):
    """A process that is gone."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("sink")
    settings = {"transaction_check_interval_s": 1}
    cluster = start_metaq(home, 1, ("broker-a", "broker-b"), "sync", settings, moved=True)
    yield cluster
    cluster.close()


class Query:
    """A query that writes rows `0` to `n` of a batch, half of them by key."""

    numbers = itertools.count()

    def __init__(self, cluster: Cluster) -> None:
        number = next(self.numbers)
        self.cluster = cluster
        self.topic = f"rows-{number}"
        self.name = f"query-{number}"
        self.options = sink_options(
            {
                "nameservers": cluster.namesrv,
                "topic": self.topic,
                "deliveryGuarantee": "exactly_once",
                "batchBytes": "1024",
            }
        )
        self.session = session_of(client_of(cluster.namesrv))
        # Created by the first message, it would be on one broker alone.
        with Admin(cluster.namesrv) as admin:
            admin.topics.create(self.topic)

    @property
    def markers(self) -> str:
        return self.identity(0).topic

    def identity(self, batch: int) -> Identity:
        return Identity(self.name, batch)

    def write(self, batch: int, rows: int = 40) -> list[HalfBatch]:
        """As a task does."""
        table = pa.table(
            {
                "body": [f"{batch}/{row}" for row in range(rows)],
                "shardingKey": [str(row) if row % 2 else None for row in range(rows)],
            }
        )
        layout = Layout.of(SCHEMA, self.topic)
        done = write_rows(self.options, layout, self.identity(batch), table.to_batches(max_chunksize=7))
        assert (
            done.row_count == rows
            and sum(half_batch.message_count for half_batch in done.half_batches) == rows
        )
        return done.half_batches

    def commit(self, batch: int, half_batches: list[HalfBatch]) -> None:
        exactly_once.commit(self.options, self.identity(batch), half_batches)

    def abort(self, batch: int, half_batches: list[HalfBatch]) -> None:
        exactly_once.abort(self.options, self.identity(batch), half_batches)

    def shown(self) -> list[str]:
        return sorted(message.body.decode() for message in stored(self.cluster.namesrv, self.topic))

    def open_count(self) -> int:
        async def ask(broker: str) -> int:
            reply = (await self.session.call(broker, GetBrokerRuntimeInfo())).check()
            return int(KVTable.decode(reply.body).table["transactionsOpen"])

        client = client_of(self.cluster.namesrv)
        return sum(run(client, ask, broker) for broker in self.cluster.brokers)


@pytest.fixture
def query(cluster: Cluster) -> Query:
    return Query(cluster)


def rows(batch: int, count: int = 40) -> list[str]:
    return sorted(f"{batch}/{row}" for row in range(count))


def crash_after(monkeypatch: pytest.MonkeyPatch, ends: int) -> None:
    """The driver dies after it has ended that many half messages."""
    end = half_ends._Ends._end
    left = iter(range(ends))

    async def end_or_crash(self: Any, broker: str, place: tuple[int, int]) -> None:
        if next(left, None) is None:
            raise Crash
        await end(self, broker, place)

    monkeypatch.setattr(half_ends._Ends, "_end", end_or_crash)


def test_a_batch_is_shown_when_it_is_committed_in_the_order_of_its_keys(query: Query) -> None:
    half_batches = query.write(0)
    assert len(half_batches) > 4 and query.shown() == []
    query.commit(0, half_batches)
    assert query.shown() == rows(0)
    by_queue: dict[Any, list[int]] = {}
    for message in stored(query.cluster.namesrv, query.topic):
        row = int(message.body.decode().partition("/")[2])
        if row % 2:
            by_queue.setdefault(message.queue, []).append(row)
    assert all(in_queue == sorted(in_queue) for in_queue in by_queue.values())


def test_a_batch_that_is_committed_again_is_shown_once(query: Query) -> None:
    half_batches = query.write(0)
    query.commit(0, half_batches)
    query.commit(0, half_batches)
    query.commit(0, query.write(0))
    query.commit(1, query.write(1))
    query.commit(0, query.write(0))
    assert query.shown() == rows(0) + rows(1)


def test_a_task_that_was_run_twice_counts_once_and_its_first_rows_go_when_brokers_ask(query: Query) -> None:
    query.write(0)
    query.commit(0, query.write(0))
    assert query.shown() == rows(0)
    assert query.open_count() > 0
    query.cluster.clock.jump(3 * MINUTE_MS)
    wait_until(lambda: query.open_count() == 0)
    assert query.shown() == rows(0)


@pytest.mark.parametrize("ends", [0, 1, 5])
def test_a_driver_that_dies_after_the_marker_has_decided(
    query: Query, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    half_batches = query.write(0)
    with monkeypatch.context() as patched:
        crash_after(patched, ends)
        with pytest.raises(Crash):
            query.commit(0, half_batches)
    assert len(query.shown()) < 40
    # Its successor replays the batch, and writes it anew before it can know.
    query.commit(0, query.write(0))
    assert query.shown() == rows(0)
    assert query.open_count() == 0


def test_without_a_successor_whoever_is_asked_finishes_the_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_batches = query.write(0)
    with monkeypatch.context() as patched:
        crash_after(patched, 2)
        with pytest.raises(Crash):
            query.commit(0, half_batches)
    undecided = query.write(1)
    query.cluster.clock.jump(3 * MINUTE_MS)
    wait_until(lambda: query.shown() == rows(0))
    assert query.open_count() == len(undecided)
    query.cluster.clock.jump(10 * MINUTE_MS)
    query.commit(1, undecided)
    assert query.shown() == rows(0) + rows(1)


def test_an_abort_takes_back_what_was_not_decided(query: Query) -> None:
    query.commit(0, query.write(0))
    query.abort(1, query.write(1))
    assert query.open_count() == 0
    query.commit(1, query.write(1))
    assert query.shown() == rows(0) + rows(1)


def test_an_abort_of_what_was_decided_does_nothing(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    half_batches = query.write(0)
    with monkeypatch.context() as patched:
        crash_after(patched, 1)
        with pytest.raises(Crash):
            query.commit(0, half_batches)
    query.abort(0, half_batches)
    query.commit(0, query.write(0))
    assert query.shown() == rows(0)


def test_a_marker_that_comes_after_its_abort_decides_nothing(query: Query) -> None:
    query.commit(0, query.write(0))
    half_batches = query.write(1)
    late = Marker.of(query.identity(1), query.options.group, half_batches, is_commit=True)
    query.abort(1, half_batches)
    append(query, 1, late)
    query.commit(1, query.write(1))
    assert query.shown() == rows(0) + rows(1)


def test_of_two_drivers_the_first_marker_counts(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was thought to be dead, and goes on between the other's look and its marker."""
    query.commit(0, query.write(0))
    zombies = query.write(1)
    read = Markers.read
    first = [True]

    async def read_then_lose(self: Markers) -> list[StoredMarker]:
        found = await read(self)
        if first.pop() if first else False:
            marker = Marker.of(query.identity(1), query.options.group, zombies, is_commit=True)
            await self.append(marker, 60.0)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Markers, "read", read_then_lose)
        query.commit(1, query.write(1))
    assert query.shown() == rows(0) + rows(1)
    query.commit(1, zombies)
    assert query.shown() == rows(0) + rows(1)
    assert query.open_count() == 0


def hide_new_markers(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """That many reads after an append miss the appended record, although it was acknowledged."""
    append, read = Markers.append, Markers.read
    blind: list[int] = []

    async def append_then_hide(self: Markers, marker: Marker, timeout_s: float) -> None:
        await append(self, marker, timeout_s)
        blind.extend(range(reads))

    async def read_late(self: Markers) -> list[StoredMarker]:
        found = await read(self)
        if blind:
            blind.pop()
            return found[:-1]
        return found

    monkeypatch.setattr(Markers, "append", append_then_hide)
    monkeypatch.setattr(Markers, "read", read_late)


def test_a_marker_that_is_seen_late_decides_all_the_same(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_new_markers(monkeypatch, 3)
    query.commit(0, query.write(0))
    assert query.shown() == rows(0)


def test_a_marker_that_is_not_seen_at_all_is_an_error_and_takes_nothing_back(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_batches, patient = query.write(0), query.options
    query.options = replace(patient, timeout_s=1.0)
    with monkeypatch.context() as patched:
        hide_new_markers(patched, 1_000_000)
        with pytest.raises(MarkerNotSeen):
            query.commit(0, half_batches)
    query.options = patient
    assert query.open_count() == len(half_batches)
    query.commit(0, query.write(0))
    assert query.shown() == rows(0) and query.open_count() == 0


def test_a_batch_that_was_given_up_is_not_taken_for_written(query: Query) -> None:
    query.commit(0, query.write(0))
    half_batches = query.write(1)
    query.abort(1, half_batches)
    with pytest.raises(NotShown, match="given up"):
        query.commit(1, half_batches)


def test_an_identity_that_has_written_elsewhere_is_refused(query: Query) -> None:
    query.options = replace(query.options, app_id=query.name, version=0)
    query.commit(0, query.write(0))
    query.topic = f"{query.topic}-other"
    with pytest.raises(OptionError, match="txnAppId of its own"):
        query.commit(0, query.write(0))
    assert query.shown() == [] and query.open_count() == 0


def test_the_first_version_may_be_any_number(query: Query) -> None:
    """A scheduler may use dates as versions. It must not wait for markers that never existed, either."""
    query.options = replace(query.options, app_id=query.name, version=20260131, timeout_s=1.0)
    query.commit(20260131, query.write(20260131))
    query.commit(20260131, query.write(20260131))
    query.commit(20260130, query.write(20260130))
    query.commit(20260201, query.write(20260201))
    assert query.shown() == rows(20260131) + rows(20260201) and query.open_count() == 0


def test_a_write_without_rows_uses_up_its_version(query: Query) -> None:
    query.options = replace(query.options, app_id=query.name, version=7)
    query.commit(7, [])
    query.commit(7, query.write(7))
    query.commit(8, query.write(8))
    query.commit(9, [])
    query.commit(9, query.write(9))
    assert query.shown() == rows(8) and query.open_count() == 0


def test_while_the_broker_of_its_markers_is_away_an_identity_starts_no_second_list(query: Query) -> None:
    query.options = replace(query.options, app_id=query.name, version=3)
    query.commit(3, query.write(3))
    home = query.cluster.brokers["broker-a"]
    home.kill()
    try:
        # A new driver has no routes in memory. It sees the topic on the other broker.
        with Client(query.cluster.namesrv) as fresh:
            session = session_of(fresh)
            wait_until(lambda: not run(fresh, session.routes.get, query.markers, refresh=True).writable)
            with pytest.raises(NoRoute, match="cannot be written to"):
                run(fresh, Markers(session, query.identity(3)).read)
    finally:
        home.restart()
    query.commit(3, query.write(3))
    assert query.shown() == rows(3)


def test_an_identity_is_not_the_name_of_the_topic_of_jobs() -> None:
    given = {"topic": "t", "deliveryGuarantee": "exactly_once", "txnVersion": "0"}
    assert sink_options({**given, "txnAppId": "JOB"}).app_id == "JOB"
    with pytest.raises(OptionError, match="txnAppId"):
        sink_options({**given, "txnAppId": "JOBS"})


def test_what_is_no_marker_stops_nobody(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.commit(0, query.write(0))
    bomb = zlib.compress(bytes(PLAIN_BYTES_MAX + 1))
    for body in (b"\0", b"no marker", zlib.compress(b"no marker"), bomb):
        with monkeypatch.context() as patched:
            patched.setattr(Marker, "encode", lambda _self, body=body: body)
            append(query, 1, Marker.of(query.identity(1), query.options.group, [], is_commit=True))
    query.commit(1, query.write(1))
    query.commit(0, query.write(0))
    assert query.shown() == rows(0) + rows(1)


def test_without_its_markers_a_query_does_not_go_on(query: Query) -> None:
    half_batches = query.write(7)
    query.options = replace(query.options, timeout_s=1.0)
    with pytest.raises(OptionError, match="exactlyOnceFromAnyBatch"):
        query.commit(7, half_batches)
    query.abort(7, half_batches)
    assert query.shown() == [] and query.open_count() == 0


def test_the_first_batches_may_have_no_rows(query: Query) -> None:
    query.commit(0, [])
    query.commit(1, [])
    query.commit(2, query.write(2))
    assert query.shown() == rows(2)


def test_a_broker_that_is_killed_in_the_middle_of_a_commit_shows_each_row_once(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_batches = query.write(0, 400)
    killed: list[str] = []
    judge = half_ends._Ends._judge

    def kill_then_judge(self: Any, broker: str, *arguments: Any) -> None:
        if broker not in killed and len(killed) < 2:
            killed.append(broker)
            server = query.cluster.brokers[broker]
            server.kill()
            server.restart()
        judge(self, broker, *arguments)

    monkeypatch.setattr(half_ends._Ends, "_judge", kill_then_judge)
    query.commit(0, half_batches)
    assert len(killed) == 2
    assert query.shown() == rows(0, 400)


def test_a_job_is_shown_as_a_whole(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(batch: int) -> Identity:
        return Identity(f"job-{query.name}-{batch}", 0, is_job=True)

    monkeypatch.setattr(query, "identity", job)
    query.commit(0, query.write(0))
    query.abort(1, query.write(1))
    half_batches = query.write(2)
    with monkeypatch.context() as patched:
        crash_after(patched, 1)
        with pytest.raises(Crash):
            query.commit(2, half_batches)
    query.abort(2, half_batches)
    query.cluster.clock.jump(3 * MINUTE_MS)
    wait_until(lambda: query.shown() == rows(0) + rows(2))
    assert query.open_count() == 0


def append(query: Query, batch: int, marker: Marker) -> None:
    client = client_of(query.cluster.namesrv)
    run(client, Markers(query.session, query.identity(batch)).append, marker, 60.0)
