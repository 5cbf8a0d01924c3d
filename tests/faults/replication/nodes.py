"""A broker group as processes of its own: real etcd, name servers and brokers.

Unlike `metaq dev cluster`, each broker may run behind a prefix command (a network namespace, faulty sync
calls) and on a disk of its own, and it stays dead until the test starts it again.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.faults.replication.register_watch import GROUP, Group, RegisterWatch
from tests.support.etcd import Etcd
from tests.support.metaq import Metaq
from tests.support.plain_client import GET_MAX_OFFSET, SUCCESS, PlainClient, ServerClosed, create_topic
from tests.support.processes import free_port, freeze
from tests.support.serving import KIB, SMALL_FILES
from tests.support.waiting import eventually, wait_until

WELL_TIMEOUT_S = 120
ELECTION_BEATS = 6
SETTINGS: Mapping[str, object] = {
    **SMALL_FILES,
    "commit_log_file_bytes": 256 * KIB,
    "allocation_step_bytes": 64 * KIB,
}


class BrokerNode:
    """One broker of the group. Its addresses and its directory stay the same over restarts."""

    def __init__(self, group: BrokerNodes, node_id: int, data: Path, host: str) -> None:
        self.id = node_id
        self.data = data
        self.host = host
        self.prefix: Sequence[str] = ()
        self.settings: dict[str, object] = {}
        port = free_port(neighbours=(-2, 1))
        self.address, self.replication = f"{host}:{port}", f"{host}:{port + 1}"
        self._group = group
        self._process: Metaq | None = None
        self._stopped = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.child.alive

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    def start(self, *, wait: bool = False) -> None:
        settings = {**SETTINGS, **self._group.settings, **self.settings}
        self._process = Metaq(
            *("broker", "--name", GROUP, "--id", str(self.id), "--data", str(self.data)),
            *("--listen", self.address, "--replication-listen", self.replication),
            *_beyond_loopback(self.host),
            *("--register", self._group.register, "--cluster-key", str(self._group.key_file)),
            *("--namesrv", ";".join(self._group.nameservers), *self._group.arguments),
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            home=self._group.home / f"node-{self.id}",
            prefix=self.prefix,
            wait=wait,
        )
        self._stopped = False

    def kill(self) -> None:
        assert self._process is not None, "it was not started"
        if self._process.child.alive:
            self._process.kill()

    def stop(self) -> int:
        """Asks it to stop and returns its exit code."""
        assert self._process is not None, "it was not started"
        return self._process.stop()

    def freeze(self) -> None:
        freeze(self.pid)
        self._stopped = True

    def thaw(self) -> None:
        if self._stopped and self.alive:
            os.kill(self.pid, signal.SIGCONT)
        self._stopped = False

    def log_bytes(self) -> int:
        """Returns the size of its commit log without the zeros behind its end."""
        files = sorted((self.data / "commitlog").iterdir())
        return sum(path.stat().st_size for path in files[:-1]) + len(files[-1].read_bytes().rstrip(b"\0"))

    def wipe(self) -> None:
        """Deletes its store; call it while the process is dead."""
        for entry in self.data.iterdir() if self.data.exists() else ():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def end(self) -> None:
        """Ends it at the end of a test, whatever state it is in."""
        if self._process is not None and self._process.child.alive:
            self._process.child.process.kill()
            self._process.kill()

    def end_of_life(self, lines: int) -> tuple[int, list[str]]:
        """Returns how its process ended, and the last lines that it wrote."""
        assert self._process is not None, "it was not started"
        code = self._process.child.process.wait(60)
        return code, self._process.child.log.read_text(errors="replace").splitlines()[-lines:]

    def log(self) -> str:
        """Returns the output of all its processes, in their order."""
        logs = sorted((self._group.home / f"node-{self.id}").glob("*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)


class BrokerNodes:
    """The group, its name servers and its register."""

    def __init__(
        self,
        home: Path,
        *,
        replicas: int = 3,
        etcd_members: int = 1,
        nameservers: int = 1,
        arguments: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        prepare: Callable[[BrokerNode], None] = lambda _: None,
        host: str = "127.0.0.1",
        node_host: Callable[[int], str] = lambda _: "127.0.0.1",
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.arguments = arguments
        self.settings = dict(settings or {})
        self.key_file = home / "cluster.key"
        self.key_file.write_text("11" * 32 + "\n")
        self.key_file.chmod(0o600)
        self.etcd = Etcd(home / "etcd", etcd_members, host=host)
        self.register = self.etcd.register
        self.watch = RegisterWatch(self.etcd)
        self._nameservers = [
            Metaq(
                *("nameserver", "--listen", f"{host}:0", *_beyond_loopback(host)),
                home=self._folder(f"nameserver-{number}"),
            )
            for number in range(nameservers)
        ]
        self.nameservers = [server.nameserver for server in self._nameservers]
        self.nodes: dict[int, BrokerNode] = {}
        for node_id in range(1, replicas + 1):
            self._folder(f"node-{node_id}")
            node = BrokerNode(self, node_id, home / f"data-{node_id}", node_host(node_id))
            prepare(node)
            self.nodes[node_id] = node
        try:
            for node in self.nodes.values():
                node.start()
            self.wait_in_sync()
        except BaseException:
            self.__exit__(RuntimeError)
            raise

    def _folder(self, name: str) -> Path:
        folder = self.home / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def namesrv(self) -> str:
        return ";".join(self.nameservers)

    def record(self) -> Group:
        return self.watch.record()

    def master(self) -> BrokerNode:
        """Waits until the record names a master that runs, and returns it."""
        record = eventually(
            self.watch.record,
            lambda found: found.master in self.nodes and self.nodes[found.master].alive,
            WELL_TIMEOUT_S,
            "a living master",
        )
        return self.nodes[record.master]

    def replicas(self) -> list[BrokerNode]:
        """Returns the living nodes other than the master, in the order of their ids."""
        master = self.master()
        return [node for node in self.nodes.values() if node is not master and node.alive]

    def wait_in_sync(self, *node_ids: int) -> Group:
        """Waits until exactly these nodes (all of them, if none is named) are in sync and have a master."""
        wanted = set(node_ids or self.nodes)
        return eventually(
            self.watch.record,
            lambda found: found.in_sync == wanted and found.master in wanted,
            WELL_TIMEOUT_S,
            f"in sync: {sorted(wanted)}",
        )

    def wait_for_epoch_after(self, epoch: int) -> Group:
        """Waits for a master of a later epoch."""
        return eventually(
            self.watch.record,
            lambda found: found.epoch > epoch and found.master != 0,
            WELL_TIMEOUT_S,
            f"a master after epoch {epoch}",
        )

    def let_vote(self, *nodes: BrokerNode, beats: int = ELECTION_BEATS) -> None:
        """Waits until each of these nodes has beaten that often: then it could have been elected.

        A node stands for master when the others were silent for three intervals between beats. So this is
        long enough however slow the machine is.
        """
        seen: dict[int, set[tuple[str, int]]] = {node.id: set() for node in nodes}

        def have_beaten() -> bool:
            for node in nodes:
                assert node.alive, f"node {node.id} has ended"
                seen[node.id].add(self.watch.beat(node.id))
            # The first one may be older.
            return all(len(found) > beats for found in seen.values())

        wait_until(have_beaten, WELL_TIMEOUT_S, f"{beats} beats of {sorted(seen)}", interval_s=0.2)

    def kill_nameserver(self, number: int) -> None:
        self._nameservers[number].kill()

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Asks the master for the end of a queue, until one answers."""

        def ask() -> int | None:
            with suppress(OSError, ServerClosed), PlainClient(self.master().address, 10) as client:
                reply = client.call(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
                return int(reply.fields["offset"]) if reply.code == SUCCESS else None
            return None

        found = eventually(ask, lambda end: end is not None, 30, f"an end of {topic}/{queue_id}")
        assert found is not None
        return found

    def create_topic(self, topic: str, queues: int) -> None:
        """Creates the topic at the master, however often that takes."""

        def created() -> bool:
            with suppress(OSError, ServerClosed), PlainClient(self.master().address, 10) as client:
                return create_topic(client, topic, queues).code == SUCCESS
            return False

        wait_until(created, WELL_TIMEOUT_S, f"topic {topic}")

    def start_dead(self) -> None:
        for node in self.nodes.values():
            if not node.alive:
                node.start()

    def stop_all(self) -> dict[int, int]:
        """Stops replicas first and the master last; returns the exit codes."""
        order = sorted(self.nodes.values(), key=lambda node: node.id == self.record().master)
        return {node.id: node.stop() for node in order if node.alive}

    def __enter__(self) -> BrokerNodes:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        for node in self.nodes.values():
            if failure is not None:
                print(f"--- node {node.id} ---", *node.log().splitlines()[-40:], sep="\n")
            node.end()
        for server in self._nameservers:
            if server.child.alive:
                server.kill()
        self.watch.close()
        self.etcd.stop()


def _beyond_loopback(host: str) -> list[str]:
    return [] if host == "127.0.0.1" else ["--insecure-listen"]
