"""Jars that Spark is started with in tests, resolved at set-up so that no session asks the network."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.maven import REPOSITORY_ROOT, classpath

POM = Path(__file__).parents[1] / "spark" / "pom.xml"
_DELTA = ("delta-", "unitycatalog-")
"""The others that Delta names come with pyspark."""
_DRIVERS = ("mariadb-java-client-", "postgresql-")


def delta_jars() -> tuple[str, ...]:
    """Fetched by Maven the first time, together with the drivers."""
    return _named(_DELTA)


def driver_jars() -> tuple[str, ...]:
    """JDBC drivers of the databases that mirrors are written to."""
    return _named(_DRIVERS)


def _named(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    resolved = classpath(POM, REPOSITORY_ROOT / "build" / "spark").split(os.pathsep)
    return tuple(jar for jar in resolved if Path(jar).name.startswith(prefixes))
