"""A network of namespaces: one for each node, and a hub that routes between them and that drops on demand.

    node-1 10.x.1.2 ──┐
    node-2 10.x.2.2 ──┼── hub 10.x.N.1: etcd, name servers, and the test itself
    node-3 10.x.3.2 ──┘

It needs root, `ip` and `nft`. Nothing of it is visible outside the namespaces.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_NETWORK = 0x40000000
_TABLE = "inet faults"


def missing() -> str:
    """Returns why this machine cannot have such a network; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed (Debian: {'iproute2' if tool == 'ip' else 'nftables'})"
    return ""


class Network:
    """The namespaces. The calling thread, and every thread and process that it starts, lives in the hub."""

    def __init__(self, nodes: int) -> None:
        self._prefix = f"mq{os.getpid()}"
        self._nodes = range(1, nodes + 1)
        self.hub = f"{self._prefix}h"
        self.hub_address = "10.77.1.1"

    def address(self, node_id: int) -> str:
        return f"10.77.{node_id}.2"

    def namespace(self, node_id: int) -> str:
        return f"{self._prefix}n{node_id}"

    def enter(self, node_id: int) -> list[str]:
        """Returns the prefix of a command that runs in the node's namespace."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(node_id)}"]

    def make(self) -> None:
        _run("ip", "netns", "add", self.hub)
        self._in_hub("ip", "link", "set", "lo", "up")
        self._in_hub("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for node_id in self._nodes:
            namespace = self.namespace(node_id)
            _run("ip", "netns", "add", namespace)
            self._in_hub(
                *("ip", "link", "add", f"to{node_id}", "type", "veth"),
                *("peer", "name", "eth0", "netns", namespace),
            )
            self._in_hub("ip", "address", "add", f"10.77.{node_id}.1/24", "dev", f"to{node_id}")
            self._in_hub("ip", "link", "set", f"to{node_id}", "up")
            for command in (
                ("link", "set", "lo", "up"),
                ("address", "add", f"{self.address(node_id)}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("route", "add", "default", "via", f"10.77.{node_id}.1"),
            ):
                _run("ip", "-n", namespace, *command)
        self._in_hub("nft", "add", "table", *_TABLE.split())
        for chain in ("forward", "input", "output"):
            hook = f"{{ type filter hook {chain} priority 0; }}"
            self._in_hub("nft", "add", "chain", *_TABLE.split(), chain, hook)

    def remove(self) -> None:
        for namespace in (*map(self.namespace, self._nodes), self.hub):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)

    # ---- faults

    def cut(self, source: int, target: int) -> None:
        """Drops packets from one node to another, in this direction only."""
        self._rule("forward", f'iifname "to{source}" oifname "to{target}" drop')

    def cut_from_register(self, node_id: int, ports: list[int]) -> None:
        """Drops packets from a node to etcd."""
        listed = "{ " + ", ".join(map(str, ports)) + " }"
        self._rule("input", f'iifname "to{node_id}" tcp dport {listed} drop')

    def isolate(self, node_id: int, register_ports: list[int]) -> None:
        """Cuts a node off from the other nodes and from etcd. Clients still reach it."""
        for other in self._nodes:
            if other != node_id:
                self.cut(node_id, other)
                self.cut(other, node_id)
        self.cut_from_register(node_id, register_ports)

    def lose(self, percent: int) -> None:
        """Drops this share of all packets between nodes."""
        self._rule("forward", f"numgen random mod 100 < {percent} drop")

    def heal(self) -> None:
        for chain in ("forward", "input", "output"):
            self._in_hub("nft", "flush", "chain", *_TABLE.split(), chain)

    def _rule(self, chain: str, rule: str) -> None:
        self._in_hub("nft", "add", "rule", *_TABLE.split(), chain, rule)

    def _in_hub(self, *command: str) -> None:
        _run("ip", "netns", "exec", self.hub, *command)


@contextmanager
def network(nodes: int = 3) -> Iterator[Network]:
    """Makes the network and moves the calling thread into its hub until the end."""
    made = Network(nodes)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        made.make()
        with Path(f"/run/netns/{made.hub}").open() as hub:
            _enter(hub.fileno())
        yield made
    finally:
        _enter(home)
        os.close(home)
        made.remove()


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
