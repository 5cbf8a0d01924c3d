"""Topics with known content, and queries on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import metaq
from metaq.protocol.commands.messages import SendMessageV2
from metaq.protocol.commands.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from tests.support import spark_home
from tests.support.clients import create_topic
from tests.support.metaq import Metaq
from tests.support.patient import Connection
from tests.support.rounds import LONG

BROKER = "broker-a"
QUERY_TIMEOUT_S = 120
STARTS_MAX = 10
"""Spark gives the Python process of a source ten seconds to start and has no setting for it. A busy
machine may need more."""
JVM_OPTIONS = spark_home.jvm_options()
QUICK = {
    # Compiling a query takes longer than running it on a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Planning a query again after each of its stages takes longer, too.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of sessions with few rows."""
QUICK_TO_KILL: dict[str, str] = {} if LONG else QUICK
"""Settings of pipelines that are processes. In a long run they compile, as those of users do, and so does the
program of test_cluster.py always."""


class Topics:
    """Creates and fills topics of one broker."""

    def __init__(self, served: Metaq) -> None:
        self._served = served
        self._connect()

    def _connect(self) -> None:
        self._client = metaq.Client(self._served.nameserver)
        self._client.start()
        self._producer = self._client.producer("tests")
        self._producer.start()

    def close(self) -> None:
        self._client.close()

    def create(self, topic: str, queues: int = 1) -> None:
        asyncio.run(create_topic(self._served.broker, topic, queues))
        self._forget_routes()

    def change(self, topic: str, queues: int) -> None:
        self._ask(UpdateAndCreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues))

    def delete(self, topic: str) -> None:
        self._ask(DeleteTopicInBroker(topic=topic))

    def _ask(self, command: Any) -> None:
        async def ask() -> None:
            connection = await Connection.open(self._served.broker)
            try:
                (await connection.call(command)).check()
            finally:
                await connection.close()

        asyncio.run(ask())
        self._forget_routes()

    def _forget_routes(self) -> None:
        """Starts a new producer: an old one asks for routes only every half minute."""
        self.close()
        self._connect()

    def fill(self, topic: str, bodies: Iterable[bytes | str], *, queue: int = 0, **options: Any) -> None:
        """Sends the bodies in this order to one queue."""
        place = metaq.Queue(topic, BROKER, queue)
        for body in bodies:
            data = body.encode() if isinstance(body, str) else body
            self._producer.send_soon(topic, data, queue=place, **options)
        self._producer.flush()


def send_raw(broker: str, topic: str, body: bytes, *, system_flag: int = 0, born_ms: int = 0) -> None:
    """Sends a message with any flag and time."""

    async def send() -> None:
        connection = await Connection.open(broker)
        try:
            command = SendMessageV2(
                producer_group="tests", topic=topic, sys_flag=system_flag, born_timestamp=born_ms
            )
            (await connection.call(command, body)).check()
        finally:
            await connection.close()

    asyncio.run(send())


def read(spark: SparkSession, served: Metaq, options: Mapping[str, object]) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("metaq").options(nameservers=served.nameserver, **texts).load()


def rows(spark: SparkSession, served: Metaq, **options: object) -> list[Row]:
    """Reads rows in the order of queue and offset."""
    return sorted(
        read(spark, served, options).collect(),
        key=lambda row: tuple(row[name] for name in ("topic", "queueId", "queueOffset") if name in row),
    )


def bodies(found: Iterable[Row]) -> list[str]:
    return [row.body.decode() for row in found]


class Stream:
    """A query that keeps the rows of each batch; every run continues where the last one ended."""

    def __init__(self, spark: SparkSession, nameserver: str, home: Path, **options: object) -> None:
        self._spark = spark
        self._nameserver = nameserver
        self._checkpoint = str(home / "checkpoint")
        self.options = options
        self.batches: dict[int, list[Row]] = {}
        self.query: StreamingQuery | None = None

    def begin(self, **trigger: Any) -> StreamingQuery:
        texts = {name: str(value) for name, value in self.options.items()}
        source = self._spark.readStream.format("metaq").options(nameservers=self._nameserver, **texts).load()

        def keep(frame: DataFrame, number: int) -> None:
            self.batches[number] = frame.collect()

        writer = source.writeStream.option("checkpointLocation", self._checkpoint).foreachBatch(keep)
        for _ in range(STARTS_MAX):
            self.query = (writer.trigger(**trigger) if trigger else writer).start()
            if not _came_too_late(self.query):
                break
        return self.query

    def run(self) -> list[list[str]]:
        """Reads everything; returns the bodies of each batch since the first run, without empty batches."""
        query = self.begin(availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
        return self.bodies

    @property
    def bodies(self) -> list[list[str]]:
        return [sorted(bodies(found)) for _, found in sorted(self.batches.items()) if found]

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


def _came_too_late(query: StreamingQuery) -> bool:
    """Waits until the query has started or failed; returns whether its Python process was too slow."""
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(0.02)
    return not query.isActive and "failed to connect back" in str(query.exception())


def failure(query: StreamingQuery) -> str:
    """Returns the error of a query that has to fail."""
    try:
        query.awaitTermination(QUERY_TIMEOUT_S)
    except Exception as error:
        return str(error)
    raise AssertionError("the query did not fail")
