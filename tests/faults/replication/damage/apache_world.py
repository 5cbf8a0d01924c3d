"""Apache's own group behind the interface of ours, for the same trials.

Its brokers run with the settings that protect messages best: every broker in sync acknowledges, at least two
are in sync, every message is synced, and a checksum covers its properties too. They also learn of a new
master sooner than by default.

A planned switch of Apache's controller has a race. A broker takes the address from which it copies from the
name server, which may still know the old master. It then copies from the old master for good, and is never in
sync again, without any damage. An operator restarts it: so does `help_stuck`, and the trial counts that as an
act.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

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

_ELECT_MASTER: Final = 1002
_ELECTION_S = 60
_LOOK_S = 0.2
_STUCK_S = 30.0
"""A broker that is not in sync after this time is restarted. It learns of its master every ten seconds."""
_SETTINGS: Final[Mapping[str, object]] = {
    **STRICT,
    "flushDiskType": "SYNC_FLUSH",
    "enabledAppendPropCRC": True,
    "forceVerifyPropCRC": True,
    "mappedFileSizeCommitLog": 256 * 1024,
    "maxHashSlotNum": 1_000,
    "registerNameServerPeriod": 10_000,
    "haSendHeartbeatInterval": 1_000,
    "syncControllerMetadataPeriod": 3_000,
    "checkSyncStateSetPeriod": 1_000,
}

_STOPPED, _MASTER, _REPLICA = plan.STOPPED, plan.MASTER, plan.REPLICA
COMPARED: Final = tuple(
    enumerate(
        (
            Damage(plan.NOTHING, moment=_STOPPED, who=_MASTER),
            Damage(plan.LOG, plan.FLIP, plan.OLD, "body", plan.RUNNING, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.OLD, "properties", plan.RUNNING, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.RECENT, "body", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.ZERO, plan.OLD, "", plan.RUNNING, _REPLICA),
            Damage(plan.LOG, plan.MISSING, plan.OLD, "", _STOPPED, _REPLICA),
            Damage(plan.LOG, plan.FLIP, plan.RECENT, "body", plan.ALL_STOPPED, _MASTER),
            Damage(plan.LOG, plan.OLDER, plan.TAIL, "", plan.ALL_STOPPED, _REPLICA),
            Damage(plan.QUEUE, plan.MISSING, plan.OLD, "", _STOPPED, _REPLICA),
            Damage(plan.QUEUE, plan.FLIP, plan.OLD, "", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.OLD, "header", _STOPPED, _MASTER),
            Damage(plan.JOURNAL, plan.OLDER, plan.OLD, "", plan.ALL_STOPPED, _REPLICA),
        ),
        start=1,
    )
)
"""Damage of files that both have, each with the seed of its trial."""


class ApacheNode:
    """One of Apache's brokers, with the names that `BrokerNode` has."""

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
        # A broker that does not come up is dead, and the operator looks at it.
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
        return code, self.log().splitlines()[-lines:]

    def log(self) -> str:
        logs = [*sorted(self._server.home.glob("console-*.log"))]
        logs += [self._server.home / "logs" / "rocketmqlogs" / name for name in ("broker.log", "store.log")]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())


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

    patterns: Mapping[str, str] = {
        plan.INDEX: "index/*",
        plan.JOURNAL: "config/*.json",
        plan.CHECKPOINT: "checkpoint",
        plan.RECORD: "epochFileCheckpoint",
    }
    damage_words = re.compile(
        r"crc (check|mis)|illegal magic code 0x(?!0\b)|\[BUG\]|corrupt|size not match", re.I
    )
    keys_asked = 0
    """Its key index is incomplete after a kill, without any damage."""
    committed_for_s = 30.0
    """Its slaves ask for offsets every ten seconds."""

    def _start_nodes(self, stack: ExitStack) -> BrokerNodes:
        self._group = ApacheGroup(self.home / "apache")
        self._behind_since: dict[int, float] = {}
        stack.callback(self._group.stop)
        return cast(BrokerNodes, self._group)

    def _new_traffic(self, seed: int) -> Traffic:
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

    def help_stuck(self) -> str:
        record, now = self._group.record(), time.monotonic()
        for node in self._group.nodes.values():
            if not node.alive or node.id in record.in_sync or not record.master:
                self._behind_since.pop(node.id, None)
            elif now - self._behind_since.setdefault(node.id, now) > _STUCK_S:
                del self._behind_since[node.id]
                node.stop()
                node.start()
                return f"restarted node {node.id}, which did not come back in sync within {_STUCK_S:g} s"
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
