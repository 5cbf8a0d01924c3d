"""Every pipeline on a standalone cluster, from a shell whose `python3` has no MetaQ."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.mirroring import Mirroring, run_sql
from tests.spark.standalone import Standalone
from tests.spark.support import JVM_OPTIONS, QUICK, Topics
from tests.support.database import Database
from tests.support.metaq import Metaq
from tests.support.reading import stored
from tests.support.spark_jars import delta_jars, driver_jars

# The machine may be busy with other suites.
pytestmark = [pytest.mark.usefixtures("password"), pytest.mark.timeout(3_600)]

MakeTopic = Callable[..., str]
METAQ = str(Path(sys.executable).with_name("metaq"))
PROGRAM = str(Path(__file__).with_name("pipelines_program.py"))
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    **QUICK,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


@pytest.fixture
def mirroring(server: Database, served: Metaq, database: str, tmp_path: Path) -> Iterator[Mirroring]:
    made = Mirroring(tmp_path, server, served, database)
    yield made
    made.close()


def spark_section() -> str:
    config = [f"{name}={value}" for name, value in SETTINGS.items()]
    return f"[spark]\njars = {json.dumps((*delta_jars(), *driver_jars()))}\nconfig = {json.dumps(config)}\n"


def lake_file(home: Path, served: Metaq, topic: str) -> Path:
    file = home / "lake.toml"
    file.write_text(
        f'[topic]\nnamesrv = "{served.nameserver}"\nname = "{topic}"\n'
        f'[lake]\npath = "lake"\nonce = true\n{spark_section()}',
        encoding="utf-8",
    )
    return file


def sql_file(home: Path, served: Metaq, topic: str, result: str) -> Path:
    file = home / "job.toml"
    file.write_text(
        f'[query]\nnamesrv = "{served.nameserver}"\nonce = true\n'
        f'sql = "SELECT upper(name) AS name FROM words"\n[sink]\nformat = "topic"\ntopic = "{result}"\n'
        f'[sources.words]\ntopic = "{topic}"\nschema = "name STRING"\n{spark_section()}',
        encoding="utf-8",
    )
    return file


def mirror_file(mirroring: Mirroring) -> Path:
    text = mirroring.config.read_text(encoding="utf-8").partition("[spark]")[0]
    file = mirroring.home / "mirror.toml"
    file.write_text(text.replace("[mirror]\n", "[mirror]\nonce = true\n") + spark_section(), encoding="utf-8")
    return file


def test_a_clean_shell_is_enough_if_workers_share_the_environment(
    cluster: Standalone,
    spark: SparkSession,
    served: Metaq,
    topics: Topics,
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    """Once, the planners of the driver ran the `python3` of the PATH, and the error had no cause."""
    assert cluster.run("python3", "-c", "import metaq").returncode != 0
    topic = make_topic(2)
    topics.fill(topic, ["one", "two", "three"])
    file = lake_file(tmp_path, served, topic)
    done = cluster.run(
        METAQ, "pipeline", "run", "log-lake", "--config", str(file), "--master", cluster.master
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert cluster.executor_logs(), "a worker ran an executor"
    found = spark.read.format("delta").load(str(tmp_path / "lake" / "records")).collect()
    assert sorted(row.line for row in found) == ["one", "three", "two"]


def test_every_pipeline_runs_with_a_packed_environment(
    cluster: Standalone,
    spark: SparkSession,
    served: Metaq,
    topics: Topics,
    make_topic: MakeTopic,
    mirroring: Mirroring,
    tmp_path: Path,
) -> None:
    lines, words, result = make_topic(2), make_topic(1), make_topic(1)
    topics.fill(lines, ["one", "two", "three"])
    topics.fill(words, ['{"name": "ann"}', '{"name": "bob"}'])
    run_sql(mirroring, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    mirroring.read()
    archive = tmp_path / "environment.tar.gz"
    packed = cluster.run(METAQ, "spark", "pack", str(archive), "--package", "pyarrow", "-o", "json")
    assert packed.returncode == 0, packed.stderr
    files = {
        "log-lake": lake_file(tmp_path, served, lines),
        "binlog-mirror": mirror_file(mirroring),
        "stream-sql": sql_file(tmp_path, served, words, result),
    }
    bare = str(cluster.programs / "python3")
    arguments = (f"{name}={file}" for name, file in files.items())
    done = cluster.run(sys.executable, PROGRAM, cluster.master, str(archive), bare, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["python"] == "./metaq-environment/bin/python"
    assert (found["log-lake"], found["stream-sql"]) == (3, 2) and found["binlog-mirror"] >= 2
    lake = spark.read.format("delta").load(str(tmp_path / "lake" / "records")).collect()
    assert sorted(row.line for row in lake) == ["one", "three", "two"]
    assert mirroring.rows(spark, "t", "id") == mirroring.source("t", "id")
    names = [json.loads(message.body)["name"] for message in stored(served.nameserver, result)]
    assert sorted(names) == ["ANN", "BOB"]
    # Executors whose Python has no packages: the error names the program, the module and the remedy.
    assert found["error"].startswith(f"an executor runs {bare}, which has no module "), found["error"]
    assert "metaq spark pack" in found["hint"] and "--environment" in found["hint"]
