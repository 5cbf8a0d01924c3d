"""Messages that the broker deleted before Spark read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metaq.protocol.commands.admin import TriggerDeleteFiles
from metaq.spark.errors import DataLost
from metaq.spark.source.batch import BatchReader
from metaq.spark.source.options import source_options
from metaq.testing import LocalMetaq
from tests.spark.support import BROKER, Stream, Topics, bodies, failure, rows
from tests.support.patient import Connection
from tests.support.waiting import wait_until

TOPIC = "orders"
QUEUE = f"{TOPIC}/{BROKER}/0"
READ, COUNT = 10, 150
WITHOUT = {"failOnDataLoss": "false"}


@pytest.fixture
def server() -> Iterator[LocalMetaq]:
    """Starts a broker whose commit log begins a new file every fifty messages."""
    with LocalMetaq(settings={"commit_log_file_bytes": 64 * 1024}) as started:
        yield started


def body(number: int) -> str:
    return f"{number:04}".ljust(1_000, ".")


def expire(server: LocalMetaq) -> None:
    """Lets all files but the last expire."""

    async def ask() -> None:
        connection = await Connection.open(server.broker)
        try:
            (await connection.call(TriggerDeleteFiles())).check()
        finally:
            await connection.close()

    server.clock.advance(timedelta(hours=80))
    asyncio.run(ask())


def test_expired_messages_are_an_error_unless_allowed(
    spark: SparkSession,
    spark_stderr: Path,
    server: LocalMetaq,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = Topics(server)  # type: ignore[arg-type]
    query = Stream(spark, server.nameserver, tmp_path, subscribe=TOPIC, startingOffsets="earliest")
    try:
        topics.create(TOPIC)
        topics.fill(TOPIC, map(body, range(READ)))
        assert query.run() == [[body(number) for number in range(READ)]]
        topics.fill(TOPIC, map(body, range(READ, COUNT)))
    finally:
        topics.close()
    given = {"nameservers": server.nameserver, "subscribe": TOPIC, "columns": "body"}
    planned = BatchReader(source_options(given, streaming=False)).partitions()
    expire(server)

    kept = [message.body.decode() for message in server.messages(TOPIC)]
    first = COUNT - len(kept)
    assert READ < first < COUNT, "the test has deleted too little or too much"

    # A batch with given offsets notices when it is planned.
    begin = {"subscribe": TOPIC, "startingOffsets": json.dumps({TOPIC: {BROKER: {"0": 0}}})}
    lost = f"{QUEUE} [0, {first}): the queue begins at {first} now"
    with pytest.raises(Exception) as caught:
        rows(spark, server, **begin)  # type: ignore[arg-type]
    assert f"messages are lost: {lost}" in str(caught.value)
    assert bodies(rows(spark, server, **begin, **WITHOUT)) == kept  # type: ignore[arg-type]
    wait_until(lambda: f"going on without lost messages: {lost}" in spark_stderr.read_text(errors="replace"))

    # A task notices what was deleted since then.
    (part,) = planned
    lost = f"{QUEUE} [0, {first}): the queue begins at {first} now"
    with pytest.raises(DataLost) as raised:
        list(BatchReader(source_options(given, streaming=False)).read(part))
    assert f"messages are lost: {lost}" in str(raised.value)
    batches = BatchReader(source_options({**given, **WITHOUT}, streaming=False)).read(part)
    assert [value.as_py().decode() for batch in batches for value in batch.column("body")] == kept
    assert f"going on without lost messages: {lost}" in caplog.messages

    # A stream continues from its checkpoint.
    lost = f"{QUEUE} [{READ}, {first}): the queue begins at {first} now"
    assert f"messages are lost: {lost}" in failure(query.begin(availableNow=True))
    query.options = {**query.options, **WITHOUT}
    assert query.run()[1:] == [kept]
    wait_until(lambda: f"going on without lost messages: {lost}" in spark_stderr.read_text(errors="replace"))
