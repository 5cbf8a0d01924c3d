"""stream-sql with a real broker, Spark and Delta Lake."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import metaq
from metaq.errors import CommandError, ConfigError
from metaq.pipelines import Progress
from metaq.pipelines.stream_sql.pipeline import StreamSql
from metaq.protocol.errors import Unreachable
from tests.spark.cluster import Cluster
from tests.spark.patience import patiently
from tests.spark.running import RunningPipeline, batches_done, forget_last_commit
from tests.spark.support import BROKER, JVM_OPTIONS, QUICK_TO_KILL, Topics
from tests.support.metaq import Metaq
from tests.support.reading import stored
from tests.support.rounds import LONG, kill_loop, seeded
from tests.support.spark_jars import delta_jars
from tests.support.waiting import wait_until

MakeTopic = Callable[..., str]

# A busy machine needs minutes.
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]


class Job:
    """A TOML file. A run ends when it has read everything."""

    def __init__(self, served: Metaq, home: Path) -> None:
        self._nameserver = served.nameserver
        self.home = home
        self.file = home / "job.toml"

    def write(self, sql: str, sources: str, sink: str, query: str = "") -> None:
        self.file.write_text(
            f'[query]\nnamesrv = "{self._nameserver}"\nonce = true\n{query}\nsql = """{sql}"""\n'
            f"[sink]\n{sink}\n{sources}",
            encoding="utf-8",
        )

    def running(self, cluster: Cluster | None) -> RunningPipeline:
        """Starts a process that runs until it is killed."""
        text = self.file.read_text(encoding="utf-8").replace("once = true", "interval_s = 0")
        endless = self.home / "endless.toml"
        checkpoint = json.dumps(str(self.checkpoint))
        settings = (
            "spark.ui.enabled=false",
            "spark.driver.memory=1g",
            f"spark.driver.extraJavaOptions={JVM_OPTIONS}",
            "spark.sql.shuffle.partitions=2",
            *(f"{name}={value}" for name, value in QUICK_TO_KILL.items()),
        )
        endless.write_text(
            text.replace("[query]", f"[query]\ncheckpoint = {checkpoint}")
            + f'[spark]\nmaster = "local[2]"\njars = {json.dumps(delta_jars())}\n'
            + f"config = {json.dumps(settings)}\n",
            encoding="utf-8",
        )
        return RunningPipeline("stream-sql", endless, cluster)

    def run(self) -> Progress:
        job = StreamSql.from_file(self.file)
        return patiently(lambda: job.run(lambda progress: None, threading.Event()))

    def replay(self) -> Progress:
        """Repeats the last batch."""
        last = forget_last_commit(self.checkpoint)
        done = self.run()
        assert (self.checkpoint / "commits" / str(last)).exists(), "the batch was repeated"
        return done

    @property
    def checkpoint(self) -> Path:
        return self.home / "job.checkpoint"


@pytest.fixture
def job(served: Metaq, tmp_path: Path) -> Job:
    return Job(served, tmp_path)


def event(at: str, **fields: object) -> str:
    return json.dumps({"at": f"2026-01-31T{at}:00Z", **fields})


def source(name: str, topic: str, schema: str, more: str = "") -> str:
    return f'[sources.{name}]\ntopic = "{topic}"\nschema = "{schema}"\n{more}\n'


EVENTS = "k STRING NOT NULL, at TIMESTAMP"
WATERMARK = 'time = "at"\nwatermark = "10 minutes"'


def test_windows_with_late_rows_over_restarts(
    job: Job, spark: SparkSession, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=2)
    job.write(
        "SELECT window.start AS begins, k, count(*) AS n FROM events GROUP BY window(at, '5 minutes'), k;",
        source("events", topic, EVENTS, WATERMARK),
        'format = "delta"\npath = "windows"',
    )

    def windows() -> list[tuple[str, str, int]]:
        frame = spark.read.format("delta").load(str(job.home / "windows"))
        rows = frame.selectExpr(
            "date_format(to_utc_timestamp(begins, current_timezone()), 'HH:mm')", "k", "n"
        )
        return sorted(tuple(row) for row in rows.collect())

    topics.fill(topic, [event("12:00", k="a"), event("12:01", k="a"), event("12:03", k="b")])
    job.run()
    assert windows() == [], "the window is still open"
    # The first is late, but within the watermark. The second closes the window.
    topics.fill(topic, [event("12:02", k="a")], queue=1)
    topics.fill(topic, [event("12:30", k="b")])
    done = job.run()
    assert windows() == [("12:00", "a", 3), ("12:00", "b", 1)]
    assert done.rows == 2 and done.bytes > 0 and done.details["state_rows"] == 1
    # This one is too late: the window is closed.
    topics.fill(topic, [event("12:04", k="a")], queue=1)
    topics.fill(topic, [event("12:31", k="b"), event("13:00", k="b")])
    done = job.run()
    assert windows() == [("12:00", "a", 3), ("12:00", "b", 1), ("12:30", "b", 2)]
    assert done.details["late"] == 1


def test_streams_and_a_table_are_joined(
    job: Job, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    orders, payments, out, unused = make_topic(), make_topic(), make_topic(), make_topic()
    (job.home / "users.csv").write_text("id,name\n1,Ann\n2,Ben\n")
    job.write(
        """SELECT o.id, u.name, p.at AS paid FROM orders o JOIN users u ON u.id = o.user
           LEFT JOIN payments p ON p.id = o.id AND p.at BETWEEN o.at AND o.at + INTERVAL 5 MINUTES""",
        source("orders", orders, "id INT, user INT, at TIMESTAMP", WATERMARK)
        + source("payments", payments, "id INT, at TIMESTAMP", WATERMARK)
        + source("unused", unused, "id INT")
        + '[sources.users]\npath = "users.csv"\nformat = "csv"\nschema = "id INT, name STRING"\n'
        + 'options = ["header=true"]\n',
        f'format = "topic"\ntopic = "{out}"',
    )

    def sent() -> list[tuple[int, str, str | None]]:
        rows = [json.loads(message.body) for message in stored(served.nameserver, out)]
        return sorted((row["id"], row["name"], row["paid"]) for row in rows)

    topics.fill(orders, [event("12:00", id=1, user=1), event("12:01", id=2, user=2)])
    job.run()
    topics.fill(payments, [event("12:02", id=1), event("12:20", id=2)])
    topics.fill(unused, [event("12:00", id=1)])
    done = job.run()
    assert (done.lag_s, done.details["messages_left"]) == (0.0, 0), "of the topics that the statement reads"
    paid = (1, "Ann", "2026-01-31T12:02:00.000Z")
    assert sent() == [paid], "the state of the previous run survives"
    # Now the watermark excludes a payment for the other order.
    topics.fill(orders, [event("12:40", id=3, user=1)])
    topics.fill(payments, [event("12:40", id=9)])
    job.run()
    assert sent() == [paid, (2, "Ben", None)]
    job.replay()
    assert sent() == [paid, (2, "Ben", None)]


def test_rows_that_change_and_bad_messages(
    job: Job, spark: SparkSession, topics: Topics, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    statement, sink = "SELECT k, count(*) AS n FROM events GROUP BY k", 'format = "delta"\npath = "counts"'
    job.write(statement, source("events", topic, EVENTS), f'{sink}\nkeys = ["k"]', 'mode = "update"')
    topics.fill(topic, [event("12:00", k="a"), event("12:00", k="b"), event("12:00", k="a")])
    job.run()
    topics.fill(topic, [event("12:00", k="b"), "no JSON"])
    with pytest.raises(
        CommandError, match=rf"source events: not a JSON object: at {topic}/broker-a/0/4; bad"
    ):
        job.run()
    job.file.write_text(job.file.read_text() + 'bad = "skip"\n')
    done = job.run()
    assert done.details["skipped"] == 1

    def counts() -> list[tuple[str, int]]:
        return sorted(
            (row.k, row.n) for row in spark.read.format("delta").load(str(job.home / "counts")).collect()
        )

    assert counts() == [("a", 2), ("b", 2)]
    job.replay()
    assert counts() == [("a", 2), ("b", 2)]

    plan = StreamSql.from_file(job.file).plan()
    assert plan.facts["columns"] == "k:string,n:bigint"
    assert any("Aggregate" in str(row["plan"]) for row in plan.tables)
    assert plan.warnings == ["no watermark in events: the state of the job grows without end"]
    (check,) = plan.checks
    assert check.startswith("source events: 127.0.0.1:") and check.endswith(" answer")


@kill_loop
def test_state_survives_a_kill(
    job: Job, spark: SparkSession, topics: Topics, make_topic: MakeTopic, tmp_path: Path
) -> None:
    chance = seeded()
    topic = make_topic(queues=2)
    job.write(
        "SELECT window.start AS begins, k, count(*) AS n, sum(v) AS total FROM events "
        "GROUP BY window(at, '5 minutes'), k",
        source(
            "events",
            topic,
            f"{EVENTS}, v BIGINT",
            'time = "at"\nwatermark = "20 minutes"\nbatch_bytes = "64KiB"',
        ),
        'format = "delta"\npath = "sums"\nkeys = ["begins", "k"]',
        'mode = "update"',
    )
    wanted: dict[tuple[str, str], tuple[int, int]] = {}

    def send(minutes: range) -> None:
        for queue in range(2):
            events = []
            for minute in sorted(chance.choices(minutes, k=10 * len(minutes))):
                # Events are out of order, but within the watermark.
                minute = max(0, minute - chance.randrange(3))
                k, v = chance.choice("abcde"), chance.randrange(1000)
                n, total = wanted.get((begins := f"12:{minute // 5 * 5:02}", k), (0, 0))
                wanted[begins, k] = n + 1, total + v
                events.append(event(f"12:{minute:02}", k=k, v=v))
            topics.fill(topic, events, queue=queue)

    send(range(45))
    cluster, before = Cluster(tmp_path) if LONG else None, 1 + chance.randrange(2)
    with job.running(cluster) as running:
        running.wait_for(lambda: batches_done(job.checkpoint) >= before)
        time.sleep(chance.random() * 2)
    assert cluster is None or len(cluster.executors) == cluster.workers
    send(range(45, 60))
    job.run()
    rows = spark.read.format("delta").load(str(job.home / "sums"))
    found = rows.selectExpr(
        "date_format(to_utc_timestamp(begins, current_timezone()), 'HH:mm') AS begins", "k", "n", "total"
    ).collect()
    assert {(row.begins, row.k): (row.n, row.total) for row in found} == wanted
    assert len(found) == len(wanted)


def test_rows_without_a_time_or_far_ahead_are_bad(
    job: Job, served: Metaq, spark: SparkSession, topics: Topics, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(), make_topic()
    job.write(
        "SELECT k FROM events UNION ALL SELECT k FROM others",
        source("events", topic, EVENTS, f'{WATERMARK}\nbad = "skip"\ngroup = "sql-events"')
        + source("others", other, EVENTS, 'group = "sql-others"'),
        'format = "parquet"\npath = "rows"',
    )
    ahead = json.dumps({"k": "ahead", "at": "2999-01-01T00:00:00Z"})
    undated = json.dumps({"k": "undated", "at": "12:00"})
    topics.fill(
        topic, [event("12:00", k="a"), json.dumps({"k": "none"}), ahead, undated, event("12:05", k="b")]
    )
    topics.fill(other, [json.dumps({"k": "c"})])
    done = job.run()
    assert (done.rows, done.details["skipped"], done.details["late"]) == (6, 3, 0)
    found = spark.read.parquet(str(job.home / "rows")).collect()
    assert sorted(row.k for row in found) == ["a", "b", "c"]
    # Each group has the offsets of its own source, including the last batch.
    with metaq.Client(served.nameserver) as client:
        for group, read, left in (("sql-events", topic, other), ("sql-others", other, topic)):
            with client.puller(group=group) as puller:
                ended = 5 if read == topic else 1
                wait_until(lambda: puller.committed(metaq.Queue(read, BROKER, 0)) == ended)  # noqa: B023
                assert puller.committed(metaq.Queue(left, BROKER, 0)) is None
    job.file.write_text(job.file.read_text().replace('bad = "skip"', ""))
    topics.fill(topic, [ahead])
    with pytest.raises(
        CommandError, match=r"source events: its time is more than 1 day after its storing: at"
    ):
        job.run()
    shutil.rmtree(job.checkpoint)
    with pytest.raises(ConfigError, match="rows would be left out or written again"):
        job.run()


def test_rows_are_merged_by_keys_that_identify_them(
    job: Job, spark: SparkSession, topics: Topics, make_topic: MakeTopic
) -> None:
    topic, sink = make_topic(), 'format = "delta"\npath = "last"\nkeys = ["k"]'
    job.write("SELECT k, at FROM events", source("events", topic, EVENTS), sink, 'mode = "update"')
    topics.fill(topic, [event("12:00", k="a")])
    job.run()
    job.write("SELECT k, at, 1 AS n FROM events", source("events", topic, EVENTS), sink, 'mode = "update"')
    with pytest.raises(ConfigError, match="n int instead of"):
        job.run()
    job.write("SELECT k, at FROM events", source("events", topic, EVENTS), sink, 'mode = "update"')
    topics.fill(topic, [event("12:01", k="new"), event("12:02", k="new")])
    with pytest.raises(CommandError, match=r"sink\.keys do not identify rows: a batch has 2 with k = new"):
        job.run()
    assert spark.read.format("delta").load(str(job.home / "last")).count() == 1


def test_a_plan_asks_the_servers_of_the_sink(job: Job, make_topic: MakeTopic) -> None:
    sink = 'format = "topic"\ntopic = "out"\nnamesrv = "127.0.0.1:1"'
    job.write("SELECT k, at FROM events", source("events", make_topic(), EVENTS), sink)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        StreamSql.from_file(job.file).plan()


def test_only_queries_are_executed(job: Job, spark: SparkSession, make_topic: MakeTopic) -> None:
    events = source("events", make_topic(), EVENTS)
    spark.range(1).createOrReplaceTempView("kept")
    for sql in ("CREATE TABLE made (a INT) USING parquet", "DROP VIEW kept", "SELECT 1) ; DROP VIEW kept --"):
        job.write(sql, events, 'format = "console"')
        with pytest.raises(ConfigError, match=r"query\.sql"):
            StreamSql.from_file(job.file).plan()
    # Settings of Spark may be secret, so they are not substituted.
    job.write("SELECT '${spark.app.name}' AS k, at FROM events -- all", events, 'format = "console"')
    plan = StreamSql.from_file(job.file).plan()
    assert any("${spark.app.name}" in str(row["plan"]) for row in plan.tables)
    assert not spark.catalog.tableExists("made")
    assert spark.catalog.dropTempView("kept")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("SELECT k", "SELCT k"), "query.sql: "),
        (("SELECT k", "SELECT other"), "query.sql: "),
        (("FROM events", "FROM evnts"), "query.sql: "),
        (('mode = "update"', 'mode = "append"'), 'cannot be done with query.mode = "append"'),
        (("at TIMESTAMP", "at TMESTAMP"), "sources.events.schema"),
        (("at TIMESTAMP", "metaq INT"), "which is a column of the message"),
        (
            ('schema = "', 'time = "k"\nwatermark = "1 minute"\nschema = "'),
            "there are: at, stored_at, born_at",
        ),
        (('schema = "', 'time = "stored_at"\nwatermark = "soon"\nschema = "'), "sources.events.watermark"),
        (
            ('schema = "', 'time = "at"\nwatermark = "1 minute"\nearly = "soon"\nschema = "'),
            "sources.events.early",
        ),
        (('sql = "', 'zone = "Mars"\nsql = "'), "query.zone"),
        (('format = "console"', 'format = "delta"\npath = "x"\nkeys = ["z"]'), "its columns are: k, n"),
    ],
)
def test_settings_are_checked_by_spark_before_any_work(
    job: Job, make_topic: MakeTopic, change: tuple[str, str], message: str
) -> None:
    job.write(
        "SELECT k, count(*) AS n FROM events GROUP BY k",
        source("events", make_topic(), EVENTS),
        'format = "console"',
        'mode = "update"',
    )
    text = job.file.read_text()
    job.file.write_text(text.replace(*change, 1))
    assert job.file.read_text() != text
    with pytest.raises(ConfigError) as raised:
        StreamSql.from_file(job.file).plan()
    assert message in f"{raised.value} {raised.value.hint}"
    assert not (job.home / "job.checkpoint").exists()
