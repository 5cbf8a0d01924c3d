"""Starts the JVM of a Spark session.

It checks what the JVM needs, hides what Ivy writes during a start that goes well, turns the output of a start
that fails into an error of one line, and does without Maven Central if the jars are on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from metaq.spark.errors import SparkError
from metaq.spark.maven_jars import NotThere, maven_jars, repositories

_LINES_MAX: Final = 2000
"""The lines that are kept of a start."""
_READ_BYTES: Final = 65536

_IVY: Final = re.compile(
    r":: |Ivy Default Cache set to|The jars for the packages stored in"
    r"|\S+#\S+ added as a dependency|downloading http"
    r"|\t(?:confs: \[|found \S+#|\[SUCCESSFUL|:: |\S+#\S+;|-{20}|\||\d+ artifacts copied)"
)
"""The lines in which Ivy reports how it resolves packages."""

_DOWNLOAD: Final = re.compile(r"unresolved dependency|download failed|Server access error|: not found$")
PACKAGES: Final = "spark.jars.packages"

_REASONS: Final = (
    (re.compile(r"UnsupportedClassVersionError|Unsupported major\.minor"), "this Java is too old"),
    (re.compile(r"::\s*(\S+#\S+?): not found"), "the package {0} is not found"),
    (re.compile(r"Server access error at url (\S+)"), "{0} cannot be reached"),
    (re.compile(r"^.*?Exception in thread .*?: (.*)$"), "{0}"),
    (re.compile(r"^(?:Error|Exception|Caused by): (.*)$"), "{0}"),
    (re.compile(r"^(?:.*?/)?spark-(?:class|submit): line \d+: (.*)$"), "{0}"),
)


def require_java(environment: Mapping[str, str] | None = None) -> None:
    """Raises SparkError if Spark would find no Java."""
    found = os.environ if environment is None else environment
    home = found.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise SparkError(
                f"JAVA_HOME is {home}, where there is no bin/java",
                hint="set JAVA_HOME to the folder of a Java 17, or unset it to use the java of the PATH",
            )
    elif shutil.which("java", path=found.get("PATH")) is None:
        raise SparkError(
            "Spark needs Java 17, and there is no java on the PATH", hint="install it, or set JAVA_HOME"
        )


def require_jars(config: Mapping[str, str]) -> None:
    """Raises SparkError if `spark.jars` names a file of this machine that does not exist."""
    for name in (part.strip() for part in config.get("spark.jars", "").split(",")):
        path = re.sub(r"^file:(//)?", "", name)
        # Spark expands patterns, which are never the whole path of a missing file.
        if (
            path
            and not re.match(r"\w+:", path)
            and not re.search(r"[*?\[{]", path)
            and not Path(path).exists()
        ):
            raise SparkError(
                f"spark.jars names {path}, which does not exist", hint="correct or remove the name"
            )


def start_jvm(config: Mapping[str, str], *, quiet: bool) -> dict[str, str]:
    """Starts the JVM of this process, which later sessions use, unless there is one; returns its settings.

    If it cannot download packages, it takes their jars from Maven's local repository. Raises SparkError.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return dict(config)
    require_java()
    require_jars(config)
    try:
        _launch(config, quiet=quiet)
        return dict(config)
    except _NotDownloaded as error:
        reason = str(error)
    local = _with_local_jars(config)
    if local is None:
        raise SparkError(f"Spark cannot start: {reason}", hint=_remedy(config[PACKAGES])) from None
    print(
        f"Spark cannot download its packages ({reason}); it uses the jars of Maven's local repository.",
        file=sys.stderr,
        flush=True,
    )
    _launch(local, quiet=quiet)
    return local


class _NotDownloaded(SparkError):
    """Spark cannot download a package; the message is the reason."""


def _launch(config: Mapping[str, str], *, quiet: bool) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    settings = SparkConf(loadDefaults=False)
    for name, value in config.items():
        settings.set(name, value)
    reading, writing = os.pipe()
    output = StartOutput(reading, os.dup(2), quiet=quiet)
    output.start()
    try:
        gateway = launch_gateway(settings, popen_kwargs={"stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError:
        os.close(writing)
        output.join()
        reason = output.reason()
        if config.get(PACKAGES) and output.is_download():
            raise _NotDownloaded(reason) from None
        hint = "start it with quiet=False (spark.quiet = false in a TOML file) to see all that it writes"
        raise SparkError(f"Spark cannot start: {reason}", hint=hint if quiet else "") from None
    os.close(writing)
    output.started()
    SparkContext._ensure_initialized(gateway=gateway, conf=settings)


def _with_local_jars(config: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the settings with jars of Maven's local repository instead of packages; None without them."""
    packages = [package for package in config[PACKAGES].split(",") if package.strip()]
    for repository in repositories():
        with contextlib.suppress(NotThere):
            jars = ",".join(map(str, maven_jars(packages, repository)))
            others = {name: value for name, value in config.items() if name != PACKAGES}
            return {
                **others,
                "spark.jars": f"{config['spark.jars']},{jars}" if config.get("spark.jars") else jars,
            }
    return None


def _remedy(packages: str) -> str:
    gets = " and ".join(f"`mvn dependency:get -Dartifact={package}`" for package in packages.split(","))
    return (
        f"on a machine that reaches Maven Central, {gets} fills ~/.m2/repository, which Spark reads; copy it"
        " here, or name the files: jars=[…] of the session, spark.jars of a TOML file. Behind a mirror, set"
        " spark.jars.ivySettings"
    )


class StartOutput(threading.Thread):
    """Copies what the JVM writes to stderr, except Ivy's lines. Until the JVM has started, it keeps them.

    It copies to the stderr that the process had at the start, as the JVM itself would do.
    """

    def __init__(self, source: int, target: int, *, quiet: bool) -> None:
        super().__init__(name="metaq-spark-stderr", daemon=True)
        self._source, self._target = source, target
        self._quiet = quiet
        self._lock = threading.Lock()
        self._is_starting = True
        self._kept: deque[str] = deque(maxlen=_LINES_MAX)
        self._has_announced = False

    def started(self) -> None:
        """Copies the lines so far, and every later one at once."""
        with self._lock:
            self._is_starting = False
            if self._quiet:
                for line in self._kept:
                    if not _IVY.match(line):
                        self._write(line.encode() + b"\n")
            self._kept.clear()

    def reason(self) -> str:
        """Returns why a start failed, in one line."""
        for pattern, text in _REASONS:
            for line in self._kept:
                if found := pattern.search(line):
                    return text.format(*found.groups())
        written = [line.strip() for line in self._kept if line.strip()]
        return written[-1] if written else "its Java process ended"

    def is_download(self) -> bool:
        """Returns whether a start failed because a package could not be downloaded."""
        return any(_DOWNLOAD.search(line) for line in self._kept)

    def run(self) -> None:
        rest = b""
        while chunk := os.read(self._source, _READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace"))
            if rest and not self._is_starting:
                # Spark draws progress bars without a line feed.
                self._write(rest)
                rest = b""
        if rest:
            self._take(rest.decode(errors="replace"))
        os.close(self._source)
        os.close(self._target)

    def _take(self, line: str) -> None:
        with self._lock:
            if self._is_starting:
                self._kept.append(line)
            if not self._quiet or (not self._is_starting and not _IVY.match(line)):
                self._write(line.encode() + b"\n")
            elif line.startswith("downloading ") and not self._has_announced:
                self._has_announced = True
                self._write(
                    b"Spark downloads its packages from Maven Central. The next start finds them here.\n"
                )

    def _write(self, data: bytes) -> None:
        # The JVM must be able to go on if nobody reads its output any more.
        with contextlib.suppress(OSError):
            os.write(self._target, data)
