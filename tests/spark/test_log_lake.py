"""log-lake with a real broker and Delta Lake."""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import metaq
from metaq.errors import ConfigError, MetaqError
from metaq.pipelines import Progress
from metaq.pipelines.log_lake.batch import Batches
from tests.spark.cluster import Cluster
from tests.spark.lake import Lake
from tests.spark.running import RunningPipeline
from tests.spark.support import BROKER, Topics
from tests.support.metaq import Metaq
from tests.support.rounds import LONG, kill_loop, seeded
from tests.support.waiting import wait_until

# A busy machine needs minutes.
pytestmark = pytest.mark.timeout(900)

MakeTopic = Callable[..., str]
MakeLake = Callable[..., Lake]
HELD_S_MAX = 120
TODAY = datetime.datetime.now(datetime.UTC).replace(hour=12)
YESTERDAY = TODAY - datetime.timedelta(days=1)


@pytest.fixture
def make_lake(spark: SparkSession, served: Metaq, tmp_path: Path, make_topic: MakeTopic) -> MakeLake:
    def make(lake: str = "", records: str = "", *, queues: int = 1) -> Lake:
        return Lake(spark, served, tmp_path, make_topic(queues=queues), lake, records)

    return make


def send(
    topics: Topics, topic: str, lines: list[tuple[int, str]], *, file: str = "f1", queue: int = 0
) -> None:
    """Sends lines as the log agent does."""
    for at, line in lines:
        properties = {"log.id": file, "log.at": str(at), "log.host": "here", "log.file": "/app.log"}
        topics.fill(topic, [line], queue=queue, properties=properties)


def stamped(when: datetime.datetime, text: str) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} {text}"


class HeldBatch:
    """Holds the first batch until a report says that this many messages are left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, messages_left: int) -> None:
        self._messages_left = messages_left
        self._is_reported = threading.Event()
        self.was_reported = False
        write = Batches.write

        def waits(batches: Batches, *arguments: Any) -> None:
            if not self.was_reported:
                self.was_reported = self._is_reported.wait(HELD_S_MAX)
            write(batches, *arguments)

        monkeypatch.setattr(Batches, "write", waits)

    def __call__(self, progress: Progress) -> None:
        if progress.details.get("messages_left") == self._messages_left and progress.lag_s:
            self._is_reported.set()


def test_lines_are_stored_once_by_their_own_date(
    make_lake: MakeLake, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake("compact_batches = 2", "time = 'record'\ntime_pattern = '^(\\S+ \\S+)'")
    topic = lake.topic
    new, late = stamped(TODAY, "new"), stamped(YESTERDAY, "late")
    send(topics, topic, [(0, new), (30, "no time here"), (0, new), (60, stamped(TODAY, "next"))])
    topics.fill(topic, [b"\xff\xfe", "1999-12-31 23:59:59 too old", "2999-01-01 00:00:00 too new"])
    held = HeldBatch(monkeypatch, messages_left=7)
    done = lake.run(held)
    assert held.was_reported, "the lag is known during the first batch"
    assert (done.lag_s, done.details["messages_left"]) == (0.0, 0)
    assert (done.rows, done.details["quarantined"], done.details["repeats"]) == (2, 4, 1)
    assert done.batch_s is not None and done.batch_s > 0
    assert lake.reasons() == {
        b"\xff\xfe": "not UTF-8",
        b"no time here": "no time",
        b"1999-12-31 23:59:59 too old": "its time is more than 366 days before its storing",
        b"2999-01-01 00:00:00 too new": "its time is more than 1 days after its storing",
    }
    # The agent was killed and sends lines again; one line, which others had overtaken, is new.
    send(topics, topic, [(30, "no time here"), (45, late), (60, stamped(TODAY, "next")), (90, new)])
    done = lake.run()
    assert (done.rows, done.details["repeats"], done.details["compactions"]) == (2, 2, 1)
    assert len(lake.reasons()) == 4
    found = collections.Counter((row.date, row.topic, row.line) for row in lake.frame().collect())
    assert found == {
        (TODAY.date(), topic, new): 2,
        (TODAY.date(), topic, stamped(TODAY, "next")): 1,
        (YESTERDAY.date(), topic, late): 1,
    }
    assert (lake.path / "records" / f"date={YESTERDAY:%Y-%m-%d}" / f"topic={topic}").is_dir()
    today = lake.frame().where(f"date = '{TODAY:%Y-%m-%d}'")
    assert len(today.inputFiles()) == 1, "compaction has merged the files of two batches"
    row = today.where("log_at = 60").collect()[0]
    assert (row.host, row.file, row.log_id, row.queue_id, row.log_cut) == ("here", "/app.log", "f1", 0, False)
    (records, quarantine) = lake.plan().tables
    assert (records["table"], records["rows"], records["files"]) == ("records", 4, 2)
    assert (quarantine["table"], quarantine["rows"]) == ("quarantine", 4)


def test_json_by_its_schema(make_lake: MakeLake, topics: Topics, served: Metaq) -> None:
    schema = "level STRING NOT NULL, n INT, at STRING, user STRUCT<id: INT NOT NULL>"
    lake = make_lake(
        "zone = 'Asia/Tokyo'",
        f"format = 'json'\nschema = '{schema}'\ntime = 'record'\ntime_field = 'at'\nkeep_line = true",
    )
    at = f'"at": "{YESTERDAY:%Y-%m-%d}T23:30:00Z"'
    good = f'{{"level": "info", "n": 7, {at}, "user": {{"id": 3}}, "more": true}}'
    bad = {
        "nonsense": "not a JSON object",
        "[{}]": "not a JSON object",
        '{"level": "info"': "not JSON",
        f'{{"level": "info", {at}}} {{}}': "not JSON",
        f'{{"level": "info", {at}}}] anything': "not JSON",
        f'{{"level": "info", "n": "x", {at}}}': "does not fit the schema: n",
        f'{{"n": 1, {at}}}': "does not fit the schema: level is missing",
        f'{{"level": "info", {at}, "user": {{}}}}': "does not fit the schema: user.id is missing",
        '{"level": "info", "at": "12:00"}': "no time",
    }
    topics.fill(lake.topic, [good, *bad])
    done = lake.run()
    assert (done.rows, done.details["quarantined"]) == (1, len(bad))
    (row,) = lake.frame().collect()
    assert (row.record.level, row.record.n, row.record.user.id, row.line) == ("info", 7, 3, good)
    assert row.date == TODAY.date(), "in Tokyo it is the next day"
    assert lake.reasons() == {body.encode(): reason for body, reason in bad.items()}

    # A schema may grow. A repeated batch is written once, including its bad rows.
    lake.write("group = 'lake'", f"format = 'json'\nschema = '{schema}, new DATE'")
    topics.fill(lake.topic, ['{"level": "warn", "new": "2026-01-31"}', "worse"])
    lake.run()
    lake.replay()
    added = sorted((row.record.level, row.record.new) for row in lake.frame().collect())
    assert added == [("info", None), ("warn", datetime.date(2026, 1, 31))]
    assert lake.frame("quarantine").count() == len(bad) + 1
    with metaq.Client(served.nameserver) as client, client.puller(group="lake") as puller:
        wait_until(lambda: puller.committed(metaq.Queue(lake.topic, BROKER, 0)) == len(bad) + 3)

    lake.write(records=f"format = 'json'\nschema = '{schema.replace('n INT', 'n STRING')}'")
    with pytest.raises(ConfigError, match=r"record\.n is string, but was int"):
        lake.run()
    lake.write("format = 'parquet'", "format = 'json'")
    with pytest.raises(ConfigError, match="is delta"):
        lake.plan()
    lake.write()
    lake.forget_checkpoint()
    with pytest.raises(ConfigError, match="would be written again"):
        lake.run()


def test_parquet_and_json_without_a_schema(make_lake: MakeLake, topics: Topics) -> None:
    lake = make_lake("format = 'parquet'", "format = 'json'")
    send(topics, lake.topic, [(0, '{"a": 1}'), (9, '{"a": 2}'), (0, '{"a": 1}'), (18, "bad")])
    lake.run()
    # A crash in the middle of a write may leave any file.
    # It depends on the name of the topic whether the rows are in one file or two.
    files = list((lake.path / "records").glob(f"date=*/topic={lake.topic}/batch=*-0/*.parquet"))
    for number, file in enumerate(files):
        file.with_name(f"part-left-behind-{number}.parquet").write_bytes(file.read_bytes())

    def found() -> list[int]:
        return sorted(row[0] for row in lake.frame(kind="parquet").selectExpr("record:a::int").collect())

    assert found() == [1, 1, 2, 2]
    lake.replay()
    assert found() == [1, 2]
    assert lake.reasons("parquet") == {b"bad": "not a JSON object"}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("format = 'json'\nschema = 'level STRNG'", "records.schema"),
        ("format = 'json'\nschema = 'a INT'\ntime = 'record'\ntime_field = 'b'", "there are: a"),
        ("format = 'json'\nschema = 'a INT'\ntime = 'record'\ntime_field = 'a'", "epoch_s or epoch_ms"),
        ("format = 'json'\nschema = 'a MAP<INT, INT>'\ntime = 'record'\ntime_field = 'a'", "a timestamp"),
        ("time = 'record'\ntime_pattern = '(x)'\ntime_format = 'bbb'", "records.time_format"),
        ("time = 'record'\ntime_pattern = 'x'", "has no group"),
        ("time = 'record'\ntime_pattern = '('", "a regular expression"),
    ],
)
def test_settings_are_checked_by_spark_before_any_work(
    make_lake: MakeLake, records: str, message: str
) -> None:
    lake = make_lake(records=records)
    with pytest.raises(ConfigError) as raised:
        lake.run()
    assert message in f"{raised.value} {raised.value.hint}"
    assert not lake.path.exists()


def test_a_missing_topic(make_lake: MakeLake) -> None:
    lake = make_lake("topics = ['nowhere']")
    with pytest.raises(MetaqError, match="there is no topic nowhere"):
        lake.plan()


@kill_loop
def test_kills_lose_and_repeat_no_line(make_lake: MakeLake, topics: Topics) -> None:
    chance = seeded()
    lake = make_lake(queues=3)
    lake.write("batch_bytes = '64KiB'\ncompact_batches = 2\ninterval_s = 0", once=False)
    wanted: collections.Counter[tuple[str, int, str]] = collections.Counter()
    for queue in range(3):
        file, at, lines = f"file-{queue}", 0, []
        for number in range(700):
            line = f"{file} {number} {'x' * chance.randrange(60)}"
            lines += [(at, line)] * (2 if chance.random() < 0.05 else 1)
            wanted[file, at, line] += 1
            at += len(line) + 1
        send(topics, lake.topic, lines, file=file, queue=queue)
    cluster = Cluster(lake.config.parent) if LONG else None
    assert "local-cluster" not in lake.config.read_text()
    # Before the second batch begins, executors with nothing but the archive have written the first one.
    killed = ((None, 0), (cluster, 1), (None, 2)) if LONG else ((None, chance.randrange(1, 3)),)
    for place, batch in killed:
        begun = lake.path / "_checkpoint" / "offsets" / str(batch)
        with RunningPipeline("log-lake", lake.config, place) as running:
            running.wait_for(begun.exists)
            time.sleep(chance.uniform(0.0, 3.0))
    if cluster is not None:
        assert len(cluster.executors) >= cluster.workers, "each worker ran an executor"
    lake.write("compact_batches = 2")
    lake.run()
    found = collections.Counter((row.log_id, row.log_at, row.line) for row in lake.frame().collect())
    assert found == wanted, f"missing {wanted - found}, too often {found - wanted}"
