"""`df.write.format("metaq")` and `writeStream` with a real Spark: columns, errors, exactly-once writes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metaq._core import Message
from tests.support.metaq import ROOT
from tests.support.plain_client import PlainClient, queue_end
from tests.support.reading import stored
from tests.support.servers import Cluster, start_metaq
from tests.support.waiting import eventually, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = start_metaq(tmp_path_factory.mktemp("sink"), 1, ("broker-a",), "sync", {})
    yield cluster
    cluster.close()


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    given = {"nameservers": cluster.namesrv, **options}
    frame.write.format("metaq").options(**given).mode("append").save()


def bodies(cluster: Cluster, topic: str) -> list[str]:
    return sorted(message.body.decode() for message in stored(cluster.namesrv, topic))


def numbered(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_every_column_arrives(spark: SparkSession, cluster: Cluster, guarantee: str) -> None:
    topic = f"columns-{guarantee}"
    now = datetime.now(UTC)
    rows = [
        (b"plain", topic, None, None, None, None, None, None, None),
        (
            b"\x00\xff",
            topic,
            "paid",
            ["k1", "k2"],
            {"region": "eu", "größe": "ä"},
            "user-7",
            None,
            None,
            None,
        ),
        (b"", topic, "", [], {}, None, 3, None, None),
        (b"level", topic, None, None, None, None, None, 1, None),
        (b"later", topic, None, None, None, None, None, None, now + timedelta(seconds=2)),
        (b"past", topic, None, None, None, None, None, 0, now - timedelta(hours=1)),
    ]
    schema = (
        "body binary, topic string, tags string, keys array<string>, properties map<string,string>,"
        " shardingKey string, queueId int, delayLevel int, deliverAt timestamp"
    )
    write(spark.createDataFrame(rows, schema), cluster, deliveryGuarantee=guarantee)
    wait_until(lambda: len(stored(cluster.namesrv, topic)) == 6)
    found: dict[bytes, Message] = {message.body: message for message in stored(cluster.namesrv, topic)}
    assert found.keys() == {row[0] for row in rows}
    full = found[b"\x00\xff"]
    assert (full.tag, full.keys) == ("paid", ("k1", "k2"))
    assert dict(full.properties) == {"region": "eu", "größe": "ä"}
    assert full.system_properties["__SHARDINGKEY"] == "user-7"
    assert found[b""].queue.id == 3 and found[b""].tag is None
    for name in (b"level", b"later"):
        assert found[name].stored_at >= now.timestamp() * 1000 + 900


def test_rows_that_were_read_are_written_as_they_are(spark: SparkSession, cluster: Cluster) -> None:
    topic, copies = "as-read", "as-read-copies"
    row = [("x", "paid", "k1 k2", {"region": "eu"}, 3)]
    write(
        spark.createDataFrame(
            row, "body string, tags string, keys string, properties map<string,string>, queueId int"
        ),
        cluster,
        topic=topic,
    )
    read = spark.read.format("metaq").options(
        nameservers=cluster.namesrv, subscribe=topic, includeProperties="all"
    )
    write(read.load(), cluster, topic=copies)
    write(read.load(), cluster)
    back, copied = stored(cluster.namesrv, topic), stored(cluster.namesrv, copies)
    assert [message.queue.id for message in back] == [3, 3] and len(copied) == 1
    for message in (*back, *copied):
        assert (message.body, message.tag, message.keys) == (b"x", "paid", ("k1", "k2"))
        assert dict(message.properties) == {"region": "eu"}
    assert len({message.id for message in (*back, *copied)}) == 3


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_many_rows_in_many_tasks(spark: SparkSession, cluster: Cluster, guarantee: str) -> None:
    topic = f"many-{guarantee}"
    write(numbered(spark, 50_000), cluster, topic=topic, deliveryGuarantee=guarantee)
    assert bodies(cluster, topic) == sorted(map(str, range(50_000)))


def test_rows_with_one_key_stay_in_order(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.range(0, 2_000, 1, 1).select(
        F.col("id").cast("string").alias("body"), (F.col("id") % 7).cast("string").alias("shardingKey")
    )
    for guarantee in ("at_least_once", "exactly_once"):
        topic = f"order-{guarantee}"
        write(frame, cluster, topic=topic, deliveryGuarantee=guarantee)
        seen: dict[int, list[int]] = {}
        for message in stored(cluster.namesrv, topic):
            seen.setdefault(int(message.body) % 7, []).append(int(message.body))
        assert seen == {key: list(range(key, 2_000, 7)) for key in range(7)}


WRONG = [
    ("struct", "SELECT struct(1) AS body", {"topic": "t"}, ["body", "binary or string"]),
    ("number", "SELECT 1 AS body", {"topic": "t"}, ["body", "int", "binary or string"]),
    ("no-body", "SELECT 'x' AS tags", {"topic": "t"}, ["no column body"]),
    ("no-topic", "SELECT 'x' AS body", {}, ["option topic", "column topic"]),
    ("unknown-column", "SELECT 'x' AS body, 1 AS price", {"topic": "t"}, ["price", "shardingKey"]),
    ("keys", "SELECT 'x' AS body, 1 AS keys", {"topic": "t"}, ["keys", "array<string>"]),
    ("properties", "SELECT 'x' AS body, map('a', 1) AS properties", {"topic": "t"}, ["map<string,string>"]),
    ("when", "SELECT 'x' AS body, 'soon' AS deliverAt", {"topic": "t"}, ["deliverAt", "timestamp"]),
    ("broker", "SELECT 'x' AS body, 'b' AS brokerName", {"topic": "t"}, ["brokerName", "queueId"]),
    ("bad-topic", "SELECT 'x' AS body", {"topic": "a b"}, ["topic", "a b"]),
    ("option", "SELECT 'x' AS body", {"topic": "t", "acks": "all"}, ["acks", "deliveryGuarantee"]),
    ("guarantee", "SELECT 'x' AS body", {"topic": "t", "deliveryGuarantee": "twice"}, ["at_least_once"]),
    ("timeout", "SELECT 'x' AS body", {"topic": "t", "timeout": "-1"}, ["timeout", "span"]),
    ("accept", "SELECT 'x' AS body", {"topic": "t", "accept": "anything"}, ["accept", "flush-timeout"]),
    ("app", "SELECT 'x' AS body", {"topic": "t", "txnAppId": "a"}, ["txnVersion"]),
]


@pytest.mark.parametrize(
    "query, options, wanted", [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_wrong_options_are_reported_before_any_work(
    spark: SparkSession, cluster: Cluster, query: str, options: dict[str, str], wanted: list[str]
) -> None:
    with pytest.raises(Exception) as error:
        write(spark.sql(query), cluster, **options)
    assert all(word in str(error.value) for word in wanted), str(error.value)
    assert stored(cluster.namesrv, "t") == []


def test_a_topic_cannot_be_overwritten(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.sql("SELECT 'x' AS body").write.format("metaq").option("topic", "t")
    with pytest.raises(Exception, match="append"):
        frame.option("nameservers", cluster.namesrv).mode("overwrite").save()


@pytest.mark.parametrize(
    "query, options, wanted",
    [
        ("SELECT repeat('x', 5000) AS body", {"bodyBytesMax": "4999"}, "body has 5000 bytes"),
        ("SELECT CAST(NULL AS STRING) AS body", {}, "body is null"),
        ("SELECT 'x' AS body, 'a||b' AS tags", {}, "tags"),
        ("SELECT 'x' AS body, 99 AS queueId", {}, "queueId is 99"),
        ("SELECT 'x' AS body, 1 AS queueId, 'k' AS shardingKey", {}, "both"),
        ("SELECT 'x' AS body, map('TAGS', 'a') AS properties", {}, "TAGS"),
        ("SELECT 'x' AS body, array('a b') AS keys", {}, "white space"),
        ("SELECT 'x' AS body, -1 AS delayLevel", {}, "delayLevel"),
    ],
)
def test_a_row_that_cannot_be_sent_fails_its_task(
    spark: SparkSession, cluster: Cluster, query: str, options: dict[str, str], wanted: str
) -> None:
    with pytest.raises(Exception) as error:
        write(spark.sql(query), cluster, topic="rows", **options)
    assert wanted in str(error.value)


def test_rows_that_no_broker_takes_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    cluster = start_metaq(tmp_path, 1, ("broker-a",), "sync", {})
    try:
        write(numbered(spark, 10), cluster, topic="lost")
        cluster.brokers["broker-a"].kill()
        with pytest.raises(Exception, match=r"not (sent|delivered)"):
            write(numbered(spark, 10), cluster, topic="lost", timeout="1.5s")
    finally:
        cluster.close()


def test_a_broker_that_comes_back_has_every_row(spark: SparkSession, tmp_path: Path) -> None:
    cluster = start_metaq(tmp_path, 1, ("broker-a",), "sync", {})
    broker = cluster.brokers["broker-a"]

    killed_at: list[int] = []

    def kill_when_rows_arrive() -> None:
        with PlainClient(broker.address) as client:

            def arrived() -> int:
                return sum(queue_end(client, "kept", queue_id) for queue_id in range(4))

            killed_at.append(eventually(arrived, lambda count: count > 10, 90, "one of the rows stored"))
        broker.kill()
        broker.restart()

    killer = threading.Thread(target=kill_when_rows_arrive)
    try:
        write(numbered(spark, 10), cluster, topic="kept")
        killer.start()
        frame = numbered(spark, 100_000, 2).withColumn("body", F.concat(F.lit("r"), F.col("body")))
        write(frame, cluster, topic="kept", timeout="60s")
        killer.join()
        assert 10 < killed_at[0] < 100_000, "the broker was killed too late"
        found = set(bodies(cluster, "kept"))
        assert found >= {f"r{number}" for number in range(100_000)}
    finally:
        if killer.is_alive():
            killer.join()
        cluster.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, guarantee: str
) -> None:
    topic, source = f"stream-{guarantee}", tmp_path / "source"
    numbered(spark, 1_000, 4).write.text(str(source))

    def run() -> Any:
        query = (
            spark.readStream.option("maxFilesPerTrigger", "2")
            .text(str(source))
            .withColumnRenamed("value", "body")
            .writeStream.format("metaq")
            .option("nameservers", cluster.namesrv)
            .option("topic", topic)
            .option("deliveryGuarantee", guarantee)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    run()
    assert bodies(cluster, topic) == sorted(map(str, range(1_000)))
    numbered(spark, 1_500, 4).filter("CAST(body AS INT) >= 1000").write.mode("append").text(str(source))
    run()
    assert bodies(cluster, topic) == sorted(map(str, range(1_500)))


def test_the_page(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "spark-sink.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    code = code.replace("127.0.0.1:9876", cluster.namesrv).replace("/tmp/", f"{tmp_path}/")
    exec(compile(code, "page", "exec"), {})
    for topic in ("Orders", "PaidOrders", "Nightly"):
        assert len(stored(cluster.namesrv, topic)) == 1_000, topic


def test_a_write_with_an_identity_is_visible_once(spark: SparkSession, cluster: Cluster) -> None:
    """Like foreachBatch, which Spark may call again for the same batch."""
    for version in (0, 1, 1, 0, 2):
        frame = numbered(spark, 10).withColumn("body", F.concat(F.lit(f"{version}-"), F.col("body")))
        write(
            frame,
            cluster,
            topic="identity",
            deliveryGuarantee="exactly_once",
            txnAppId="app",
            txnVersion=str(version),
        )
    wanted = sorted(f"{version}-{number}" for version in range(3) for number in range(10))
    assert bodies(cluster, "identity") == wanted
