"""The processes of a development cluster: their names, ports and commands."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.dev.ports import HOST
from metaq.errors import CommandError, ConfigError

CLUSTER: Final = "DefaultCluster"
GROUPS_MAX: Final = 26
REPLICAS_MAX: Final = 9
NAMESERVERS_MAX: Final = 9
_PORT_MAX: Final = 65_535

_ETCD: Final = 0
_ETCD_PEER: Final = 1
_NAMESERVERS: Final = 2
_NODES: Final = _NAMESERVERS + NAMESERVERS_MAX
# A node has its client port, the port two below it for old clients, and its replication port.
_PORTS_PER_NODE: Final = 4
_NODE_OLD, _NODE_CLIENT, _NODE_REPLICATION = 0, 2, 3
_ETCD_INSTALLED: Final = "/usr/local/bin/etcd"


@dataclass(frozen=True, slots=True)
class Size:
    """How many processes of each kind there are."""

    groups: int
    replicas: int
    nameservers: int

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("--groups", self.groups, GROUPS_MAX),
            ("--replicas", self.replicas, REPLICAS_MAX),
            ("--nameservers", self.nameservers, NAMESERVERS_MAX),
        ):
            if not 1 <= value <= limit:
                raise ConfigError(f"{name} must be from 1 to {limit}, not {value}")

    @property
    def nodes(self) -> int:
        return self.groups * self.replicas

    def distances(self) -> list[int]:
        """Returns the ports that are used, counted from the first one."""
        nodes = range(_NODES, _NODES + self.nodes * _PORTS_PER_NODE, _PORTS_PER_NODE)
        return [
            _ETCD,
            _ETCD_PEER,
            *range(_NAMESERVERS, _NAMESERVERS + self.nameservers),
            *(first + port for first in nodes for port in (_NODE_OLD, _NODE_CLIENT, _NODE_REPLICATION)),
        ]


@dataclass(frozen=True, slots=True)
class Planned:
    """One process."""

    name: str
    command: tuple[str, ...]
    address: str
    """The address for clients."""
    group: str = ""
    id: int = 0
    """The node's id in its group; 0 for a process that is not a broker."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes of a cluster whose ports begin at `port_base`."""

    size: Size
    data: Path
    port_base: int
    etcd: str
    flush: str | None = None

    def __post_init__(self) -> None:
        last = self.port_base + max(self.size.distances())
        if self.port_base < 1 or last > _PORT_MAX:
            raise ConfigError(
                f"--port-base {self.port_base} is out of range: this cluster needs ports up to {last}",
                hint=f"choose one from 1 to {_PORT_MAX - max(self.size.distances())}, or 0 for free ports",
            )

    @property
    def key_file(self) -> Path:
        """The file with the key that nodes show each other."""
        return self.data / "cluster.key"

    @property
    def state_file(self) -> Path:
        return self.data / "cluster.json"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def register(self) -> str:
        """The value for `--register`."""
        return f"etcd://{self.register_endpoint}"

    @property
    def register_endpoint(self) -> str:
        return self._address(_ETCD)

    @property
    def nameserver_addresses(self) -> list[str]:
        return [self._address(_NAMESERVERS + number) for number in range(self.size.nameservers)]

    @property
    def group_names(self) -> list[str]:
        return [f"broker-{chr(ord('a') + number)}" for number in range(self.size.groups)]

    def etcd_process(self) -> Planned:
        client, peer = f"http://{self.register_endpoint}", f"http://{self._address(_ETCD_PEER)}"
        command = (
            *(self.etcd, "--name", "etcd", "--data-dir", str(self.data / "etcd"), "--logger", "zap"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"etcd={peer}"),
        )
        return Planned("etcd", command, self.register_endpoint)

    def nameserver_processes(self) -> Iterator[Planned]:
        for number, address in enumerate(self.nameserver_addresses, 1):
            name = f"nameserver-{number}"
            key_values = self.data / name / "kvConfig.json"
            yield Planned(
                name,
                (*_metaq(), "nameserver", "--listen", address, "--set", f"kv_file={key_values}"),
                address,
            )

    def node_processes(self) -> Iterator[Planned]:
        first = _NODES
        for group in self.group_names:
            for node_id in range(1, self.size.replicas + 1):
                yield self._node(group, node_id, first)
                first += _PORTS_PER_NODE

    def _node(self, group: str, node_id: int, first: int) -> Planned:
        name, address = f"{group}-{node_id}", self._address(first + _NODE_CLIENT)
        command = [
            *(*_metaq(), "broker", "--name", group, "--id", str(node_id), "--cluster", CLUSTER),
            *("--listen", address, "--replication-listen", self._address(first + _NODE_REPLICATION)),
            *("--register", self.register, "--cluster-key", str(self.key_file)),
            *("--namesrv", ";".join(self.nameserver_addresses), "--data", str(self.data / name)),
        ]
        if self.flush is not None:
            command += ["--flush", self.flush]
        if self.size.replicas == 1:
            # Alone it could never have the two nodes that are needed by default.
            command += ["--min-in-sync", "1"]
        return Planned(name, tuple(command), address, group, node_id)

    def _address(self, distance: int) -> str:
        return f"{HOST}:{self.port_base + distance}"


def find_etcd() -> str:
    """Returns the path of etcd. Raises CommandError, which says how to install it."""
    found = shutil.which("etcd") or shutil.which(_ETCD_INSTALLED)
    if found is None:
        raise CommandError(
            "etcd is not installed: it keeps the record of who is master",
            hint="run `make setup-etcd`, or put etcd 3.4 or newer on the PATH",
        )
    return found


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment of the processes, without settings that are meant for another etcd."""
    kept = {name: value for name, value in variables.items() if not name.startswith("ETCD_")}
    if os.uname().machine == "aarch64":
        # etcd 3.4 refuses to run on arm64 without it.
        kept["ETCD_UNSUPPORTED_ARCH"] = "arm64"
    return kept


def _metaq() -> tuple[str, ...]:
    return sys.executable, "-m", "metaq"
