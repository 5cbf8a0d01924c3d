"""Apache RocketMQ's own name server and broker as child processes: the peer we are compared with.

`make test` writes an archive of their classes once (`tests/support/apache_archive.py`), with which they start
with half the work; the tests also pass without it.

Set-up fetches the servers while the native module is still being built, so nothing here imports metaq.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.maven import REPOSITORY_ROOT, classpath, java
from tests.support.processes import Child, free_port

POM = Path(__file__).parent / "peer" / "pom.xml"
VERSION = "5.5.0"
START_TIMEOUT_S = 120
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dtls.server.mode=disabled")
"""For a JVM that ends before optimised code would pay off. No test connects by TLS, for which a server would
first look for an RSA key: that takes longer than the rest of its start."""

# The broker reaches into the JDK for its direct buffers; without these it fails on a JDK 17.
_JDK_DOORS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)


def apache_classpath() -> str:
    """Returns the class path of Apache's servers, store and tools, which Maven fetches the first time."""
    return classpath(POM, REPOSITORY_ROOT / "build" / "apache")


@functools.cache
def archive() -> Path:
    """Returns the archive's path; an archive fits to one JVM and to one class path only."""
    program = Path(java()).resolve()
    parts = (str(program), str(program.stat().st_mtime_ns), apache_classpath())
    stamp = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return REPOSITORY_ROOT / "build" / "apache" / f"classes-{stamp}.jsa"


def _with_archive(jvm_flags: Sequence[str]) -> tuple[str, ...]:
    is_usable = tuple(jvm_flags) == SHORT_LIVED and archive().exists()
    return (*jvm_flags, f"-XX:SharedArchiveFile={archive()}") if is_usable else tuple(jvm_flags)


def java_command(
    main_class: str,
    home: Path,
    *arguments: str,
    heap: str = "512m",
    jvm_flags: Sequence[str] = (),
    classes: Sequence[Path] = (),
) -> list[str]:
    """Returns the command of a program in Apache's jars or in `classes`; its files go under `home`."""
    return [
        java(),
        f"-Xms{heap}",
        f"-Xmx{heap}",
        *_JDK_DOORS,
        *jvm_flags,
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        "-cp",
        os.pathsep.join([*map(str, classes), apache_classpath()]),
        main_class,
        *arguments,
    ]


class ApacheServer:
    """A name server or broker with a home folder. It is up when it prints "boot success"."""

    def __init__(self, home: Path, command: list[str], address: str) -> None:
        self.home = home
        self.address = address
        self._command = command
        self._starts = 0
        self.child = self._start()

    def _start(self) -> Child:
        self._starts += 1
        log = self.home / f"console-{self._starts}.log"
        child = Child(self._command, log, {"ROCKETMQ_HOME": str(self.home)}, self.home)
        try:
            child.wait_for(
                lambda text: "up" if "boot success" in text else None, START_TIMEOUT_S, "'boot success'"
            )
        except BaseException:
            # Nobody else would end it.
            child.kill()
            raise
        return child

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def kill(self) -> None:
        self.child.kill()

    def stop(self) -> None:
        if self.child.alive:
            self.child.stop(timeout_s=90)

    def tail(self) -> str:
        return self.child.tail()

    def restart(self) -> None:
        """Starts it again on the same port and the same store."""
        self.child = self._start()


def start_nameserver(
    home: Path,
    *,
    heap: str = "256m",
    jvm_flags: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> ApacheServer:
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    properties: dict[str, object] = {"listenPort": port, "bindAddress": "127.0.0.1", **(settings or {})}
    command = java_command(
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        home,
        "-c",
        str(_write_properties(home / "namesrv.properties", properties)),
        heap=heap,
        jvm_flags=_with_archive(jvm_flags),
    )
    return ApacheServer(home, command, f"127.0.0.1:{port}")


def start_broker(
    home: Path,
    nameservers: Sequence[str],
    *,
    name: str = "broker-a",
    flush: str = "async",
    heap: str = "1g",
    jvm_flags: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> ApacheServer:
    """Starts a master broker with small files; `settings` are keys of broker.conf and override ours."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port(neighbours=(-2, 1))
    store = home / "store"
    properties: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": ";".join(nameservers),
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "maxIndexNum": 400_000,
        "maxHashSlotNum": 100_000,
        "flushDiskType": f"{flush.upper()}_FLUSH",
        "timerWheelEnable": False,
        # A thread of the broker spins until this time has passed once: by default ten seconds.
        "transactionMetricFlushInterval": 500,
        # By default a broker with a timer wheel writes the whole wheel every second.
        "timerFlushIntervalMs": 10_000,
        **(settings or {}),
    }
    command = java_command(
        "org.apache.rocketmq.broker.BrokerStartup",
        home,
        "-c",
        str(_write_properties(home / "broker.conf", properties)),
        heap=heap,
        jvm_flags=_with_archive(jvm_flags),
    )
    return ApacheServer(home, command, f"127.0.0.1:{port}")


def _write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    lines = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]
    path.write_text(os.linesep.join(lines) + os.linesep)
    return path
