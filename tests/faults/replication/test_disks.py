"""Disks that lose power, fail, hang, forget or lie: the group goes on without them and repairs them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.disks import loop_disks_work
from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.powered import PoweredNodes
from tests.faults.replication.trial import TOPIC, Trial
from tests.faults.sync_faults import Sync, SyncFaults
from tests.support.checker import Key, body_of
from tests.support.plain_client import SEND_MESSAGE_V2, PlainClient, frame, send_fields
from tests.support.rounds import rounds
from tests.support.waiting import wait_until

TAIL_SENDER = 99
"""The sender of messages that are to be cut off. Its number is odd, so their order does not count."""


@pytest.fixture
def powered(tmp_path: Path) -> Iterator[PoweredNodes]:
    if not loop_disks_work(tmp_path):
        pytest.skip("needs root, loop devices and mkfs.ext4")
    with ExitStack() as stack:
        yield PoweredNodes(tmp_path, stack)


def test_power_loss_of_the_master_and_then_of_all_nodes(tmp_path: Path, powered: PoweredNodes) -> None:
    with BrokerNodes(tmp_path, prepare=powered.prepare) as nodes, Trial("power loss", nodes) as trial:
        for _ in range(rounds(1, 10)):
            trial.fault("power loss of the master")
            master = nodes.master()
            powered.lose_power(master)
            trial.flows(100)
            master.start()
            nodes.wait_in_sync()
            trial.fault("power loss of all nodes")
            powered.lose_power(*nodes.nodes.values())
            nodes.start_dead()
            trial.flows(100)
            nodes.wait_in_sync()
        trial.finish()


@pytest.mark.soak
def test_with_flush_async_a_master_that_lost_power_is_not_elected(
    tmp_path: Path, powered: PoweredNodes
) -> None:
    """It comes back first and has lost what the replicas still have in memory."""
    with (
        BrokerNodes(tmp_path, prepare=powered.prepare, arguments=("--flush", "async")) as nodes,
        Trial("flush=async", nodes) as trial,
    ):
        for _ in range(rounds(2, 5)):
            nodes.wait_in_sync()
            master, (first, second) = nodes.master(), nodes.replicas()
            trial.fault("power loss of the master")
            master.freeze()
            first.kill()
            second.kill()
            powered.lose_power(master)
            master.start(wait=True)
            time.sleep(5)
            first.start()
            trial.flows(50)
            assert nodes.record().master == first.id
            nodes.start_dead()
        trial.finish()


@pytest.mark.soak
def test_a_set_of_one_keeps_its_messages_over_a_power_loss(tmp_path: Path, powered: PoweredNodes) -> None:
    """With min_in_sync 1 the last node acknowledges alone. The others wait for it."""
    with (
        BrokerNodes(tmp_path, prepare=powered.prepare, arguments=("--min-in-sync", "1")) as nodes,
        Trial("set of one", nodes) as trial,
    ):
        others = nodes.replicas()
        last = nodes.master()
        for node in others:
            trial.kill(node)
        trial.flows(100)
        assert nodes.record().in_sync == {last.id}
        trial.fault("power loss of the last node")
        powered.lose_power(last)
        for node in others:
            node.start()
        assert trial.is_silent(6.0), "a node outside the set became master"
        last.start()
        trial.flows(100)
        trial.finish()


@pytest.mark.parametrize(
    ("mode", "of"),
    [
        (Sync.HANGING, "master"),
        pytest.param(Sync.FAILING, "master", marks=pytest.mark.soak),
        pytest.param(Sync.HANGING, "replica", marks=pytest.mark.soak),
        pytest.param(Sync.FAILING, "replica", marks=pytest.mark.soak),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Sync) else str(value),
)
def test_a_disk_that_fails_or_hangs_is_left_behind(tmp_path: Path, mode: Sync, of: str) -> None:
    faults: dict[int, SyncFaults] = {}

    def prepare(node: BrokerNode) -> None:
        faults[node.id] = SyncFaults()
        node.prefix = faults[node.id].prefix()

    with BrokerNodes(tmp_path, prepare=prepare) as nodes, Trial(f"fsync {mode.name} {of}", nodes) as trial:
        sick = nodes.master() if of == "master" else nodes.replicas()[0]
        epoch = nodes.record().epoch
        trial.fault(f"fsync {mode.name}")
        faults[sick.id].mode = mode
        if of == "master":
            record = nodes.wait_for_epoch_after(epoch)
            assert record.master != sick.id
        else:
            wait_until(lambda: sick.id not in nodes.record().in_sync, 60, "the sick replica has left")
        trial.flows(100)
        sick.kill()
        faults[sick.id].mode = Sync.HONEST
        faults[sick.id].stop()
        sick.prefix = ()
        trial.finish()
    for one in faults.values():
        one.stop()


def test_a_wiped_replica_is_not_elected_before_it_has_everything(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("wiped", nodes) as trial:
        trial.flows(300)
        for _ in range(rounds(1, 10)):
            nodes.wait_in_sync()
            wiped, other = nodes.replicas()
            trial.fault("wipe replica")
            wiped.kill()
            wiped.wipe()
            wiped.start()
            trial.kill(nodes.master())
            if wiped.id not in nodes.record().in_sync:
                assert nodes.master() is other
            nodes.start_dead()
            trial.flows(100)
        trial.finish()


@pytest.mark.soak
@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_flipped_bit_on_a_replica_is_repaired_or_kept_out(tmp_path: Path, where: str) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial(f"flipped bit at the {where}", nodes) as trial:
        trial.flows(300)
        sick = nodes.replicas()[0]
        trial.fault("flip a bit")
        sick.kill()
        log = sorted((sick.data / "commitlog").iterdir())[0 if where == "begin" else -1]
        data = bytearray(log.read_bytes())
        used = len(bytes(data).rstrip(b"\0"))
        data[used // 2] ^= 1
        log.write_bytes(data)
        sick.start()
        trial.flows(100)
        nodes.wait_in_sync()
        trial.finish()


def test_a_truncation_that_is_killed_again_and_again_is_finished(tmp_path: Path) -> None:
    """The old master has a tail that nobody else has. However often it dies on its way back, the tail stays
    dead: it is kept aside and not in the log."""
    with BrokerNodes(tmp_path) as nodes, Trial("truncation", nodes) as trial:
        old, replicas, epoch = nodes.master(), nodes.replicas(), nodes.record().epoch
        # Frozen first, so that the master appends records for them; then killed before they read them.
        for node in replicas:
            node.freeze()
        _append_tail(trial, old, replicas)
        for node in (*replicas, old):
            trial.kill(node)
        for node in replicas:
            node.start()
        nodes.wait_for_epoch_after(epoch)
        trial.flows(100)
        kills = 0
        # In `make soak` at each sync call, otherwise at some of them.
        while _kill_in_truncation(old, kills * rounds(8, 1)):
            kills += 1
        print(f"{kills} kills during the truncation, each at another sync call")
        assert kills > 0
        nodes.start_dead()
        nodes.wait_in_sync()
        assert list((old.data / "cut").iterdir()), "a copy of the tail is kept"
        trial.finish()


def _append_tail(trial: Trial, master: BrokerNode, frozen: Sequence[BrokerNode]) -> None:
    """Sends messages that nobody acknowledges, until the master has some that the frozen nodes do not."""
    with PlainClient(master.address) as client:
        for sequence in range(20):
            key = Key(TAIL_SENDER, sequence)
            trial.senders.history.attempt(key, 0)
            fields, opaque = send_fields(TOPIC, 0), client.next_opaque()
            client.write(frame(SEND_MESSAGE_V2, fields, body_of(key, 200), opaque=opaque))
        held = max(node.log_bytes() for node in frozen)
        wait_until(lambda: master.log_bytes() > held + 2_000, 20, "a tail on the old master")


def _kill_in_truncation(node: BrokerNode, number: int) -> bool:
    """Kills the node in the sync call of this number since its record says that it truncates. Returns False
    if the truncation ended before that; then it is left running."""
    faults = SyncFaults()
    calls = 0

    def is_the_one() -> bool:
        nonlocal calls
        if _is_truncating(node):
            calls += 1
        return calls > number

    faults.hang_when = is_the_one
    node.prefix = faults.prefix()
    node.start()
    wait_until(lambda: faults.hanging or ((node.data / "cut").exists() and not _is_truncating(node)), 60)
    if not faults.hanging:
        faults.hang_when = lambda: False
        node.prefix = ()
        return False
    assert _is_truncating(node)
    node.kill()
    faults.stop()
    return True


def _is_truncating(node: BrokerNode) -> bool:
    return json.loads((node.data / "replication.json").read_bytes())["node"]["truncate_to"] is not None
