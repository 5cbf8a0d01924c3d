"""`spark.read.format("metaq")` with a real Spark and a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import metaq
from metaq.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS
from tests.spark.support import BROKER, Topics, bodies, read, rows, send_raw
from tests.support.metaq import Metaq
from tests.support.waiting import moment_between, wait_until

MakeTopic = Callable[..., str]


def offsets(topic: str, **queues: int) -> str:
    """`offsets("t", q0=5)`."""
    return json.dumps({topic: {BROKER: {name[1:]: offset for name, offset in queues.items()}}})


def test_every_column_of_every_kind_of_message(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    large = "x" * 100_000
    before = datetime.now(UTC)
    topics.fill(topic, ["plain"], queue=1)
    topics.fill(
        topic, ["äöü €"], queue=1, tag="grün", keys=["k1", "k2"], properties={"färbe": "blau", "b": "2"}
    )
    topics.fill(topic, [b"", large])
    with metaq.Client(served.nameserver) as client, client.puller(start="earliest") as puller:
        puller.assign(topic)
        sent: list[metaq.Message] = []
        while len(sent) < 4:
            sent += puller.poll(60)
        expected = {(message.queue.id, message.queue_offset): message for message in sent}
    frame = read(spark, served, {"subscribe": topic, "includeProperties": "true"})
    assert tuple(frame.columns) == COLUMN_NAMES
    found = {(row.queueId, row.queueOffset): row for row in frame.collect()}
    assert found.keys() == expected.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for place, message in expected.items():
        row = found[place]
        assert (row.topic, row.brokerName) == (topic, BROKER)
        assert row.msgId == message.id
        assert bytes(row.body) == message.body
        assert row.tags == message.tag
        assert row.keys == (" ".join(message.keys) or None)
        assert row.properties == dict(message.properties)
        assert row.sysFlag == message.system_flag
        assert row.reconsumeTimes == message.reconsume_times == 0
        for shown, told in ((row.bornTimestamp, message.born_at), (row.storeTimestamp, message.stored_at)):
            assert abs(shown.astimezone(UTC).timestamp() - _seconds(told)) < 0.001
            assert abs((shown.astimezone(UTC) - before).total_seconds()) < 60
    assert found[1, 1].properties == {"färbe": "blau", "b": "2"}
    assert found[0, 1].sysFlag & 1 and found[0, 1].body.decode() == large, "compressed by its sender"
    every = rows(
        spark,
        served,
        subscribe=topic,
        columns="topic,queueId,queueOffset,properties",
        includeProperties="all",
    )
    assert every[3].properties["UNIQ_KEY"] == expected[1, 1].id
    assert every[3].properties["TAGS"] == "grün"


def _seconds(told: object) -> float:
    return told.timestamp() if isinstance(told, datetime) else float(told) / 1000  # type: ignore[arg-type]


def test_columns_that_are_chosen_come_in_that_order(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, (f"m{number}" for number in range(3)), tag="t")
    frame = read(spark, served, {"subscribe": topic, "columns": "TAGS,body"})
    assert frame.columns == ["tags", "body"]
    assert sorted((row.tags, row.body.decode()) for row in frame.collect()) == [
        ("t", "m0"),
        ("t", "m1"),
        ("t", "m2"),
    ]
    assert tuple(read(spark, served, {"subscribe": topic}).columns) == DEFAULT_COLUMNS
    assert frame.count() == 3


def test_many_messages_in_tasks_of_any_number(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=3)
    wanted = []
    for queue, number in ((0, 40_000), (1, 7), (2, 12_345)):
        topics.fill(topic, (f"{queue}-{at}" for at in range(number)), queue=queue)
        wanted += [(queue, at, f"{queue}-{at}") for at in range(number)]
    for options, partitions in (({}, 3), ({"minPartitions": 8}, 8), ({"maxRecordsPerPartition": 10_000}, 7)):
        frame = read(spark, served, {"subscribe": topic, "columns": "queueId,queueOffset,body", **options})
        assert frame.rdd.getNumPartitions() == partitions
        found = sorted((row.queueId, row.queueOffset, row.body.decode()) for row in frame.collect())
        assert found == wanted


def test_where_to_begin_and_end(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a0", "a1", "a2"])
    topics.fill(topic, ["b0"], queue=1)
    middle_ms = moment_between()
    topics.fill(topic, ["a3", "a4"])

    def found(**options: object) -> list[str]:
        return bodies(rows(spark, served, subscribe=topic, **options))

    assert found() == ["a0", "a1", "a2", "a3", "a4", "b0"]
    assert found(startingOffsets=offsets(topic, q0=1, q1=-2), endingOffsets=offsets(topic, q0=3, q1=-1)) == [
        "a1",
        "a2",
        "b0",
    ]
    assert found(endingTimestamp=middle_ms) == ["a0", "a1", "a2", "b0"]
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert found(startingTimestamp=middle_ms, **late) == ["a3", "a4"]
    assert found(startingTimestamp="-10 minutes") == found()
    moment = datetime.fromtimestamp(middle_ms / 1000, UTC).isoformat()
    assert found(startingTimestamp=moment, **late) == ["a3", "a4"]
    times = offsets(topic, q0=middle_ms, q1=0)
    assert found(startingOffsetsByTimestamp=times) == ["a3", "a4", "b0"]
    assert found(endingOffsetsByTimestamp=times) == ["a0", "a1", "a2"]
    with pytest.raises(Exception, match=r"queue 1 of .* has no message stored at"):
        found(startingTimestamp=middle_ms)


def test_a_groups_offsets_are_a_start(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a0", "a1", "a2"])
    topics.fill(topic, ["b0"], queue=1)
    queue = metaq.Queue(topic, BROKER, 0)
    with metaq.Client(served.nameserver) as client, client.puller(group="known", start="earliest") as puller:
        puller.assign(queue)
        assert len(puller.poll(60, count=2)) == 2
        puller.commit()
    assert bodies(rows(spark, served, subscribe=topic, startingOffsets="group", group="known")) == [
        "a2",
        "b0",
    ]


def test_topics_are_named_in_three_ways(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    first, second = make_topic(queues=2), make_topic()
    topics.fill(first, ["a"])
    topics.fill(first, ["b"], queue=1)
    topics.fill(second, ["c"])
    assert bodies(rows(spark, served, subscribe=f"{first},{second}")) == ["a", "b", "c"]
    assert bodies(rows(spark, served, subscribePattern=f"({first}|{second})")) == ["a", "b", "c"]
    assert bodies(rows(spark, served, assign=json.dumps({first: {BROKER: [1]}, second: {BROKER: [0]}}))) == [
        "b",
        "c",
    ]
    assert rows(spark, served, subscribePattern="no-such-topic-.*") == []


def test_filters_at_the_broker(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, (f"odd{number}" for number in range(2_500)), tag="odd", properties={"n": "1"})
    topics.fill(topic, ["even"], tag="even", properties={"n": "2"})
    topics.fill(topic, ["none"])
    assert bodies(rows(spark, served, subscribe=topic, tags="even")) == ["even"]
    assert len(rows(spark, served, subscribe=topic, tags="even || odd")) == 2_501
    assert bodies(rows(spark, served, subscribe=topic, sql="n > 1")) == ["even"]
    # These two have the same hash code: the tags themselves have to be compared.
    topics.fill(topic, ["Aa"], tag="Aa")
    topics.fill(topic, ["BB"], tag="BB")
    assert bodies(rows(spark, served, subscribe=topic, tags="Aa")) == ["Aa"]


def test_filters_of_the_query_reach_queues_and_broker(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, (f"a{number}" for number in range(10)), tag="x")
    topics.fill(topic, (f"b{number}" for number in range(10)), queue=1, tag="y")
    frame = read(spark, served, {"subscribe": topic})
    narrow = frame.where("queueId = 1 and queueOffset >= 7 and tags = 'y'")
    assert sorted(bodies(narrow.collect())) == ["b7", "b8", "b9"]
    assert narrow.rdd.getNumPartitions() == 1, "the other queue is not read at all"
    assert frame.where("queueId = 1 and queueOffset > 3 and tags = 'x'").collect() == []
    assert bodies(frame.where("queueOffset < 1 and body = cast('b0' as binary)").collect()) == ["b0"]
    assert bodies(frame.where("tags in ('y') and queueOffset = 4").collect()) == ["b4"]
    late = frame.where("storeTimestamp > timestamp '2100-01-01 00:00:00'")
    assert late.collect() == []
    assert frame.where("storeTimestamp < timestamp '2100-01-01 00:00:00'").count() == frame.count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        plain = read(spark, served, {"subscribe": topic}).where("queueId = 1 and queueOffset >= 7")
        assert sorted(bodies(plain.collect())) == ["b7", "b8", "b9"]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_limit_leaves_no_traceback(
    spark: SparkSession, spark_stderr: Path, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    """Spark hangs up on the worker that reads the rest."""
    topic = make_topic()
    topics.fill(topic, ("x" * 4_000 for _ in range(4_000)))
    before = len(spark_stderr.read_bytes())
    frame = read(spark, served, {"subscribe": topic})
    assert len(frame.limit(5).collect()) == 5 and len(frame.take(3)) == 3
    # Spark starts another worker, and copies the output of the last one before.
    assert frame.count() == 4_000
    assert b"BrokenPipe" not in spark_stderr.read_bytes()[before:]


def test_bad_input_is_reported_before_any_work(
    spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a"])
    at_once = {
        "no option startingoffset; did you mean startingOffsets": {"startingOffset": "earliest"},
        "option columns cannot be .* it takes some of topic": {"columns": "price"},
        "option startingOffsets cannot be .* it takes earliest": {"startingOffsets": "{"},
    }
    for message, options in at_once.items():
        with pytest.raises(Exception, match=message):
            read(spark, served, {"subscribe": topic, **options})
    planned = {
        "has no meaning in a batch": {"maxOffsetsPerTrigger": 5},
        f"leaves out: {topic}/{BROKER}/1; it takes exactly": {"startingOffsets": offsets(topic, q0=0)},
        f"names queues that are not there: {topic}/{BROKER}/7": {
            "startingOffsets": offsets(topic, q0=0, q1=0, q7=0)
        },
    }
    for message, options in planned.items():
        with pytest.raises(Exception, match=message):
            read(spark, served, {"subscribe": topic, **options}).collect()
    with pytest.raises(Exception, match="option subscribe: there is no topic no-such-topic"):
        rows(spark, served, subscribe="no-such-topic")
    with pytest.raises(Exception, match="option assign names queue 9"):
        rows(spark, served, assign=json.dumps({topic: {BROKER: [9]}}))
    with pytest.raises(Exception, match="leave the schema out"):
        spark.read.format("metaq").schema("body string").options(
            nameservers=served.nameserver, subscribe=topic
        ).load().collect()


def test_lost_messages_are_an_error_unless_allowed(
    spark: SparkSession, spark_stderr: Path, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, ["a", "b"])
    beyond = {"subscribe": topic, "endingOffsets": offsets(topic, q0=5)}
    problem = f"option endingOffsets is 5 for {topic}/{BROKER}/0, but the queue ends at 2"
    with pytest.raises(Exception, match=problem):
        rows(spark, served, **beyond)
    assert bodies(rows(spark, served, **beyond, failOnDataLoss="false")) == ["a", "b"]
    line = f"going on without lost messages: {problem}"
    wait_until(lambda: line in spark_stderr.read_text(errors="replace"))


def test_a_body_that_cannot_be_inflated(
    spark: SparkSession, spark_stderr: Path, served: Metaq, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    send_raw(served.broker, topic, b"no zlib at all", system_flag=1)
    with pytest.raises(Exception, match=r"/0 \[0, 1\): the body cannot be decompressed"):
        rows(spark, served, subscribe=topic)
    frame = read(spark, served, {"subscribe": topic})
    late, early = (f"storeTimestamp {sign} timestamp '2100-01-01 00:00:00'" for sign in "><")
    assert frame.where(late).collect() == [], "a message of another time is not even read"
    with pytest.raises(Exception, match="cannot be decompressed"):
        frame.where(early).collect()
    (row,) = rows(spark, served, subscribe=topic, failOnDataLoss="false")
    assert (row.body, row.sysFlag & 1) == (None, 1)
    line = f"going on without a body that cannot be decompressed: {topic}/{BROKER}/0 [0, 1)"
    wait_until(lambda: line in spark_stderr.read_text(errors="replace"))
    assert len(rows(spark, served, subscribe=topic, columns="topic,queueId,queueOffset")) == 1


def test_an_impossible_time_does_not_stop_a_read(
    spark: SparkSession, served: Metaq, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    for born_ms in (-(2**63), 2**63 - 1):
        send_raw(served.broker, topic, b"when", born_ms=born_ms)
    found = rows(spark, served, subscribe=topic)
    assert sorted(row.bornTimestamp.year for row in found) == [1, 9999]
