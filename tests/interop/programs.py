"""Builds the client programs once, finds them again by a hash of their sources, and starts them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.interop.driver import Driver
from tests.support.go_programs import go_program
from tests.support.maven import QUICK_START, classpath, java, javac

HERE = Path(__file__).parent
JAVA = HERE / "java"
GO = HERE / "go"
BUILD_TIMEOUT_S = 600

# The client starts dozens of threads and lives for seconds: little heap, no optimising compiler.
JVM_FLAGS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# A 4.x consumer that finds a queue locked tries again at its next rebalance by the clock: every 20 s.
REBALANCE_INTERVAL_S = 14
ENCODINGS = {"json": "JSON", "binary": "ROCKETMQ"}


def build_java(versions: Iterable[str]) -> None:
    """Fetches and builds everything that the Java drivers need, which takes minutes the first time."""
    for version in versions:
        _java_classpath(version)


def build_go() -> None:
    """Fetches and builds the Go driver, which takes minutes the first time."""
    go_program(GO, "driver")


def start_java(
    version: str, encoding: str, home: Path, rebalance_interval_s: int = REBALANCE_INTERVAL_S
) -> Driver:
    """Starts a driver with one release of Apache's Java client and one header encoding."""
    home.mkdir(parents=True, exist_ok=True)
    arguments = [
        java(),
        *JVM_FLAGS,
        f"-Drocketmq.serialize.type={ENCODINGS[encoding]}",
        f"-Drocketmq.client.rebalance.waitInterval={rebalance_interval_s * 1000}",
        # Both the client's log and the offsets of broadcast consumers go below the home folder.
        f"-Duser.home={home}",
        "-cp",
        _java_classpath(version),
        "metaq.interop.Driver",
    ]
    return Driver(arguments, home / "driver.log", client_logs=home / "logs" / "rocketmqlogs")


def _java_classpath(version: str) -> str:
    libraries = classpath(JAVA / "pom.xml", JAVA / "target", {"rocketmq.version": version})
    sources = sorted((JAVA / "src").rglob("*.java"))
    return os.pathsep.join([str(compiled(sources, libraries, f"classes-{version}")), libraries])


def compiled(sources: list[Path], libraries: str, name: str) -> Path:
    """Returns the directory of these classes; compiles them unless that was done before."""
    classes = JAVA / "target" / f"{name}-{_hash([*sources, JAVA / 'pom.xml'])}"
    if not classes.exists():
        classes.parent.mkdir(exist_ok=True)
        fresh = classes.with_name(f".{classes.name}-{os.getpid()}")
        _build(
            [
                *(javac(), *(f"-J{option}" for option in QUICK_START), "--release", "17", "-nowarn"),
                *("-cp", libraries, "-d", str(fresh), *map(str, sources)),
            ],
            JAVA,
        )
        _put_in_place(fresh, classes)
    return classes


def start_go(home: Path) -> Driver:
    """Starts a driver with Apache's Go client."""
    home.mkdir(parents=True, exist_ok=True)
    return Driver([str(go_program(GO, "driver"))], home / "driver.log", {**os.environ, "HOME": str(home)})


def _put_in_place(fresh: Path, wanted: Path) -> None:
    """Moves the result into place, unless another run of the tests has put the same there already."""
    try:
        fresh.replace(wanted)
    except OSError:
        if not wanted.exists():
            raise
        if fresh.is_dir():
            shutil.rmtree(fresh)


def _hash(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(str(file.relative_to(HERE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def _build(arguments: list[str], directory: Path) -> None:
    built = subprocess.run(
        arguments,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if built.returncode != 0:
        raise RuntimeError(f"{Path(arguments[0]).name} failed in {directory.name}/:\n{built.stdout[-4000:]}")
