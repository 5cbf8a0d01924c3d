"""Jars for Spark in tests, resolved at set-up so that no session needs the network."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.maven import REPOSITORY_ROOT, classpath

POM = Path(__file__).parents[1] / "spark" / "pom.xml"
_DELTA = ("delta-", "unitycatalog-")
"""Delta's other dependencies come with pyspark."""
_DRIVERS = ("mariadb-java-client-", "postgresql-")


def delta_jars() -> tuple[str, ...]:
    """Returns Delta's jars. Maven fetches them the first time, together with the drivers."""
    return _named(_DELTA)


def driver_jars() -> tuple[str, ...]:
    """Returns the JDBC drivers for the databases that mirrors are written to."""
    return _named(_DRIVERS)


def _named(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    resolved = classpath(POM, REPOSITORY_ROOT / "build" / "spark").split(os.pathsep)
    return tuple(jar for jar in resolved if Path(jar).name.startswith(prefixes))
