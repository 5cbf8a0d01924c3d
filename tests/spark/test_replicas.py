"""`readFrom=replica` with Apache's master and slave: MetaQ's own brokers have no replicas yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import metaq
from metaq.spark.options import source_options
from metaq.spark.source import BatchReader, RangePartition
from tests.support import apache
from tests.support.apache import ApacheServer
from tests.support.reading import eventually

TOPIC = "replicated"
COUNT = 300


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
        names = apache.start_nameserver(tmp_path / "names")
        stack.callback(names.stop)
        master = apache.start_broker(tmp_path / "master", [names.address])
        stack.callback(master.stop)
        settings = {"brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True}
        slave = apache.start_broker(tmp_path / "slave", [names.address], settings=settings)
        stack.callback(slave.stop)
        yield Pair(names.address, master, slave)


def test_a_replica_that_has_everything_is_read(pair: Pair) -> None:
    expected = {b"%d" % number for number in range(COUNT)}
    with metaq.Client(pair.nameserver) as client, client.producer("tests") as producer:
        for body in sorted(expected):
            producer.send(TOPIC, body)
    assert pair.addresses() == {pair.master.address}, "unless told otherwise"
    eventually(lambda: pair.addresses(readFrom="replica") == {pair.slave.address})

    # One that does not answer, so that nobody knows how far it is, is left alone.
    os.kill(pair.slave.pid, signal.SIGSTOP)
    try:
        assert pair.addresses(readFrom="replica") == {pair.master.address}
    finally:
        os.kill(pair.slave.pid, signal.SIGCONT)

    eventually(lambda: pair.addresses(readFrom="replica") == {pair.slave.address})
    # A slave gets messages at once and topics every few seconds.
    known = pair.slave.home / "store" / "config" / "topics.json"
    eventually(lambda: known.exists() and TOPIC in known.read_text())
    reader = pair.reader(readFrom="replica")
    planned = reader.partitions()
    pair.master.kill()
    found = [
        value.as_py() for part in planned for batch in reader.read(part) for value in batch.column("body")
    ]
    assert sorted(found) == sorted(expected), "the slave alone gives every row once"
