"""Spark on Apache's brokers: `readFrom=replica`, and the features that only our brokers have."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import metaq
import metaq.spark
from metaq.spark.errors import OptionError
from metaq.spark.sink.batch import SinkWriter
from metaq.spark.sink.options import sink_options
from metaq.spark.sink.stream import StreamSinkWriter
from metaq.spark.source.batch import BatchReader, RangePartition
from metaq.spark.source.options import source_options
from metaq.spark.source.stream import StreamReader
from tests.support import apache
from tests.support.apache import ApacheServer
from tests.support.reading import stored, stored_all
from tests.support.waiting import wait_until

TOPIC = "replicated"
COPY = "copied"
COUNT = 300
LARGE = "large"
LARGE_COUNT = 160
LARGE_BYTES = 400_000
"""Far more in all than a scan reads ahead."""
RECORD_BYTES_MIN = 91


@dataclass(frozen=True)
class Pair:
    nameserver: str
    master: ApacheServer
    slave: ApacheServer

    def reader(self, **options: str) -> BatchReader:
        given = {"nameservers": self.nameserver, "subscribe": TOPIC, "columns": "body", **options}
        return BatchReader(source_options(given, streaming=False))

    def planned(self, **options: str) -> list[RangePartition]:
        return self.reader(**options).partitions()

    def addresses(self, **options: str) -> set[str]:
        return {part.address for part in self.planned(**options) if part.part.to_offset}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        quick = {"jvm_flags": apache.SHORT_LIVED, "heap": "512m"}
        names = apache.start_nameserver(tmp_path / "names", **quick)
        stack.callback(names.stop)
        master = apache.start_broker(tmp_path / "master", [names.address], **quick)
        stack.callback(master.stop)
        settings = {"brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True}
        slave = apache.start_broker(tmp_path / "slave", [names.address], settings=settings, **quick)
        stack.callback(slave.stop)
        yield Pair(names.address, master, slave)


def test_a_replica_that_has_everything_is_read(pair: Pair) -> None:
    expected = {b"%d" % number for number in range(COUNT)}
    with metaq.Client(pair.nameserver) as client, client.producer("tests") as producer:
        for body in sorted(expected):
            producer.send(TOPIC, body)
    assert pair.addresses() == {pair.master.address}, "unless told otherwise"
    wait_until(lambda: pair.addresses(readFrom="replica") == {pair.slave.address})

    # A replica that does not answer is not used: nobody knows how far it is.
    os.kill(pair.slave.pid, signal.SIGSTOP)
    try:
        assert pair.addresses(readFrom="replica") == {pair.master.address}
    finally:
        os.kill(pair.slave.pid, signal.SIGCONT)

    wait_until(lambda: pair.addresses(readFrom="replica") == {pair.slave.address})
    refuses_to_write_exactly_once(pair)
    measures_by_lines(pair)
    survives_the_death_of_its_node(pair)
    # Without a master, the slave plans and reads everything.
    reader = pair.reader()
    planned = reader.partitions()
    assert {part.address for part in planned} == {pair.slave.address}
    assert sorted(rows(reader, planned)) == sorted(expected), "the slave alone gives every row once"


def rows(reader: BatchReader, parts: Iterable[RangePartition]) -> list[bytes]:
    return [
        body for part in parts for batch in reader.read(part) for body in batch.column("body").to_pylist()
    ]


def survives_the_death_of_its_node(pair: Pair) -> None:
    """A task that has read a part goes on at another node, with the same messages. Ends without a master."""
    expected = [os.urandom(LARGE_BYTES) for _ in range(LARGE_COUNT)]
    with metaq.Client(pair.nameserver) as client, client.producer("tests") as producer:
        queue = producer.send(LARGE, expected[0]).queue
        for body in expected[1:]:
            producer.send(LARGE, body, queue=queue)
    # A replica gets messages at once, but topics only every few seconds.
    known = pair.slave.home / "store" / "config" / "topics.json"
    wait_until(
        lambda: known.exists() and {TOPIC, LARGE} <= json.loads(known.read_text())["topicConfigTable"].keys()
    )
    wait_until(lambda: pair.addresses(subscribe=LARGE, readFrom="replica") == {pair.slave.address})
    for node, options in ((pair.slave, {"readFrom": "replica"}), (pair.master, {})):
        reader = pair.reader(subscribe=LARGE, **options)
        [part] = reader.partitions()
        assert part.address == node.address
        batches = reader.read(part)
        found = next(batches).column("body").to_pylist()
        assert len(found) < LARGE_COUNT, "the rest is not read yet"
        node.kill()
        found += [body for batch in batches for body in batch.column("body").to_pylist()]
        assert found == expected
        if node is pair.slave:
            node.restart()
            wait_until(lambda: pair.addresses(subscribe=LARGE, readFrom="replica") == {pair.slave.address})


def refuses_to_write_exactly_once(pair: Pair) -> None:
    """The write is refused before anything is sent, whether an option or the rows name the topic."""
    schema = StructType([StructField("body", StringType()), StructField("topic", StringType())])
    given = {"nameservers": pair.nameserver, "deliveryGuarantee": "exactly_once"}
    wanted = f"deliveryGuarantee is exactly_once, and broker-a at {pair.master.address}.*at_least_once"
    for topic in (TOPIC, "not-made-yet"):
        with pytest.raises(OptionError, match=wanted):
            SinkWriter(schema, sink_options({**given, "topic": topic}), overwrite=False)
        with pytest.raises(OptionError, match=wanted):
            StreamSinkWriter(schema, sink_options({**given, "topic": topic}), overwrite=False)
    table = pa.table({"body": ["a", "b"], "topic": [TOPIC, TOPIC]})
    writer = SinkWriter(schema, sink_options(given), overwrite=False)
    with pytest.raises(OptionError, match=wanted):
        writer.write(iter(table.to_batches()))
    # At least once is possible, as the error says; and the refused writes left nothing.
    plain = SinkWriter(schema, sink_options({**given, "deliveryGuarantee": "at_least_once"}), overwrite=False)
    table = pa.table({"body": ["a", "b"], "topic": [COPY, COPY]})
    assert plain.write(iter(table.to_batches())).row_count == 2
    assert sorted(message.body for message in stored_all(pair.nameserver, COPY, 2)) == [b"a", b"b"]
    assert stored(pair.nameserver, "RMQ_SYS_TRANS_HALF_TOPIC") == []


def measures_by_lines(pair: Pair) -> None:
    """Apache brokers count no bytes and do not report the age of a message."""
    most = 10_000
    given = {"nameservers": pair.nameserver, "subscribe": TOPIC, "startingOffsets": "earliest"}
    given |= {"columns": "body", "maxBytesPerTrigger": str(most)}
    reader = StreamReader(source_options(given, streaming=True))
    found: list[list[bytes]] = []
    lags: list[dict[str, Any]] = []
    try:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            parts = reader.partitions(start, end)
            batches = [batch for part in parts for batch in reader.read(part)]
            found.append([value.as_py() for batch in batches for value in batch.column("body")])
            report = reader.reportLatestOffset()
            assert report is not None
            lags.append(report["lag"])
            start = end
    finally:
        reader.stop()
    assert sorted(body for batch in found for body in batch) == sorted(b"%d" % row for row in range(COUNT))
    assert [lag["messages"] for lag in lags] == [
        COUNT - sum(map(len, found[: number + 1])) for number in range(len(found))
    ]
    sizes = [lag["bytes"] for lag in lags]
    assert sizes[-1] == 0 and sizes[0] > RECORD_BYTES_MIN * lags[0]["messages"]
    taken = [before - after for before, after in pairwise(sizes)]
    assert len(taken) > 2 and all(0 < size <= most for size in taken)
    one = max(taken) / min(map(len, found[1:-1]))
    assert all(size > most - len(lags) * one for size in taken[:-1]), "no more would have fitted"
    assert [lag["seconds"] for lag in lags[:-1]] == [None] * (len(lags) - 1) and lags[-1]["seconds"] == 0
    shown = metaq.spark.lags({"sources": [{"latestOffset": {"lag": lags[0]}}]})[0]
    assert (shown.bytes, shown.seconds) == (sizes[0], None)
