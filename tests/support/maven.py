"""Jars from Maven Central. Maven resolves them once, and again only when the pom changes.

`jars.sha256` lists the checksum of each, and nothing runs with a jar that is not listed. After you changed a
pom, write the list anew: `make jars`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.processes import find_tool

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
RESOLVE_TIMEOUT_S = 1800
CHECKSUMS = Path(__file__).with_name("jars.sha256")
"""Lines of `sha256sum` with the names of jars."""
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For Maven and javac, which end before optimised code would pay off."""


def java() -> str:
    return find_tool("java", "a JDK 17 (Debian: openjdk-17-jdk-headless)")


def javac() -> str:
    return find_tool("javac", "a JDK 17 (Debian: openjdk-17-jdk-headless)")


def classpath(
    pom: Path, into: Path, properties: Mapping[str, str] | None = None, checksums: Path = CHECKSUMS
) -> str:
    """Returns the class path of everything `pom` depends on. Raises RuntimeError for an unlisted jar.

    The answer is kept in `into` under a hash of the pom, the properties and the checksums, because Maven
    takes seconds to give the same answer again and may need the network.
    """
    properties = dict(properties or {})
    parts = pom.read_bytes() + repr(sorted(properties.items())).encode() + checksums.read_bytes()
    stamp = hashlib.sha256(parts).hexdigest()[:16]
    kept = into / f"classpath-{stamp}"
    if kept.exists():
        known = kept.read_text()
        if all(Path(jar).exists() for jar in known.split(os.pathsep)):
            return known
    into.mkdir(parents=True, exist_ok=True)
    fresh = into / f".classpath-{stamp}-{os.getpid()}"
    resolve(pom, properties, fresh)
    try:
        check_jars(map(Path, fresh.read_text().split(os.pathsep)), checksums)
    except BaseException:
        fresh.unlink()
        raise
    fresh.replace(kept)
    return kept.read_text()


def check_jars(jars: Iterable[Path], checksums: Path) -> None:
    """Raises RuntimeError that names every jar whose checksum is not in the list."""
    listed = set(checksums.read_text().splitlines())
    wrong = [str(jar) for jar in jars if checksum_line(jar) not in listed]
    if wrong:
        raise RuntimeError(
            f"{checksums.name} does not list the SHA-256 checksum of these jars:\n"
            + "\n".join(wrong)
            + "\nDelete them and run the command again. If you changed a pom.xml, run `make jars` first."
        )


def checksum_line(jar: Path) -> str:
    """Returns the line of `sha256sum` for a jar, with its name alone."""
    with jar.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {jar.name}"


def resolve(pom: Path, properties: Mapping[str, str], output: Path) -> None:
    """Writes the class path of everything `pom` depends on into a file."""
    arguments = [
        find_tool("mvn", "Maven (Debian: maven)"),
        *("-q", "-B", "-f", str(pom)),
        *(f"-D{name}={value}" for name, value in properties.items()),
        "dependency:build-classpath",
        f"-Dmdep.outputFile={output}",
    ]
    # Offline first: if the local repository has everything, Maven does not look for updates.
    outcome = _run([*arguments, "-o"])
    if outcome.returncode != 0:
        outcome = _run(arguments)
    if outcome.returncode != 0:
        raise RuntimeError(f"Maven could not resolve {pom}:\n{outcome.stdout[-4000:]}")


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
