"""Writes `jars.sha256`, the checksums of all jars that tests and benchmarks use.

python -m tests.support.jar_checksums
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.support.maven import CHECKSUMS, REPOSITORY_ROOT, checksum_line, resolve

JAVA_CLIENTS = ("5.5.0", "4.9.8")
POMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("bench/clients/pom.xml", {}),
    ("bench/clients/spark-pom.xml", {}),
    *(("tests/interop/java/pom.xml", {"rocketmq.version": version}) for version in JAVA_CLIENTS),
    ("tests/spark/pom.xml", {}),
    ("tests/support/peer/pom.xml", {}),
)


def write_checksums() -> None:
    """Lets Maven resolve every pom and writes the list, or leaves it as it is if one cannot be resolved."""
    jars: set[Path] = set()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "classpath"
        for pom, properties in POMS:
            resolve(REPOSITORY_ROOT / pom, properties, output)
            jars |= set(map(Path, output.read_text().split(os.pathsep)))
    lines = sorted({checksum_line(jar) for jar in jars}, key=lambda line: line.split()[::-1])
    fresh = CHECKSUMS.with_name(f".{CHECKSUMS.name}-{os.getpid()}")
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(CHECKSUMS)


if __name__ == "__main__":
    write_checksums()
