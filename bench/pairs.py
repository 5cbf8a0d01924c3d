"""A master with one replica under test, ours and the peer's. A message counts when both nodes hold it."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

from bench.servers import (
    PEER_JVM_FLAGS,
    PEER_SETTINGS,
    READY_TIMEOUT_S,
    BrokerUnderTest,
    Options,
    ready_line,
)
from tests.support import apache
from tests.support.plain_client import PlainClient, queue_end
from tests.support.processes import Child

_COPIED_TIMEOUT_S = 60
_POLL_S = 0.1
# By default `inSyncReplicas` is 1, the master itself: then a SYNC_MASTER waits for nobody.
_PEER_MASTER = {"brokerRole": "SYNC_MASTER", "totalReplicas": 2, "inSyncReplicas": 2}
_PEER_REPLICA = {"brokerId": 1, "brokerRole": "SLAVE"}


class Pair(BrokerUnderTest):
    """A master and its replica. `pid` and `store` are those of the master."""

    replica: str
    """The replica's address for clients."""

    def wait_copied(self, topic: str, queues: int) -> None:
        """Waits until the replica has all messages of the topic. Raises TimeoutError."""
        deadline = time.monotonic() + _COPIED_TIMEOUT_S
        with PlainClient(self.broker) as master, PlainClient(self.replica) as replica:
            while True:
                wanted, found = (
                    [queue_end(client, topic, queue_id) for queue_id in range(queues)]
                    for client in (master, replica)
                )
                if found == wanted:
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.name}: the replica has {found}, its master {wanted}")
                time.sleep(_POLL_S)


class MetaqPair(Pair):
    """`metaq broker` twice, with fixed roles and `replicas=sync`, and a name server."""

    arguments: tuple[str, ...] = ()
    """More arguments for both."""

    def __init__(self, name: str, home: Path, options: Options) -> None:
        self.name = name
        self.store = home / "master"
        self._metaq = str(options.metaq)
        self._home = home
        home.mkdir(parents=True)
        self._started = ExitStack()
        began = time.monotonic()
        try:
            names, _ = self._start("nameserver", "names", "--listen", "127.0.0.1:0")
            self.nameserver = names["nameserver"]
            shared = (
                *("--name", "broker-a", "--listen", "127.0.0.1:0", "--replication-listen", "127.0.0.1:0"),
                *("--namesrv", self.nameserver, "--flush", options.flush, "--replicas", "sync"),
                *self.arguments,
            )
            master, self.pid = self._start(
                *("broker", "master", *shared, "--id", "0", "--replica-ids", "1"),
                *("--data", str(self.store)),
            )
            replica, replica_pid = self._start(
                *("broker", "replica", *shared, "--id", "1", "--master", master["replication"]),
                *("--data", str(home / "replica")),
            )
        except BaseException:
            self._started.close()
            raise
        self.start_to_ready_s = time.monotonic() - began
        self.broker, self.replica = master["broker"], replica["broker"]
        self.pids = (self.pid, replica_pid)

    def _start(self, role: str, name: str, *arguments: str) -> tuple[dict[str, str], int]:
        """Returns the fields of the ready line and the process."""
        child = Child([self._metaq, role, *arguments], self._home / f"{name}.log")
        self._started.callback(child.stop, timeout_s=60)
        fields: dict[str, str] = json.loads(child.wait_for(ready_line, READY_TIMEOUT_S, "METAQ_READY line"))
        return fields, child.process.pid

    def stop(self) -> None:
        self._started.close()


class MetaqPairWithoutChecksums(MetaqPair):
    """The same, and its records have a checksum of their bodies alone."""

    arguments = ("--set", "record_checksums=false")


class ApachePair(Pair):
    """Apache RocketMQ's SYNC_MASTER and SLAVE, with a name server."""

    def __init__(self, name: str, home: Path, options: Options) -> None:
        self.name = name
        self._started = ExitStack()
        began = time.monotonic()
        try:
            names = apache.start_nameserver(home / "names")
            self._started.callback(names.stop)
            self.nameserver = names.address
            master, replica = (
                self._start(home / role, settings, options)
                for role, settings in (("master", _PEER_MASTER), ("replica", _PEER_REPLICA))
            )
        except BaseException:
            self._started.close()
            raise
        self.start_to_ready_s = time.monotonic() - began
        self.broker, self.replica = master.address, replica.address
        self.pid = master.pid
        self.pids = (master.pid, replica.pid)
        self.store = home / "master" / "store"

    def _start(self, home: Path, role: dict[str, object], options: Options) -> apache.ApacheServer:
        broker = apache.start_broker(
            home,
            [self.nameserver],
            flush=options.flush,
            heap=options.peer_heap,
            jvm_flags=PEER_JVM_FLAGS,
            settings={**PEER_SETTINGS, **role},
        )
        self._started.callback(broker.stop)
        return broker

    def stop(self) -> None:
        self._started.close()
