"""Name servers and brokers as processes: ours, or Apache's with METAQ_INTEROP_SERVER=apache.

If you doubt a scenario, run it against Apache's servers: what they pass, ours must pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support import apache
from tests.support.metaq import Metaq
from tests.support.moved import MovedClock
from tests.support.processes import free_port

# Settings that scenarios change: our name and Apache's.
APACHE_SETTINGS = {
    "auto_create_topic": "autoCreateTopicEnable",
    "commit_log_file_bytes": "mappedFileSizeCommitLog",
    "recall_messages": "recallMessageEnable",
    "transaction_check_interval_s": "transactionCheckInterval",
    "transaction_check_max": "transactionCheckMax",
    "transaction_timeout_ms": "transactionTimeOut",
}
# By default Apache's broker refuses a request that waited 200 ms for a thread. A busy machine needs longer.
APACHE_PATIENCE = {"waitTimeMillsInSendQueue": 10_000, "waitTimeMillsInPullQueue": 10_000}
# Features that Apache leaves off by default and scenarios need.
APACHE_FEATURES = {"timerWheelEnable": True, "enablePropertyFilter": True}


class Server(Protocol):
    """One process that a test can kill and start again at the same address."""

    @property
    def address(self) -> str: ...
    def kill(self) -> None: ...
    def stop(self) -> Any: ...
    def restart(self) -> None: ...
    def tail(self) -> str: ...


@dataclass
class Cluster:
    """Running servers by role; one process may have several roles."""

    nameservers: list[Server]
    brokers: dict[str, Server]
    old_addresses: dict[str, str] = field(default_factory=dict)
    """Addresses for old clients: two below the broker's port unless that port was chosen freely."""
    moved_clock: MovedClock | None = None

    @property
    def clock(self) -> MovedClock:
        """The brokers' clock, if the test asked to move it."""
        assert self.moved_clock is not None, "started without moved=True"
        return self.moved_clock

    def let_pass(self, wait_ms: int) -> None:
        """Lets this time pass: by moving the clock if the test may do so, otherwise by waiting."""
        if self.moved_clock is not None:
            self.moved_clock.jump(wait_ms)
        else:
            time.sleep(wait_ms / 1000)

    @property
    def namesrv(self) -> str:
        """Returns the addresses in the form that clients take."""
        return ";".join(server.address for server in self.nameservers)

    def close(self) -> None:
        """Stops brokers first, so that they can unregister, and skips servers that a test killed."""
        for server in (*self.brokers.values(), *self.nameservers):
            server.stop()

    def tail(self) -> str:
        tails = [server.tail() for server in (*self.brokers.values(), *self.nameservers)]
        return "\n".join(dict.fromkeys(tails))


class MetaqServer:
    """A `metaq` role in a process of its own."""

    def __init__(self, name: str, home: Path, *arguments: str, clock: MovedClock | None = None) -> None:
        self._name = name
        self._clock = clock
        self._home = home
        self._arguments = arguments
        self._starts = 0
        self.move()

    def _start(self, listen: str) -> Metaq:
        # A folder for each start, so that each has its own log and ready line.
        self._starts += 1
        home = self._home / f"{self._name}-{self._starts}"
        return Metaq(*self._arguments, "--listen", listen, home=home, clock=self._clock)

    @property
    def address(self) -> str:
        return self.running.ready[self.running.ready["role"]]

    def kill(self) -> None:
        self.running.child.kill()

    def stop(self) -> None:
        if self.running.child.alive:
            code = self.running.stop()
            assert code == 0, f"{self._name} ended with {code}\n{self.tail()}"

    def restart(self) -> None:
        self.running = self._start(self.address)

    def move(self) -> None:
        """Starts it at a new address, which it can get again after a kill; a broker keeps its store."""
        # The port for old clients, two below, must be free as well.
        self.running = self._start(f"127.0.0.1:{free_port(neighbours=(-2,))}")

    def tail(self) -> str:
        return self.running.child.tail()


@dataclass(frozen=True)
class Shared:
    """One of the two roles of a `metaq serve` process; they start and end together."""

    address: str
    process: Metaq

    def kill(self) -> None:
        raise NotImplementedError("a test that kills servers starts its own")

    restart = kill

    def stop(self) -> None:
        if self.process.child.alive:
            code = self.process.stop()
            assert code == 0, f"metaq serve ended with {code}\n{self.tail()}"

    def tail(self) -> str:
        return self.process.child.tail()


def serve_metaq(home: Path) -> Cluster:
    """Starts everything in one process, as `make run` does."""
    process = Metaq.serve(home)
    return Cluster(
        [Shared(process.nameserver, process)],
        {"broker-a": Shared(process.broker, process)},
        {"broker-a": process.ready["broker_old"]},
    )


def start_metaq(
    home: Path,
    nameservers: int,
    brokers: Sequence[str],
    flush: str,
    settings: Mapping[str, object],
    *,
    moved: bool = False,
) -> Cluster:
    home.mkdir(parents=True, exist_ok=True)
    cluster = Cluster([], {}, moved_clock=MovedClock(home / "clock") if moved else None)
    for number in range(nameservers):
        cluster.nameservers.append(MetaqServer(f"nameserver-{number}", home, "nameserver"))
    chosen = [part for key, value in settings.items() for part in ("--set", f"{key}={_text(value)}")]
    for name in brokers:
        identity = ("--name", name, "--namesrv", cluster.namesrv, "--data", str(home / f"data-{name}"))
        flags = ("broker", *identity, "--flush", flush, *chosen)
        server = MetaqServer(name, home, *flags, clock=cluster.moved_clock)
        cluster.brokers[name] = server
        cluster.old_addresses[name] = server.running.ready["broker_old"]
    return cluster


def start_apache(
    home: Path, nameservers: int, brokers: Sequence[str], flush: str, settings: Mapping[str, object]
) -> Cluster:
    cluster = Cluster([], {})
    for number in range(nameservers):
        server = apache.start_nameserver(home / f"nameserver-{number}", jvm_flags=apache.SHORT_LIVED)
        cluster.nameservers.append(server)
    addresses = [server.address for server in cluster.nameservers]
    for name in brokers:
        broker = apache.start_broker(
            home / name,
            addresses,
            name=name,
            flush=flush,
            jvm_flags=apache.SHORT_LIVED,
            settings={
                **APACHE_PATIENCE,
                **APACHE_FEATURES,
                **dict(_apache_setting(*setting) for setting in settings.items()),
            },
        )
        cluster.brokers[name] = broker
        host, port = broker.address.split(":")
        cluster.old_addresses[name] = f"{host}:{int(port) - 2}"
    return cluster


def _apache_setting(name: str, value: object) -> tuple[str, object]:
    # Apache's settings are all in milliseconds.
    in_ms = value * 1000 if name.endswith("_s") and isinstance(value, int) else value
    return APACHE_SETTINGS[name], in_ms


def uses_apache() -> bool:
    chosen = os.environ.get("METAQ_INTEROP_SERVER", "metaq")
    if chosen not in ("metaq", "apache"):
        raise RuntimeError(f"METAQ_INTEROP_SERVER is metaq or apache, not {chosen!r}")
    return chosen == "apache"


def start_cluster(
    home: Path,
    *,
    nameservers: int = 1,
    brokers: Sequence[str] = ("broker-a",),
    flush: str = "async",
    settings: Mapping[str, object] | None = None,
    moved: bool = False,
) -> Cluster:
    """Starts each role in a process that a test can kill alone; with `moved` the test sets its clock."""
    if not uses_apache():
        return start_metaq(home, nameservers, brokers, flush, settings or {}, moved=moved)
    if moved:
        pytest.skip("nobody moves the clock of Apache's broker")
    return start_apache(home, nameservers, brokers, flush, settings or {})


def start_one_process(home: Path) -> Cluster:
    """Starts a name server and a broker in the way that a new user does."""
    return start_apache(home, 1, ("broker-a",), "async", {}) if uses_apache() else serve_metaq(home)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
