"""`spark.readStream.format("metaq")` with a real Spark and a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

import metaq
import metaq.spark
from tests.spark.support import BROKER, Stream, Topics, failure
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

MakeTopic = Callable[..., str]
MakeStream = Callable[..., Stream]
# The sum of all time-outs here; the first test starts Spark as well.
pytestmark = pytest.mark.timeout(400)
IDLE_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


@pytest.fixture
def stream(spark: SparkSession, served: Metaq, tmp_path: Path) -> Iterator[MakeStream]:
    made: list[Stream] = []

    def make(**options: object) -> Stream:
        made.append(Stream(spark, served.nameserver, tmp_path, **{"startingOffsets": "earliest", **options}))
        return made[-1]

    yield make
    for query in made:
        query.stop()


def committed(served: Metaq, group: str, topic: str, queue: int = 0) -> int | None:
    with metaq.Client(served.nameserver) as client, client.puller(group=group) as puller:
        return puller.committed(metaq.Queue(topic, BROKER, queue))


def test_each_message_comes_once_over_restarts(
    stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a0", "a1"])
    topics.fill(topic, ["b0"], queue=1)
    query = stream(subscribe=topic)
    assert query.run() == [["a0", "a1", "b0"]]
    assert query.run() == [["a0", "a1", "b0"]]
    topics.fill(topic, ["b1"], queue=1)
    assert query.run() == [["a0", "a1", "b0"], ["b1"]]


def test_limits_of_rows_are_exact(stream: MakeStream, topics: Topics, make_topic: MakeTopic) -> None:
    topic = make_topic(queues=3)
    for queue, number in ((0, 10), (1, 3), (2, 1)):
        topics.fill(topic, (f"{queue}-{at}" for at in range(number)), queue=queue)
    found = stream(subscribe=topic, maxOffsetsPerTrigger=4).run()
    assert [len(batch) for batch in found] == [4, 4, 4, 2]
    assert len({body for batch in found for body in batch}) == 14


def test_limits_of_bytes_are_exact(
    stream: MakeStream, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["s" * 10] * 6)
    topics.fill(topic, ["l" * 2_000], queue=1)
    small, large = (_stored_bytes(served, topic, queue) for queue in (0, 1))
    found = stream(subscribe=topic, maxBytesPerTrigger=2 * small + small // 2).run()
    lengths = [[len(body) for body in batch] for batch in found]
    # The large one alone exceeds the limit and comes alone; the others come in pairs.
    assert sorted(lengths) == [[10, 10], [10, 10], [10, 10], [2_000]]
    assert large > 2 * small + small // 2


def _stored_bytes(served: Metaq, topic: str, queue: int) -> int:
    from metaq.spark.source.cluster import Cluster
    from metaq.spark.source.options import Subscribed

    place = metaq.Queue(topic, BROKER, queue)
    with Cluster(served.nameserver, 60) as cluster:
        cluster.queues(Subscribed(topics=(topic,)))
        return cluster.measure({place: (0, 1)})[place].size_bytes


class _Idle(StreamingQueryListener):
    """Records when triggers began that read nothing."""

    def __init__(self) -> None:
        self._found: list[tuple[str, datetime]] = []

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._found.append((str(event.runId), datetime.fromisoformat(event.timestamp)))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def triggers(self, query: StreamingQuery, since: datetime) -> int:
        run = str(query.runId)
        return sum(of == run and began > since for of, began in list(self._found))


def test_a_trigger_waits_for_enough_messages(
    spark: SparkSession, stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, ["a"])
    query = stream(subscribe=topic, minOffsetsPerTrigger=3, maxTriggerDelay="30m")
    idle = _Idle()
    spark.streams.addListener(idle)
    interval_ms = spark.conf.get(IDLE_INTERVAL)
    spark.conf.set(IDLE_INTERVAL, "100")
    try:
        started = query.begin(processingTime="100 milliseconds")
        wait_until(lambda: query.bodies == [["a"]])  # The first trigger does not wait.
        topics.fill(topic, ["b", "c"])
        filled = datetime.now(UTC)
        wait_until(lambda: idle.triggers(started, since=filled) >= 2)
        assert query.bodies == [["a"]], "triggers that came after the two have left them"
        topics.fill(topic, ["d"])
        wait_until(lambda: query.bodies == [["a"], ["b", "c", "d"]])
    finally:
        spark.conf.set(IDLE_INTERVAL, interval_ms or "10000")
        spark.streams.removeListener(idle)


def test_new_queues_are_read_from_their_beginning(
    stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, ["a"])
    query = stream(subscribe=topic)
    query.begin(processingTime="100 milliseconds")
    wait_until(lambda: query.bodies == [["a"]])
    topics.change(topic, queues=2)
    topics.fill(topic, ["b"], queue=1)
    wait_until(lambda: [body for batch in query.bodies for body in batch] == ["a", "b"])


def test_offsets_show_as_those_of_a_group(
    stream: MakeStream, spark: SparkSession, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, ["a", "b"])
    query = stream(subscribe=topic, group="mirror", maxOffsetsPerTrigger=1)
    query.run()
    assert committed(served, "mirror", topic) == 1, "the last batch is known when the next one is planned"
    listener = metaq.spark.GroupOffsets("mirror", served.nameserver)
    spark.streams.addListener(listener)
    try:
        topics.fill(topic, ["c"])
        assert query.run()[-1] == ["c"]
        wait_until(lambda: committed(served, "mirror", topic) == 3)
    finally:
        spark.streams.removeListener(listener)
    topics.fill(topic, ["d"])
    shown = served.run("group", "show", "mirror", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    (queue,) = [row for row in json.loads(shown.stdout)["queues"] if row["topic"] == topic]
    assert (queue["queue"], queue["committed"], queue["max_offset"], queue["lag"]) == (0, 3, 4, 1)
    fresh = Stream(
        spark,
        served.nameserver,
        Path(query._checkpoint) / "other",
        subscribe=topic,
        startingOffsets="group",
        group="mirror",
    )
    assert fresh.run() == [["d"]]


def test_progress_shows_how_far_behind_it_is(
    stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a", "b", "c"])
    topics.fill(topic, ["d"], queue=1)
    query = stream(subscribe=topic, maxOffsetsPerTrigger=2)
    query.run()
    assert query.query is not None
    found = [
        metaq.spark.lags(progress)[0] for progress in query.query.recentProgress if progress.numInputRows
    ]
    assert [lag.messages for lag in found] == [2, 0]
    assert found[0].messages_max >= found[0].messages_avg >= found[0].messages_min
    assert found[0].bytes > 2 * 91 and found[0].seconds > 0
    assert (found[1].bytes, found[1].seconds) == (0, 0)


def test_a_topic_that_was_created_again_is_an_error(
    stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, ["a", "b"])
    query = stream(subscribe=topic)
    assert query.run() == [["a", "b"]]
    topics.delete(topic)
    topics.create(topic)
    # More messages than before: the offsets alone would not show it.
    topics.fill(topic, ["new-a", "new-b", "new-c"])
    assert "its topic was created again" in failure(query.begin(availableNow=True))
    query.options = {**query.options, "failOnDataLoss": "false"}
    assert query.run() == [["a", "b"], ["new-a", "new-b", "new-c"]]
    topics.fill(topic, ["new-d"])
    assert query.run()[2:] == [["new-d"]]


def test_a_topic_that_is_gone_and_one_that_lost_its_messages(
    stream: MakeStream, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    topics.fill(topic, ["a", "b"])
    query = stream(subscribe=topic)
    query.run()
    query.options = {**query.options, "timeout": "3s"}
    topics.delete(topic)
    said = failure(query.begin(availableNow=True))
    # The name server learns it a little later.
    assert f"there is no topic {topic}" in said or "the queue ends at 0 now" in said
    topics.create(topic)
    topics.fill(topic, ["c"])
    said = failure(query.begin(availableNow=True))
    assert f"messages are lost: {topic}/{BROKER}/0 at 2: the queue ends at 1 now" in said


def test_a_queue_that_vanished_is_an_error(
    stream: MakeStream, spark_stderr: Path, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a"])
    topics.fill(topic, ["b"], queue=1)
    query = stream(subscribe=topic)
    query.run()
    topics.change(topic, queues=1)
    topics.fill(topic, ["c"])
    query.options = {**query.options, "timeout": "3s"}
    said = failure(query.begin(availableNow=True))
    line = f"{topic}/{BROKER}/1 at 1: the queue no longer exists"
    assert line in said
    query.options = {**query.options, "timeout": "60s", "failOnDataLoss": "false"}
    assert query.run()[1:] == [["c"]]
    wait_until(lambda: f"going on without lost messages: {line}" in spark_stderr.read_text(errors="replace"))
    topics.change(topic, queues=2)
    topics.fill(topic, ["d"], queue=1)
    assert query.run()[2:] == [["d"]], "it goes on where it was"


def test_bad_input_of_streams(stream: MakeStream, topics: Topics, make_topic: MakeTopic) -> None:
    topic, other = make_topic(), make_topic()
    topics.fill(topic, ["a"])
    query = stream(subscribe=topic)
    query.run()
    query.options = {**query.options, "subscribe": other}
    said = failure(query.begin(availableNow=True))
    assert f"the checkpoint is of topic {topic}, and the query reads {other}" in said
    query.options = {"subscribe": topic, "endingOffsets": "latest"}
    with pytest.raises(Exception, match="option endingOffsets has no meaning in a stream"):
        query.begin(availableNow=True).awaitTermination(60)


def test_a_query_waits_for_a_broker_that_restarts(
    spark: SparkSession, tmp_path: Path, start_metaq: Callable[..., Metaq]
) -> None:
    nameserver = start_metaq("nameserver", "--listen", "127.0.0.1:0")
    arguments = ("--namesrv", nameserver.ready["nameserver"], "--data", str(tmp_path / "data"))
    broker = start_metaq("broker", "--listen", "127.0.0.1:0", *arguments)
    both = _Both(nameserver, broker)
    topics = Topics(both)  # type: ignore[arg-type]
    topics.create("orders", 2)
    topics.fill("orders", ["a"])
    query = Stream(spark, both.nameserver, tmp_path, subscribe="orders", startingOffsets="earliest")
    try:
        query.begin(processingTime="100 milliseconds")
        wait_until(lambda: query.bodies == [["a"]])
        topics.close()
        broker.stop()  # The query looks for messages several times until the next one is up.
        both.broker_process = start_metaq("broker", "--listen", "127.0.0.1:0", *arguments)
        topics = Topics(both)  # type: ignore[arg-type]
        topics.fill("orders", ["b"], queue=1)
        wait_until(lambda: query.bodies == [["a"], ["b"]], timeout_s=90)
    finally:
        query.stop()
        topics.close()


class _Both:
    """Name server and broker in two processes, so that the broker can be replaced."""

    def __init__(self, nameserver: Metaq, broker: Metaq) -> None:
        self.nameserver = nameserver.ready["nameserver"]
        self.broker_process = broker

    @property
    def broker(self) -> str:
        return self.broker_process.ready["broker"]


def test_the_checkpoint_is_plain_to_read(
    stream: MakeStream, tmp_path: Path, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    topics.fill(topic, ["a", "b"])
    stream(subscribe=topic).run()
    stored = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert list(stored) == ["metaq", "queues"]
    places = stored["queues"][topic][BROKER]
    assert [places["0"][0], places["1"]] == [2, [0, -1]]
