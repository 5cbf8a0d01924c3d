"""A stream whose group is reset: the next batch begins at the new offset, and no commit undoes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import metaq
from metaq.admin import Admin
from metaq.spark.source import resets
from metaq.spark.source.options import source_options
from metaq.spark.source.stream import StreamReader
from metaq.testing import LocalMetaq

GROUP, TOPIC = "lake", "events"
QUEUE = metaq.Queue(TOPIC, "broker-a", 0)


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets, "LOOK_S", 0.0)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalMetaq]:
    with LocalMetaq() as server:
        yield server


class Query:
    """Plans, reads and commits batches in the order in which Spark does it."""

    def __init__(self, nameserver: str, topic: str) -> None:
        given = {"subscribe": topic, "group": GROUP, "startingOffsets": "earliest"}
        self._options = source_options({"nameservers": nameserver, **given}, streaming=True)
        self.reader = StreamReader(self._options)
        self.offset = self.reader.initialOffset()

    def restart(self) -> None:
        self.reader.stop()
        self.reader = StreamReader(self._options)

    def batch(self) -> list[int] | None:
        """Returns the queue offsets of the next batch; None if there is none."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        if end == self.offset:
            return None
        start, self.offset = self.offset, end
        # Spark reports the batch before when it has recorded this one.
        self.reader.commit(start)
        return [
            number
            for partition in self.reader.partitions(start, end)
            for rows in self.reader.read(partition)
            for number in rows.column("queueOffset").to_pylist()
        ]


@pytest.fixture
def topic(local: LocalMetaq, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")[:60]
    with Admin(local.nameserver) as admin:
        admin.topics.create(name, queues=1)
    return name


def send(local: LocalMetaq, topic: str, count: int) -> None:
    with metaq.Client(local.nameserver) as client, client.producer() as producer:
        producer.send_many([metaq.Message(topic, b"x") for _ in range(count)])


def test_a_stream_follows_resets_back_and_forth(local: LocalMetaq, topic: str) -> None:
    send(local, topic, 10)
    query = Query(local.nameserver, topic)
    queue = metaq.Queue(topic, QUEUE.broker, 0)
    with Admin(local.nameserver) as admin:

        def committed() -> Any:
            return admin.offsets.committed(GROUP, [queue])[queue]

        assert query.batch() == list(range(10))
        send(local, topic, 1)
        assert query.batch() == [10]
        assert committed() == 10
        admin.groups.reset(GROUP, topic, 4)
        query.reader.commit(query.offset)
        assert committed() == 4, "a commit does not undo the reset"
        assert query.batch() == list(range(4, 11))
        assert admin.offsets.resets(GROUP, [queue]) == {queue: 4}, "the checkpoint has it first"
        assert query.batch() is None
        assert admin.offsets.resets(GROUP, [queue]) == {}
        query.reader.commit(query.offset)
        assert committed() == 11

        admin.groups.reset(GROUP, topic, 4)
        assert query.batch() == list(range(4, 11)), "a second reset to the same offset counts, too"
        assert query.batch() is None
        send(local, topic, 5)
        admin.groups.reset(GROUP, topic, "latest")
        assert query.batch() == []
        send(local, topic, 1)
        assert query.batch() == [16]
    query.reader.stop()


def test_a_stream_that_restarts_follows_once(local: LocalMetaq, topic: str) -> None:
    send(local, topic, 6)
    query = Query(local.nameserver, topic)
    assert query.batch() == list(range(6))
    with Admin(local.nameserver) as admin:
        admin.groups.reset(GROUP, topic, 2)
    query.restart()
    assert query.batch() == list(range(2, 6))
    query.restart()
    assert query.batch() is None
    query.reader.stop()


def test_a_task_reads_its_range_while_the_group_is_reset(local: LocalMetaq, topic: str) -> None:
    send(local, topic, 6)
    query = Query(local.nameserver, topic)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    [partition] = query.reader.partitions(query.offset, end)
    next(iter(query.reader.read(partition)))  # Reading creates the group.
    with Admin(local.nameserver) as admin:
        admin.groups.reset(GROUP, topic, 3)
        batches = list(query.reader.read(partition))
        rows = [number for batch in batches for number in batch.column("queueOffset").to_pylist()]
        assert rows == list(range(6))
        assert admin.offsets.resets(GROUP, [metaq.Queue(topic, QUEUE.broker, 0)]), "it ends no reset"
    query.reader.stop()
