"""Options of streams: subscriptions, start positions, filters at the broker, splits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import metaq
from tests.spark.support import BROKER, QUERY_TIMEOUT_S, Stream, Topics
from tests.support.clients import create_topic
from tests.support.metaq import Metaq
from tests.support.servers import Cluster, start_metaq
from tests.support.waiting import moment_between, wait_until

MakeTopic = Callable[..., str]
MakeStream = Callable[..., Stream]
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def stream(spark: SparkSession, served: Metaq, tmp_path: Path) -> Iterator[MakeStream]:
    made: list[Stream] = []

    def make(**options: object) -> Stream:
        home = tmp_path / str(len(made))
        made.append(Stream(spark, served.nameserver, home, **{"startingOffsets": "earliest", **options}))
        return made[-1]

    yield make
    for query in made:
        query.stop()


def test_brokers_choose_the_messages(stream: MakeStream, topics: Topics, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for number, tag in enumerate(("red", "green", "blue")):
        topics.fill(topic, [tag], tag=tag, properties={"number": str(number)})
    by_tag, by_sql = stream(subscribe=topic, tags="red || blue"), stream(subscribe=topic, sql="number > 0")
    assert by_tag.run() == [["blue", "red"]]
    assert by_sql.run() == [["blue", "green"]]
    topics.fill(topic, ["more red"], tag="red", properties={"number": "-1"})
    assert by_tag.run()[-1] == ["more red"]
    assert by_sql.run() == [["blue", "green"]]


def test_it_begins_at_a_time(stream: MakeStream, topics: Topics, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["old"])
    between_ms = moment_between()
    topics.fill(topic, ["new"])
    topics.fill(topic, ["newest"], queue=1)
    times = f'{{"{topic}": {{"{BROKER}": {{"0": {between_ms}, "1": 0}}}}}}'
    for start in ({"startingTimestamp": between_ms}, {"startingOffsetsByTimestamp": times}):
        query = stream(subscribe=topic, **start)
        del query.options["startingOffsets"]
        assert query.run() == [["new", "newest"]], start
    ago = stream(subscribe=topic, startingTimestamp="-10 minutes")
    del ago.options["startingOffsets"]
    assert ago.run() == [["new", "newest", "old"]]


def test_topics_of_a_pattern_that_come_later(
    stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    first = make_topic()
    second = f"{first}-later"
    topics.fill(first, ["a"])
    query = stream(subscribePattern=f"{re.escape(first)}(-.*)?")
    assert query.run() == [["a"]]
    topics.create(second)
    topics.fill(second, ["b"])
    assert query.run() == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 1), ({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "5"}, 8)],
    ids=["whole", "minPartitions", "maxRecordsPerPartition"],
)
def test_ranges_are_split(
    spark: SparkSession,
    served: Metaq,
    topics: Topics,
    make_topic: MakeTopic,
    options: dict[str, str],
    tasks: int,
) -> None:
    topic = make_topic()
    topics.fill(topic, [f"{number:02}" for number in range(40)])
    given = {"nameservers": served.nameserver, "subscribe": topic, "startingOffsets": "earliest", **options}
    rows = spark.readStream.format("metaq").options(**given).load()
    found = f"found_{topic.replace('-', '_')}"
    query = (
        rows.selectExpr("body", "spark_partition_id() AS task")
        .writeStream.format("memory")
        .queryName(found)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    told = spark.sql(f"SELECT count(*) AS rows, count(DISTINCT task) AS tasks FROM {found}").first()
    assert told is not None and told.asDict() == {"rows": 40, "tasks": tasks}


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[Cluster]:
    cluster = start_metaq(tmp_path / "servers", 1, ("broker-a", "broker-b"), "async", {})
    yield cluster
    cluster.close()


def test_a_broker_that_gets_the_topic_later(
    spark: SparkSession, two_brokers: Cluster, tmp_path: Path
) -> None:
    topic = "spread"
    asyncio.run(create_topic(two_brokers.brokers["broker-a"].address, topic, 1))
    query = Stream(spark, two_brokers.namesrv, tmp_path, subscribe=topic, startingOffsets="earliest")
    try:
        _send(two_brokers, topic, "broker-a", b"a")
        query.begin(processingTime="100 milliseconds")
        wait_until(lambda: query.bodies == [["a"]])
        asyncio.run(create_topic(two_brokers.brokers["broker-b"].address, topic, 1))
        _send(two_brokers, topic, "broker-b", b"b")
        wait_until(lambda: query.bodies == [["a"], ["b"]])
    finally:
        query.stop()


def _send(cluster: Cluster, topic: str, broker: str, body: bytes) -> None:
    with metaq.Client(cluster.namesrv) as client, client.producer("tests") as producer:
        producer.send(topic, body, queue=metaq.Queue(topic, broker, 0))
