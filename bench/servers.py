"""The brokers under test, started and stopped the same way."""

from __future__ import annotations

import json
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tests.support import apache
from tests.support.maven import REPOSITORY_ROOT
from tests.support.processes import Child

READY_TIMEOUT_S = 60
_GIB = 1024**3

# The options that Apache's start script gives its broker, except the heap size (a flag of ours) and touching
# every page of it at the start, which would count memory that was never used.
PEER_JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:MaxDirectMemorySize=15g",
    "-XX:-UseLargePages",
)
# Upstream's defaults, spelled out because the tests' own starter prefers small files.
PEER_SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": _GIB,
    "maxIndexNum": 20_000_000,
    "maxHashSlotNum": 5_000_000,
    "timerWheelEnable": True,
}


@dataclass(frozen=True)
class Options:
    """Settings that both brokers start with."""

    flush: str
    metaq: Path
    peer_heap: str


class BrokerUnderTest(ABC):
    """A running broker and the name server that knows it."""

    name: str
    nameserver: str
    broker: str
    pid: int
    pids: tuple[int, ...]
    """All processes whose CPU time counts."""
    store: Path
    start_to_ready_s: float

    @abstractmethod
    def stop(self) -> None:
        """Ends it cleanly."""


class MetaqBroker(BrokerUnderTest):
    """`metaq serve`: name server and broker in one process, so its figures include both."""

    def __init__(self, name: str, home: Path, options: Options) -> None:
        self.name = name
        self.store = home / "data"
        home.mkdir(parents=True)
        began = time.monotonic()
        self._child = Child(
            [
                str(options.metaq),
                "serve",
                *("--host", "127.0.0.1", "--namesrv-port", "0", "--broker-port", "0"),
                *("--data", str(self.store), "--flush", options.flush),
            ],
            home / "console.log",
        )
        line = self._child.wait_for(ready_line, READY_TIMEOUT_S, "METAQ_READY line")
        self.start_to_ready_s = time.monotonic() - began
        ready = json.loads(line)
        self.nameserver, self.broker = ready["nameserver"], ready["broker"]
        self.pid = self._child.process.pid
        self.pids = (self.pid,)

    def stop(self) -> None:
        self._child.stop(timeout_s=60)


class ApacheBroker(BrokerUnderTest):
    """Apache RocketMQ's broker with a name server of its own; the figures are the broker's alone."""

    def __init__(self, name: str, home: Path, options: Options) -> None:
        self.name = name
        self._nameserver = apache.start_nameserver(home / "namesrv")
        began = time.monotonic()
        try:
            self._broker = apache.start_broker(
                home / "broker",
                [self._nameserver.address],
                flush=options.flush,
                heap=options.peer_heap,
                jvm_flags=PEER_JVM_FLAGS,
                settings=PEER_SETTINGS,
            )
        except BaseException:
            self._nameserver.stop()
            raise
        self.start_to_ready_s = time.monotonic() - began
        self.nameserver, self.broker = self._nameserver.address, self._broker.address
        self.pid = self._broker.pid
        self.pids = (self.pid,)
        self.store = home / "broker" / "store"

    def stop(self) -> None:
        self._broker.stop()
        self._nameserver.stop()


class Nothing(BrokerUnderTest):
    """A server that answers every send and does nothing: the limit of clients and machine."""

    def __init__(self, name: str, home: Path, options: Options) -> None:
        self.name = name
        self.store = home
        home.mkdir(parents=True)
        what = ("--release", "--quiet", "-p", "metaq-wire", "--example", "nothing")
        subprocess.run(["cargo", "build", *what], cwd=REPOSITORY_ROOT, check=True)
        began = time.monotonic()
        # Cargo replaces itself with the program, so the child is the server itself.
        self._child = Child(["cargo", "run", *what], home / "console.log", directory=REPOSITORY_ROOT)
        self.nameserver = self.broker = self._child.wait_for(_nothing_address, READY_TIMEOUT_S, "READY line")
        self.start_to_ready_s = time.monotonic() - began
        self.pid = self._child.process.pid
        self.pids = (self.pid,)

    def stop(self) -> None:
        self._child.kill()


def create_topic(server: BrokerUnderTest, topic: str, queues: int, home: Path) -> None:
    """Creates a topic on either side with the peer's administration tool, and waits for its route."""
    if isinstance(server, Nothing):
        return  # It has every topic already.
    wanted = ("-t", topic, "-r", str(queues), "-w", str(queues))
    made = _admin(home, "updateTopic", server, "-b", server.broker, *wanted)
    if _failed(made):
        raise RuntimeError(f"{server.name}: mqadmin updateTopic failed:\n{made.stdout}{made.stderr}")
    deadline = time.monotonic() + 60
    while True:
        # The broker registers the topic a little later; until then the tool fails.
        route = _admin(home, "topicRoute", server, "-t", topic)
        if not _failed(route) and f'"writeQueueNums":{queues}' in route.stdout.replace(" ", ""):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{server.name}: no route to {topic}:\n{route.stdout}{route.stderr}")


def _failed(outcome: subprocess.CompletedProcess[str]) -> bool:
    return outcome.returncode != 0 or "Exception" in outcome.stdout + outcome.stderr


def _admin(
    home: Path, command: str, server: BrokerUnderTest, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        apache.java_command(
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            home,
            command,
            *("-n", server.nameserver),
            *arguments,
            heap="128m",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def _nothing_address(text: str) -> str | None:
    for line in text.splitlines(keepends=True):
        if line.startswith("READY ") and line.endswith("\n"):
            return line.removeprefix("READY ").strip()
    return None


def ready_line(text: str) -> str | None:
    for line in text.splitlines(keepends=True):
        if line.startswith("METAQ_READY ") and line.endswith("\n"):
            return line.removeprefix("METAQ_READY ")
    return None
