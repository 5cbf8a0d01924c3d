"""The start of Spark on a machine that cannot reach Maven Central."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.spark.session import DELTA_PACKAGE
from tests.support.processes import free_port
from tests.support.spark_home import jvm_options, spark_home
from tests.support.spark_jars import delta_jars

pytestmark = pytest.mark.timeout(1_800)
START_TIMEOUT_S = 1_500
PROGRAM = """
import sys
from pyspark import SparkContext
from metaq.errors import MetaqError
from metaq.spark.launch import start_jvm

package, settings, options = sys.argv[1:]
try:
    start_jvm(
        {
            "spark.master": "local[1]",
            "spark.jars.packages": package,
            "spark.jars.ivySettings": settings,
            "spark.driver.extraJavaOptions": options,
        },
        quiet=True,
    )
except MetaqError as error:
    sys.exit(f"{error}; {error.hint}")
jvm = SparkContext._jvm
print(jvm.java.lang.System.getProperty("spark.jars"))
"""


def start(home: Path, repository: Path) -> subprocess.CompletedProcess[str]:
    """Starts Spark with an empty home, and with a server of jars that does not answer."""
    home.mkdir()
    settings = home / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="away"/><resolvers>'
        f'<ibiblio name="away" m2compatible="true" root="http://127.0.0.1:{free_port()}/"/>'
        "</resolvers></ivysettings>"
    )
    options = f"{jvm_options()} -Duser.home={home}"
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, DELTA_PACKAGE, str(settings), options],
        env={
            **os.environ,
            "HOME": str(home),
            "MAVEN_OPTS": f"-Dmaven.repo.local={repository}",
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )


def test_the_jars_of_mavens_repository_are_used(tmp_path: Path) -> None:
    """Once, Spark did not start."""
    jar = Path(delta_jars()[0])
    repository = next(parent for parent in jar.parents if (parent / "io" / "delta").is_dir())
    done = start(tmp_path / "home", repository)
    assert done.returncode == 0, done.stderr[-4000:]
    used = {Path(jar).name for jar in done.stdout.splitlines()[-1].split(",")}
    assert used == {Path(jar).name for jar in delta_jars()}
    assert "it uses the jars of Maven's local repository" in done.stderr


def test_the_error_names_the_remedy(tmp_path: Path) -> None:
    done = start(tmp_path / "home", tmp_path / "nothing")
    assert done.returncode == 1
    assert f"mvn dependency:get -Dartifact={DELTA_PACKAGE}" in done.stderr
    assert "jars=[…] of the session, spark.jars of a TOML file" in done.stderr
