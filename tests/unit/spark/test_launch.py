"""The start of Spark's JVM: what is checked before, and what is shown of its output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import metaq.spark
from metaq.spark import launch
from metaq.spark.errors import SparkError
from metaq.spark.launch import StartOutput, require_jars, require_java

IVY = """\
:: loading settings :: url = jar:file:/pyspark/jars/ivy-2.5.3.jar!/org/apache/ivysettings.xml
Ivy Default Cache set to: /home/a/.ivy2.5.2/cache
The jars for the packages stored in: /home/a/.ivy2.5.2/jars
io.delta#delta-spark_4.2_2.13 added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-3418ddef;1.0
\tconfs: [default]
\tfound io.delta#delta-spark_4.2_2.13;4.4.0 in central
downloading https://repo1.maven.org/maven2/io/delta/delta-spark_4.2_2.13-4.4.0.jar ...
\t[SUCCESSFUL ] io.delta#delta-spark_4.2_2.13;4.4.0!delta-spark_4.2_2.13.jar (412ms)
:: resolution report :: resolve 1944ms :: artifacts dl 45ms
\t:: modules in use:
\tio.delta#delta-spark_4.2_2.13;4.4.0 from central in [default]
\t---------------------------------------------------------------------
\t|                  |            modules            ||   artifacts   |
:: retrieving :: org.apache.spark#spark-submit-parent-3418ddef
\t0 artifacts copied, 33 already retrieved (0kB/9ms)
"""
OTHERS = "WARNING: Using incubator modules: jdk.incubator.vector\n26/11/17 19:06:18 WARN Utils: a name\n"
TRACE = "26/11/17 19:06:19 ERROR Executor: failed\njava.lang.Exception: why\n\tat org.apache.A.b(A.java:1)\n"


class Start:
    """The output of one start, and what is shown of it."""

    def __init__(self, *, quiet: bool = True) -> None:
        reading, self._writing = os.pipe()
        self._shown, target = os.pipe()
        self.output = StartOutput(reading, target, quiet=quiet)
        self.output.start()

    def write(self, text: str) -> None:
        os.write(self._writing, text.encode())

    def end(self) -> str:
        os.close(self._writing)
        self.output.join()
        with os.fdopen(self._shown, "r") as shown:
            return shown.read()


def test_ivys_lines_are_hidden_and_all_others_are_shown() -> None:
    start = Start()
    start.write(OTHERS[:60])
    start.write(OTHERS[60:] + IVY)
    start.output.started()
    start.write(TRACE)
    shown = start.end().splitlines(keepends=True)
    # It comes at once, the others when the JVM has started.
    downloads = [line for line in shown if "downloads its packages" in line]
    assert len(downloads) == 1
    assert "".join(line for line in shown if line not in downloads) == OTHERS + TRACE


def test_all_lines_are_shown_on_request() -> None:
    start = Start(quiet=False)
    start.write(OTHERS + IVY)
    start.output.started()
    start.write("[Stage 0:>  (0 + 1) / 1]")
    assert start.end() == OTHERS + IVY + "[Stage 0:>  (0 + 1) / 1]"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (
            "\t:: io.delta#delta-spark_9;1: not found\n\tat a.B\n",
            "the package io.delta#delta-spark_9;1 is not found",
        ),
        (
            "Server access error at url https://repo1.maven.org/x (c)\n",
            "https://repo1.maven.org/x cannot be reached",
        ),
        ('Exception in thread "main" java.lang.RuntimeException: [x]\n\tat a.B\n', "[x]"),
        ("Error: Cannot load main class\n", "Cannot load main class"),
        ("java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main\n", "this Java is too old"),
        ("/pyspark/bin/spark-class: line 71: /x/bin/java: No such file\n", "/x/bin/java: No such file"),
        ("", "its Java process ended"),
    ],
)
def test_a_start_that_fails_has_a_reason_of_one_line(written: str, reason: str) -> None:
    start = Start()
    start.write(IVY + written if written else "")
    assert "at a.B" not in start.end()
    assert start.output.reason() == reason


def test_a_wrong_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match=r"JAVA_HOME is /nowhere, where there is no bin/java"):
        require_java({"JAVA_HOME": "/nowhere"})
    with pytest.raises(SparkError, match="there is no java on the PATH"):
        require_java({"PATH": str(tmp_path)})
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    require_java({"JAVA_HOME": str(tmp_path)})
    require_java({"PATH": str(java.parent)})


def test_a_missing_jar_is_named(tmp_path: Path) -> None:
    there = tmp_path / "there.jar"
    there.touch()
    require_jars({})
    require_jars({"spark.jars": f"{there},file:{there},file://{there},https://host/a.jar,/nowhere/*.jar"})
    with pytest.raises(SparkError, match=r"spark.jars names /nowhere/a.jar, which does not exist"):
        require_jars({"spark.jars": f"{there}, file:///nowhere/a.jar"})


def test_the_jvm_is_not_started_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "SparkContext", SimpleNamespace(_gateway=None))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SparkError, match="JAVA_HOME is /nowhere"):
        launch.start_jvm({}, quiet=True)


def test_on_this_machine_there_are_as_many_tasks_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    class Started(Exception):
        pass

    found: dict[str, str] = {}

    def start(config: dict[str, str], *, quiet: bool) -> None:
        found.update(config)
        raise Started

    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(sys.modules["metaq.spark.session"], "start_jvm", start)
    key = "spark.databricks.delta.snapshotPartitions"
    with pytest.raises(Started):
        metaq.spark.session(master="local[2]")
    assert found[key] == "2" and found["spark.master"] == "local[2]"
    shuffles = "spark.sql.shuffle.partitions"
    for master, cores in (("local[2]", 2), ("local[3,1]", 3), ("local", 1), ("local[*]", os.cpu_count())):
        with pytest.raises(Started):
            metaq.spark.session(master=master, delta=False)
        assert found[shuffles] == str(cores), "Spark's own default is 200"
    with pytest.raises(Started):
        metaq.spark.session(master="local[2]", config={key: "7", shuffles: "9"})
    assert (found[key], found[shuffles]) == ("7", "9"), "the user's settings win"
    found.clear()
    with pytest.raises(Started):
        metaq.spark.session(master="spark://host:7077", ship=False)
    assert key not in found and shuffles not in found
