"""One trial: a group under load, faults, and the verdict at the end with its counts."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.replication.commits import Commits
from tests.faults.replication.load import GroupReaders, GroupSenders
from tests.faults.replication.nodes import WELL_TIMEOUT_S, BrokerNode, BrokerNodes
from tests.faults.senders import served_queues
from tests.support.checker import History, Queues, key_of, violations
from tests.support.plain_client import PlainClient
from tests.support.waiting import eventually, wait_until

TOPIC = "faults"
QUEUES = 4
SENDERS = 4
COUNTS_FILE = "METAQ_FAULT_COUNTS"
"""The variable with the file to which each trial adds its counts, one line of JSON each."""
APACHE = "Apache "
"""The names of trials of Apache's own groups begin so."""
_VANISHED = "was served before and is now"


@dataclass(frozen=True)
class Counts:
    """The counts of one trial."""

    trial: str
    acknowledged: int
    faults: int
    lost: int
    duplicated: int
    out_of_order: int
    masters_per_epoch: int
    epochs: int

    def line(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in asdict(self).items())

    def keep(self) -> None:
        """Prints the counts, and adds them to the file that `make soak` sums up."""
        print(self.line())
        if path := os.environ.get(COUNTS_FILE):
            with Path(path).open("a") as file:
                file.write(json.dumps(asdict(self)) + "\n")


class Trial:
    """Load on a group from `__enter__` on. `finish` lets everything heal and returns the counts."""

    def __init__(self, name: str, nodes: BrokerNodes, *, seed: int = 1, senders: int = SENDERS) -> None:
        self.name = name
        self.nodes = nodes
        self.faults: Counter[str] = Counter()
        nodes.create_topic(TOPIC, QUEUES)
        addresses = [node.address for node in nodes.nodes.values()]
        self.senders = GroupSenders(addresses, self._master_address, TOPIC, QUEUES, count=senders, seed=seed)
        self.readers = GroupReaders(addresses, TOPIC, QUEUES)
        self.commits = Commits(addresses, self._master_address, TOPIC)

    def _master_address(self) -> str:
        last = self.nodes.watch.last
        return self.nodes.nodes[last.master or 1].address

    def __enter__(self) -> Trial:
        self.senders.start()
        self.readers.start()
        self.commits.start()
        self.flows()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_load()

    def _stop_load(self) -> None:
        self.senders.stop()
        self.readers.stop()
        self.commits.stop()

    # ---- while it runs

    @property
    def acknowledged(self) -> int:
        return self.senders.history.acknowledged_count()

    def flows(self, count: int = 50, timeout_s: float = WELL_TIMEOUT_S) -> float:
        """Waits for that many more acknowledgements; returns after how many seconds the first one came."""
        began, before = time.monotonic(), len(self.senders.acknowledged_at)
        wait_until(
            lambda: len(self.senders.acknowledged_at) >= before + count, timeout_s, f"{count} acknowledged"
        )
        return self.senders.acknowledged_at[before] - began

    def is_silent_while_voting(self, *nodes: BrokerNode) -> bool:
        """Lets requests under way end. Then returns whether nothing is acknowledged while one of these nodes
        could be elected."""
        self.nodes.let_vote(*nodes, beats=1)
        before = len(self.senders.acknowledged_at)
        self.nodes.let_vote(*nodes)
        return len(self.senders.acknowledged_at) == before

    def is_silent(self, seconds: float) -> bool:
        """Lets requests under way end, then returns whether nothing is acknowledged for that long."""
        time.sleep(1.0)
        before = len(self.senders.acknowledged_at)
        time.sleep(seconds)
        return len(self.senders.acknowledged_at) == before

    def fault(self, name: str) -> None:
        """Counts a fault that is about to happen."""
        self.faults[name] += 1
        self.commits.note_fault()

    def kill(self, node: BrokerNode) -> None:
        self.fault(f"kill node {node.id}")
        node.kill()

    # ---- the end

    def finish(self, *, same_logs: bool = True) -> Counts:
        """Starts dead nodes, waits until all are in sync, and checks everything. Returns the counts."""
        nodes = self.nodes
        for node in nodes.nodes.values():
            node.thaw()
        nodes.start_dead()
        nodes.wait_in_sync()
        self.flows(20)
        self.senders.stop()
        self.commits.stop()
        self.commits.check()
        self.readers.stop()
        queues = self._same_everywhere()
        counts, found = judge(
            self.name,
            self.senders,
            queues,
            self.readers,
            faults=self.faults.total(),
            masters=nodes.watch.masters(),
        )
        counts.keep()
        assert found + self.commits.went_back == [], [*found[:10], *self.commits.went_back[:10]]
        assert self.readers.replaced == []
        assert self.commits.made > 0
        codes = nodes.stop_all()
        assert set(codes.values()) == {0}, codes
        if same_logs:
            assert_same_logs(nodes)
        return counts

    def _same_everywhere(self) -> Queues:
        """Returns what the master serves, once every node serves the same."""

        def served() -> dict[int, Queues]:
            found: dict[int, Queues] = {}
            for node in self.nodes.nodes.values():
                with PlainClient(node.address) as client:
                    found[node.id] = served_queues(client, TOPIC, QUEUES)
            return found

        def same(found: dict[int, Queues]) -> bool:
            return all(one == found[1] for one in found.values())

        try:
            return eventually(served, same, 30, "the same messages on every node")[self.nodes.record().master]
        except TimeoutError:
            found = served()
            sizes = {node_id: [len(queues[q]) for q in sorted(queues)] for node_id, queues in found.items()}
            raise AssertionError(f"the nodes serve different messages: {sizes}") from None


def judge(
    name: str,
    senders: GroupSenders,
    queues: Queues,
    readers: GroupReaders,
    *,
    faults: int,
    masters: dict[int, set[int]],
) -> tuple[Counts, list[str]]:
    """Returns the counts, and everything that is wrong, one sentence each."""
    found = violations(senders.history, queues, readers.earlier(), senders.in_order)
    found += [
        f"epoch {epoch} had masters {sorted(nodes)}" for epoch, nodes in masters.items() if len(nodes) > 1
    ]
    counts = Counts(
        trial=name,
        acknowledged=senders.history.acknowledged_count(),
        faults=faults,
        lost=sum(sentence.startswith(("lost", "replaced")) or _VANISHED in sentence for sentence in found),
        duplicated=duplicated(senders.history, queues),
        out_of_order=sum("comes after sequence" in sentence for sentence in found),
        masters_per_epoch=max((len(nodes) for nodes in masters.values()), default=0),
        epochs=len(masters),
    )
    return counts, found


def duplicated(history: History, queues: Queues) -> int:
    """Returns how many messages are there again: sent again because their answer was missing."""
    keys = [key_of(served.body) for messages in queues.values() for served in messages]
    return len(keys) - len(set(keys))


def log_bytes(directory: Path) -> bytes:
    """Returns a commit log without the zeros behind its end."""
    files = sorted((directory / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def assert_same_logs(nodes: BrokerNodes) -> None:
    """Fails unless the logs of all nodes have the same bytes. Call it when they have stopped."""
    logs = {node.id: log_bytes(node.data) for node in nodes.nodes.values()}
    first = logs[1]
    for node_id, log in logs.items():
        at = next((i for i, (a, b) in enumerate(zip(log, first, strict=False)) if a != b), None)
        assert log == first, f"node {node_id} has {len(log)} bytes, node 1 {len(first)}; they differ at {at}"
