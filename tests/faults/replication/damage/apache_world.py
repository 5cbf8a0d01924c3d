"""Apache's own group behind the interface of ours, for the same trials."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.faults.replication.apache_nodes import STRICT, ApacheNodes
from tests.faults.replication.damage import plan
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.traffic import Traffic
from tests.faults.replication.damage.world import World
from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.register_watch import GROUP, Group
from tests.support.apache import ApacheServer
from tests.support.plain_client import SUCCESS, PlainClient, ServerClosed
from tests.support.waiting import eventually

_ELECT_MASTER = 1002
_ELECTION_S = 60
_LOOK_S = 0.2
_FILES = (plan.LOG, plan.QUEUE, plan.INDEX, plan.JOURNAL, plan.CHECKPOINT, plan.RECORD, plan.NOTHING)
_SETTINGS = {
    **STRICT,
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 256 * 1024,
    "maxHashSlotNum": 1_000,
}


def can_be_compared(damage: Damage) -> bool:
    """Whether Apache's group has such a file, and this program can do it there."""
    return damage.file in _FILES and damage.moment != plan.POWER


class ApacheNode:
    """One of Apache's brokers, which starts as `BrokerNode` does: without waiting whether it comes up."""

    def __init__(self, node_id: int, server: ApacheServer) -> None:
        self.id, self._server = node_id, server
        self.data = server.home / "store"
        self.address = server.address

    @property
    def alive(self) -> bool:
        return self._server.child.alive

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self) -> None:
        with suppress(RuntimeError, TimeoutError):
            self._server.restart()

    def kill(self) -> None:
        if self.alive:
            self._server.kill()

    def stop(self) -> None:
        self._server.stop()

    def thaw(self) -> None:
        """It is never frozen."""

    def wipe(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)

    def log_bytes(self) -> int:
        files = sorted((self.data / "commitlog").iterdir())
        return sum(path.stat().st_size for path in files[:-1]) + len(files[-1].read_bytes().rstrip(b"\0"))

    def end_of_life(self, lines: int) -> tuple[int, list[str]]:
        code = self._server.child.process.wait(60)
        return code, self._server.child.log.read_text(errors="replace").splitlines()[-lines:]

    def log(self) -> str:
        logs = sorted(self._server.home.glob("console-*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)


class ApacheGroup:
    """Apache's brokers and controller, with the names that `BrokerNodes` has."""

    def __init__(self, home: Path) -> None:
        self._apache = ApacheNodes(home, _SETTINGS)
        self.nodes = {
            number: ApacheNode(number, server) for number, server in enumerate(self._apache.brokers, start=1)
        }
        self.watch = SimpleNamespace(masters=self._apache.masters)

    @property
    def namesrv(self) -> str:
        return self._apache.nameserver_address

    @property
    def controller(self) -> str:
        return self._apache.controller_address

    def record(self) -> Group:
        return self._apache.last

    def master(self) -> ApacheNode:
        found = eventually(
            self.record,
            lambda record: record.master in self.nodes and self.nodes[record.master].alive,
            _ELECTION_S,
            "a living master",
        )
        return self.nodes[found.master]

    def replicas(self) -> list[ApacheNode]:
        master = self.master()
        return [node for node in self.nodes.values() if node is not master and node.alive]

    def start_dead(self) -> None:
        for node in self.nodes.values():
            if not node.alive:
                node.start()

    def stop(self) -> None:
        self._apache.stop()


class ApacheWorld(World):
    """One of Apache's groups, used by many trials until one of them ruins it."""

    def _start_nodes(self, stack: ExitStack) -> BrokerNodes:
        self._group = ApacheGroup(self.home / "apache")
        stack.callback(self._group.stop)
        return cast(BrokerNodes, self._group)

    def _make_traffic(self, seed: int) -> Traffic:
        return Traffic(self.nodes.namesrv, self._master_address, seed, is_plain=True)

    def _master_address(self) -> str:
        return self._group.nodes[self._group.record().master or 1].address

    def copy_register(self, name: str) -> None:
        """The controller is not damaged."""

    def why_unhealthy(self) -> str:
        record = self._group.record()
        dead = [node.id for node in self._group.nodes.values() if not node.alive]
        if dead or len(record.in_sync) < len(self._group.nodes) or not record.master:
            return f"dead {dead}, in sync {sorted(record.in_sync)}, master {record.master}"
        return ""

    def problem(self, node: BrokerNode) -> str:
        return ""

    def switch(self, node: BrokerNode, timeout_s: float) -> str:
        """Has the controller elect a node."""
        deadline, last = time.monotonic() + timeout_s, ""
        fields = {"clusterName": "DefaultCluster", "brokerName": GROUP, "brokerId": str(node.id)}
        while self._group.record().master != node.id:
            if time.monotonic() > deadline:
                return f"node {node.id} does not become master: {last}"
            with suppress(OSError, ServerClosed), PlainClient(self._group.controller, 10.0) as client:
                reply = client.call(_ELECT_MASTER, {**fields, "designateElect": "true"})
                last = "" if reply.code == SUCCESS else f"{reply.code} {reply.remark}"
            time.sleep(_LOOK_S)
        return ""
