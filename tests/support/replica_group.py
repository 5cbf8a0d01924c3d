"""A broker group of several nodes as processes: Apache's master and slave, or MetaQ's nodes.

In MetaQ's group, a replica replaces a killed master. Apache's master comes back only when the test restarts
it.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from metaq.admin import Admin
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.protocol.names import MASTER_ID
from tests.support import apache
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

KINDS = ("apache", "metaq")
LOOK_INTERVAL_S = 0.2


class ReplicaGroup(Protocol):
    """One broker group with a master and at least one replica."""

    nameserver: str

    def kill_master(self) -> None: ...
    def kill_replica(self) -> None: ...
    def restart_killed(self) -> None:
        """Brings killed nodes back, or waits until the group has replaced them."""

    def wait_replicated(self, topic: str) -> None:
        """Waits until every replica serves all messages of a topic."""

    def close(self) -> None: ...


def start_group(kind: str, home: Path) -> ReplicaGroup:
    return ApacheGroup(home) if kind == "apache" else MetaqGroup(home)


def nodes(nameserver: str) -> dict[int, str]:
    """Returns the registered nodes of the only group by broker id."""
    with Admin(nameserver) as admin:
        return {broker.id: broker.address for broker in admin.brokers.cluster().brokers}


def messages_out(nameserver: str) -> dict[int, int]:
    """Returns how many messages each node has given out, by broker id."""
    with Admin(nameserver) as admin:
        return {
            broker.id: admin.brokers.figures(broker.address).messages_out or 0
            for broker in admin.brokers.cluster().brokers
            if broker.error is None
        }


def _has_all(nameserver: str, topic: str) -> bool:
    with Admin(nameserver) as admin:
        try:
            queues: list[Queue] = list(admin.topics.route(topic).readable)
            replicas = len(nodes(nameserver)) - 1
            ends = admin.offsets.ends(queues)
            found = {queue: admin.offsets.replica_ends(queue) for queue in queues}
        except MetaqError:
            return False
    return replicas > 0 and all(
        len(found[queue]) == replicas and set(found[queue].values()) == {end} for queue, end in ends.items()
    )


class ApacheGroup:
    """Apache's master and slave with fixed roles."""

    def __init__(self, home: Path) -> None:
        quick = {"jvm_flags": apache.SHORT_LIVED, "heap": "512m"}
        patience = {"waitTimeMillsInSendQueue": 10_000, "waitTimeMillsInPullQueue": 10_000}
        self._stack = ExitStack()
        try:
            names = apache.start_nameserver(home / "names", **quick)
            self._stack.callback(names.stop)
            self.nameserver = names.address
            roles = {
                "master": {"brokerRole": "SYNC_MASTER", "slaveReadEnable": True},
                "slave": {"brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True},
            }
            self._nodes: dict[str, apache.ApacheServer] = {}
            for role, settings in roles.items():
                node = apache.start_broker(
                    home / role, [names.address], settings={**settings, **patience}, **quick
                )
                self._stack.callback(node.stop)
                self._nodes[role] = node
            wait_until(lambda: set(nodes(self.nameserver)) == {0, 1}, interval_s=LOOK_INTERVAL_S)
        except BaseException:
            self._stack.close()
            raise

    def kill_master(self) -> None:
        self._nodes["master"].kill()

    def kill_replica(self) -> None:
        self._nodes["slave"].kill()

    def restart_killed(self) -> None:
        for node in self._nodes.values():
            if not node.child.alive:
                node.restart()

    def wait_replicated(self, topic: str) -> None:
        wait_until(lambda: _has_all(self.nameserver, topic), interval_s=LOOK_INTERVAL_S)
        # The slave gets messages at once, but topics only every few seconds.
        known = self._nodes["slave"].home / "store" / "config" / "topics.json"
        wait_until(lambda: known.exists() and topic in known.read_text())

    def close(self) -> None:
        self._stack.close()


class MetaqGroup:
    """Three nodes that replace their master by themselves."""

    def __init__(self, home: Path) -> None:
        self._data = home / "cluster"
        self._cluster = Metaq(
            *("dev", "cluster", "--groups", "1", "--replicas", "3", "--nameservers", "1"),
            *("--data", str(self._data), "--restart-after", "5"),
            home=home,
        )
        self.nameserver = self._cluster.ready["nameservers"][0]

    def kill_master(self) -> None:
        self._kill({MASTER_ID})

    def kill_replica(self) -> None:
        # One only: with two of three nodes gone, the master could not acknowledge anything.
        self._kill({max(nodes(self.nameserver))})

    def restart_killed(self) -> None:
        wait_until(
            lambda: MASTER_ID in (found := nodes(self.nameserver)) and len(found) == 3,
            interval_s=LOOK_INTERVAL_S,
        )

    def wait_replicated(self, topic: str) -> None:
        wait_until(lambda: _has_all(self.nameserver, topic), interval_s=LOOK_INTERVAL_S)

    def close(self) -> None:
        self._cluster.stop()

    def _kill(self, broker_ids: set[int]) -> None:
        chosen = {address for broker_id, address in nodes(self.nameserver).items() if broker_id in broker_ids}
        for node in json.loads((self._data / "cluster.json").read_text())["nodes"]:
            if node["address"] in chosen:
                os.kill(node["pid"], signal.SIGKILL)
