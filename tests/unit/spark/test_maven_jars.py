"""Jars of packages in Maven's local repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.spark.maven_jars import NotThere, maven_jars, repositories

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"


def put(repository: Path, package: str, *needs: str, scope: str = "") -> Path:
    """Puts a jar and its description into a repository."""
    group, artifact, version = package.split(":")
    folder = repository.joinpath(*group.split("."), artifact, version)
    folder.mkdir(parents=True)
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(
            *need.split(":")
        )
        + (f"<scope>{scope}</scope></dependency>" if scope else "</dependency>")
        for need in needs
    )
    pom = '<project xmlns="http://maven.apache.org/POM/4.0.0"><dependencies>{}</dependencies></project>'
    (folder / f"{artifact}-{version}.pom").write_text(pom.format(dependencies))
    jar = folder / f"{artifact}-{version}.jar"
    jar.touch()
    return jar


def test_a_package_brings_along_its_own_jars_and_none_that_spark_has(tmp_path: Path) -> None:
    others = ("org.scala-lang:scala-library:2.13.17", "io.unitycatalog:unitycatalog-client:0.6.0")
    jars = [
        put(tmp_path, DELTA, "io.delta:delta-storage:${project.version}", *others),
        put(tmp_path, "io.delta:delta-storage:4.4.0", "io.delta:delta-tests:4.4.0", scope="test"),
        put(tmp_path, others[1], DELTA),
    ]
    assert sorted(maven_jars([DELTA], tmp_path)) == sorted(jars)


def test_a_missing_or_malformed_part_is_named(tmp_path: Path) -> None:
    jar = put(tmp_path, DELTA, "io.delta:delta-storage:4.4.0")
    with pytest.raises(NotThere, match=r"delta-storage-4\.4\.0\.jar"):
        maven_jars([DELTA], tmp_path)
    jar.with_suffix(".pom").write_text("<project")
    with pytest.raises(NotThere, match=r"4\.4\.0\.pom"):
        maven_jars([DELTA], tmp_path)
    for package in ("io.delta", "io.delta:../../x:1", "io.delta:..:1", "a:b:c:d"):
        with pytest.raises(NotThere):
            maven_jars([package], tmp_path)


def test_mavens_own_settings_name_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".m2").mkdir()
    own = tmp_path / ".m2" / "repository"
    assert repositories({"HOME": str(tmp_path)}) == [own]
    (tmp_path / ".m2" / "settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">'
        "<localRepository>${user.home}/elsewhere</localRepository></settings>"
    )
    found = repositories({"HOME": str(tmp_path), "MAVEN_OPTS": "-Xmx1g -Dmaven.repo.local=/given"})
    assert found == [Path("/given"), tmp_path / "elsewhere", own]
