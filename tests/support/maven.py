"""Jars from Maven Central. Maven resolves them once, and again only when the pom changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import find_tool

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
RESOLVE_TIMEOUT_S = 1800
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For Maven and javac, which end before optimised code would pay off."""


def java() -> str:
    return find_tool("java", "a JDK 17 (Debian: openjdk-17-jdk-headless)")


def javac() -> str:
    return find_tool("javac", "a JDK 17 (Debian: openjdk-17-jdk-headless)")


def classpath(pom: Path, into: Path, properties: Mapping[str, str] | None = None) -> str:
    """Returns the class path of everything `pom` depends on.

    The answer is kept in `into` under a hash of the pom and the properties, because Maven takes seconds to
    give the same answer again and may need the network.
    """
    properties = dict(properties or {})
    stamp = hashlib.sha256(pom.read_bytes() + repr(sorted(properties.items())).encode()).hexdigest()[:16]
    kept = into / f"classpath-{stamp}"
    if kept.exists():
        known = kept.read_text()
        if all(Path(jar).exists() for jar in known.split(os.pathsep)):
            return known
    into.mkdir(parents=True, exist_ok=True)
    fresh = into / f".classpath-{stamp}-{os.getpid()}"
    arguments = [
        find_tool("mvn", "Maven (Debian: maven)"),
        *("-q", "-B", "-f", str(pom)),
        *(f"-D{name}={value}" for name, value in properties.items()),
        "dependency:build-classpath",
        f"-Dmdep.outputFile={fresh}",
    ]
    # Offline first: if the local repository has everything, Maven does not look for updates.
    outcome = _run([*arguments, "-o"])
    if outcome.returncode != 0:
        outcome = _run(arguments)
    if outcome.returncode != 0:
        raise RuntimeError(f"Maven could not resolve {pom}:\n{outcome.stdout[-4000:]}")
    fresh.replace(kept)
    return kept.read_text()


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RESOLVE_TIMEOUT_S,
        check=False,
        env={"MAVEN_OPTS": " ".join(QUICK_START), **os.environ},
    )
