"""Jars that Spark is started with in tests, resolved at set-up so that no session asks the network."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.maven import REPOSITORY_ROOT, classpath

POM = Path(__file__).parents[1] / "spark" / "pom.xml"
_NEEDED = ("delta-", "unitycatalog-")
"""The others that Delta names come with pyspark."""


def delta_jars() -> tuple[str, ...]:
    """Fetched by Maven the first time."""
    resolved = classpath(POM, REPOSITORY_ROOT / "build" / "spark").split(os.pathsep)
    return tuple(jar for jar in resolved if Path(jar).name.startswith(_NEEDED))
