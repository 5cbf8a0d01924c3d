"""A group of three nodes with traffic, the backups of its files and of its register, and its operator."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.faults.replication.damage.files import PATTERNS
from tests.faults.replication.damage.oracle import References
from tests.faults.replication.damage.raw import first_difference
from tests.faults.replication.damage.reading import SWITCH_MASTER, Queue, Read, group_status
from tests.faults.replication.damage.traffic import Traffic
from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.powered import PoweredNodes
from tests.support.metaq import run
from tests.support.plain_client import SUCCESS, PlainClient, ServerClosed
from tests.support.waiting import wait_until

PREFILL = 900
"""Large messages at the start: the log is then longer than the megabyte that replicas compare."""
_DAMAGE_WORDS = re.compile(
    r"(?<!/)damag|cannot be (read|trusted)|checksum|not verify|copies everything|went back|is missing",
    re.I,
)
_SETTINGS = {"catch_up_bytes_per_second": 4_000_000}


class World:
    """One group, used by many trials until one of them ruins it."""

    patterns: Mapping[str, str] = PATTERNS
    """The places of the files that a damage names."""
    damage_words = _DAMAGE_WORDS
    """Words of log lines that speak of damage."""
    keys_asked = 4
    """How many messages of each node are looked for by their keys, if the key index is not damaged."""
    committed_for_s = 5.0
    """Offsets reach all nodes within a second; a busy machine needs longer."""

    def __init__(self, home: Path, seed: int, stack: ExitStack, *, power: bool = False) -> None:
        self.home = home
        home.mkdir(parents=True)
        self.heal_s = 60.0
        """How long the group may need for each step of its healing."""
        self.powered = PoweredNodes(home, stack) if power else None
        self.nodes = self._start_nodes(stack)
        self.traffic = self._new_traffic(seed)
        stack.callback(self.traffic.stop)
        self.references: References = {}
        self.read_to: dict[Queue, int] = {}
        """How far each queue was read before the last damage."""
        self.repeated: set[str] = set()
        """Delayed messages that earlier trials have counted."""
        self.copies = home / "copies"
        self.traffic.start(PREFILL)
        # Files of queues are written a moment later.
        wait_until(
            lambda: all(any(node.data.glob("consumequeue/*/*/*")) for node in self.nodes.nodes.values())
        )
        self.copy_files("start")
        self.copy_register("start")

    def _start_nodes(self, stack: ExitStack) -> BrokerNodes:
        prepare: Callable[[BrokerNode], None] = self.powered.prepare if self.powered else lambda _: None
        return stack.enter_context(BrokerNodes(self.home / "nodes", settings=_SETTINGS, prepare=prepare))

    def _new_traffic(self, seed: int) -> Traffic:
        return Traffic(self.nodes.namesrv, self._master_address, seed)

    def _master_address(self) -> str:
        return self.nodes.nodes[self.nodes.watch.last.master or 1].address

    # ---- backups

    def copy_files(self, name: str) -> None:
        """Copies every node's files while they run."""
        for node in self.nodes.nodes.values():
            target = self.copies / name / str(node.id)
            shutil.rmtree(target, ignore_errors=True)
            _copy_live(node.data, target)

    def copy_register(self, name: str) -> None:
        [member] = self.nodes.etcd.members
        was_alive = member.child.alive
        if was_alive:
            self.nodes.etcd.kill(member)
        shutil.rmtree(self.copies / name / "etcd", ignore_errors=True)
        shutil.copytree(self.nodes.home / "etcd" / member.name, self.copies / name / "etcd")
        if was_alive:
            self.nodes.etcd.restart(member)

    def replace_register(self, name: str) -> None:
        """Puts a copy of etcd's directory in place of the one that it has, or none. Keeps the newest."""
        [member] = self.nodes.etcd.members
        self.nodes.etcd.kill(member)
        own = self.nodes.home / "etcd" / member.name
        if name != "newest":
            shutil.rmtree(self.copies / "newest", ignore_errors=True)
            shutil.copytree(own, self.copies / "newest" / "etcd")
        shutil.rmtree(own)
        if name:
            shutil.copytree(self.copies / name / "etcd", own)
        self.nodes.etcd.restart(member)
        self.nodes.watch.forget()

    # ---- the group

    def why_unhealthy(self) -> str:
        """Returns what keeps the group from being healthy; "" if nothing does."""
        record, nodes = self.nodes.record(), self.nodes.nodes
        dead = [node_id for node_id, node in nodes.items() if not node.alive]
        if dead:
            return f"nodes {dead} do not run"
        own = {node_id: _own_status(node) for node_id, node in nodes.items()}
        wrong = [
            f"node {node_id} {one['state']} {one['problem']}"
            for node_id, one in own.items()
            if one["state"] != "in sync"
        ]
        if record.in_sync != set(nodes) or record.master not in nodes:
            wrong.append(f"in sync {sorted(record.in_sync)}, master {record.master}")
        elif own[record.master]["role"] != "master":
            wrong.append(f"node {record.master} is not master yet")
        return "; ".join(wrong)

    def help_stuck(self) -> str:
        """Does what the group needs an operator for although nothing is damaged; returns what that was."""
        return ""

    def problem(self, node: BrokerNode) -> str:
        """Returns why a node says that it does not join."""
        return str(_own_status(node)["problem"])

    def switch(self, node: BrokerNode, timeout_s: float) -> str:
        """Makes a node master by plan; returns why that failed, or ""."""
        deadline, last = time.monotonic() + timeout_s, ""
        while time.monotonic() < deadline:
            record = self.nodes.record()
            if record.master == node.id:
                if _own_status(node)["role"] == "master":
                    return ""
            elif record.master in self.nodes.nodes and self.nodes.nodes[record.master].alive:
                with (
                    suppress(OSError, ServerClosed),
                    PlainClient(self.nodes.nodes[record.master].address, 15.0) as client,
                ):
                    reply = client.call(SWITCH_MASTER, {"target": str(node.id), "force": "false"})
                    last = "" if reply.code == SUCCESS else f"{reply.code} {reply.remark}"
            time.sleep(0.05)
        return f"node {node.id} does not become master: {last or self.why_unhealthy()}"

    def differing_logs(self, read: Read) -> list[str]:
        """Compares the logs of all nodes as far as a reading went."""
        end = max((raws[-1].physical_offset for raws in read.records.values() if raws), default=0)
        found = []
        logs = {node.id: _log_bytes(node.data, end) for node in self.nodes.nodes.values()}
        for node_id, log in logs.items():
            others = [other for other_id, other in logs.items() if other_id != node_id]
            if all(log != other for other in others) and others[0] == others[1]:
                at = first_difference(log, others[0])
                found.append(f"unrepaired: the log of node {node_id} differs at {at} of {end}")
        return found

    def log_lines(self, since: dict[int, int]) -> list[str]:
        """Returns the new lines of the nodes' logs that speak of damage."""
        lines = []
        for node in self.nodes.nodes.values():
            new = node.log()[since[node.id] :]
            lines += [
                f"node {node.id}: {line}" for line in new.splitlines() if self.damage_words.search(line)
            ]
        return lines

    def log_sizes(self) -> dict[int, int]:
        return {node.id: len(node.log()) for node in self.nodes.nodes.values()}

    def command(self, *arguments: str) -> tuple[int, str]:
        """Runs a command of an operator; returns its exit code and everything that it said."""
        done = run(*arguments, METAQ_NAMESRV=self.nodes.namesrv, METAQ_REGISTER=self.nodes.register)
        return done.returncode, done.stdout + done.stderr


def _own_status(node: BrokerNode) -> dict[str, Any]:
    """Returns what a node says of itself."""
    status = group_status(node.address)
    own = [one for one in (status or {}).get("nodes", []) if one["id"] == node.id]
    return own[0] if own else {"state": "silent", "problem": "", "role": ""}


def _log_bytes(data: Path, end: int) -> bytes:
    files = sorted((data / "commitlog").iterdir())
    start = int(files[0].name)
    return b"".join(file.read_bytes() for file in files)[: end - start]


def _copy_live(source: Path, target: Path) -> None:
    """Copies a directory in which files come and go."""
    for path in sorted(source.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                place = target / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
