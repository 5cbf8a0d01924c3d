"""stream-sql on a real broker, Spark and Delta Lake."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metaq.errors import CommandError, ConfigError
from metaq.pipelines import Progress
from metaq.pipelines.sql.pipeline import StreamSql
from tests.spark.patience import patiently
from tests.spark.support import Topics
from tests.support.metaq import Metaq
from tests.support.reading import stored

MakeTopic = Callable[..., str]

# A busy machine needs minutes for what takes seconds.
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]


class Job:
    """A file, and runs that take what is there and end."""

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

    def run(self) -> Progress:
        job = StreamSql.from_file(self.file)
        return patiently(lambda: job.run(lambda progress: None, threading.Event()))


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
    assert windows() == [], "it may still get rows"
    # Late, but not later than the watermark allows; the next one closes the window.
    topics.fill(topic, [event("12:02", k="a")], queue=1)
    topics.fill(topic, [event("12:30", k="b")])
    done = job.run()
    assert windows() == [("12:00", "a", 3), ("12:00", "b", 1)]
    assert done.rows == 2 and done.bytes > 0 and done.details["state_rows"] == 1
    # Too late: the window was told already.
    topics.fill(topic, [event("12:04", k="a")], queue=1)
    topics.fill(topic, [event("12:31", k="b"), event("13:00", k="b")])
    done = job.run()
    assert windows() == [("12:00", "a", 3), ("12:00", "b", 1), ("12:30", "b", 2)]
    assert done.details["late"] == 1


def test_streams_and_a_table_are_joined(
    job: Job, served: Metaq, topics: Topics, make_topic: MakeTopic
) -> None:
    orders, payments, out = make_topic(), make_topic(), make_topic()
    (job.home / "users.csv").write_text("id,name\n1,Ann\n2,Ben\n")
    job.write(
        """SELECT o.id, u.name, p.at AS paid FROM orders o JOIN users u ON u.id = o.user
           LEFT JOIN payments p ON p.id = o.id AND p.at BETWEEN o.at AND o.at + INTERVAL 5 MINUTES""",
        source("orders", orders, "id INT, user INT, at TIMESTAMP", WATERMARK)
        + source("payments", payments, "id INT, at TIMESTAMP", WATERMARK)
        + '[sources.users]\npath = "users.csv"\nformat = "csv"\nschema = "id INT, name STRING"\n'
        + 'options = ["header=true"]\n',
        f'format = "topic"\ntopic = "{out}"',
    )

    def told() -> list[tuple[int, str, str | None]]:
        rows = [json.loads(message.body) for message in stored(served.nameserver, out)]
        return sorted((row["id"], row["name"], row["paid"]) for row in rows)

    topics.fill(orders, [event("12:00", id=1, user=1), event("12:01", id=2, user=2)])
    job.run()
    topics.fill(payments, [event("12:02", id=1), event("12:20", id=2)])
    job.run()
    paid = (1, "Ann", "2026-01-31T12:02:00.000Z")
    assert told() == [paid], "the order of a run before is still known"
    # Now it is certain that nothing comes for the other one any more.
    topics.fill(orders, [event("12:40", id=3, user=1)])
    topics.fill(payments, [event("12:40", id=9)])
    job.run()
    assert told() == [paid, (2, "Ben", None)]


def test_rows_that_change_and_messages_that_are_no_rows(
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
    counts = spark.read.format("delta").load(str(job.home / "counts")).collect()
    assert sorted((row.k, row.n) for row in counts) == [("a", 2), ("b", 2)]

    plan = StreamSql.from_file(job.file).plan()
    assert plan.facts["columns"] == "k:string,n:bigint"
    assert any("Aggregate" in str(row["plan"]) for row in plan.tables)
    assert plan.warnings == ["no watermark in events: what the job keeps grows without end"]


@pytest.mark.parametrize(
    ("change", "says"),
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
        (('sql = "', 'zone = "Mars"\nsql = "'), "query.zone"),
        (('format = "console"', 'format = "delta"\npath = "x"\nkeys = ["z"]'), "it gives: k, n"),
    ],
)
def test_what_only_spark_can_tell_is_told_before_any_work(
    job: Job, make_topic: MakeTopic, change: tuple[str, str], says: str
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
    with pytest.raises(ConfigError) as told:
        StreamSql.from_file(job.file).plan()
    assert says in f"{told.value} {told.value.hint}"
    assert not (job.home / "job.checkpoint").exists()
