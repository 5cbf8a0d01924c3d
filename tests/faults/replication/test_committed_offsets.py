"""A commit that is answered with success is kept: by the next master too, if the present one cannot go on."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.support.plain_client import SUCCESS, PlainClient, ServerClosed, frame, send
from tests.support.waiting import eventually, wait_until

UPDATE_CONSUMER_OFFSET = 15
QUERY_CONSUMER_OFFSET = 14
UPDATE_AND_CREATE_GROUP = 200
SERVICE_NOT_AVAILABLE = 14
TOPIC, GROUP = "orders", "readers"
PLACE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
UNKNOWN = -1
MESSAGES = 300
"""No offset beyond the end of the queue can be committed."""


def prepare(nodes: BrokerNodes) -> None:
    nodes.create_topic(TOPIC, 1)
    body = json.dumps({"groupName": GROUP, "consumeEnable": True}).encode()

    def created() -> bool:
        with suppress(OSError, ServerClosed), PlainClient(nodes.master().address, 10) as client:
            return client.call(UPDATE_AND_CREATE_GROUP, {}, body).code == SUCCESS
        return False

    wait_until(created, 60, "the group")
    with PlainClient(nodes.master().address) as client:
        for number in range(MESSAGES):
            assert send(client, TOPIC, 0, b"%d" % number).code == SUCCESS


def commit(node: BrokerNode, offset: int, *, timeout_s: float = 10) -> int:
    """Returns the code of the answer."""
    with PlainClient(node.address, timeout_s) as client:
        return client.call(UPDATE_CONSUMER_OFFSET, {**PLACE, "commitOffset": str(offset)}).code


def committed(node: BrokerNode) -> int:
    with suppress(OSError, ServerClosed), PlainClient(node.address, 10) as client:
        reply = client.call(QUERY_CONSUMER_OFFSET, PLACE)
        if reply.code == SUCCESS:
            return int(reply.fields["offset"])
    return UNKNOWN


def wait_committed(nodes: list[BrokerNode], offset: int) -> None:
    wait_until(lambda: all(committed(node) == offset for node in nodes), 60, f"offset {offset} at all nodes")


def commit_without_master(replica: BrokerNode, offset: int) -> int:
    """Commits until the replica decides about it itself, and returns the code of its answer."""

    def decided() -> int | None:
        with PlainClient(replica.address, 60) as client:
            reply = client.call(UPDATE_CONSUMER_OFFSET, {**PLACE, "commitOffset": str(offset)})
        # At first it holds commits for a moment and then refuses them, because a master may come soon.
        return None if "changes its role" in reply.remark else reply.code

    code = eventually(decided, lambda code: code is not None, 60, "a decision")
    assert code is not None
    return code


def test_a_replica_without_a_master_does_not_answer_a_commit_with_success(tmp_path: Path) -> None:
    """Only this replica would have the offset, for as long as nobody is master."""
    with BrokerNodes(tmp_path / "group") as nodes:
        prepare(nodes)
        master, (replica, other) = nodes.master(), nodes.replicas()
        assert commit(master, 10) == SUCCESS
        wait_committed([master, replica, other], 10)
        [member] = nodes.etcd.members
        nodes.etcd.kill(member)
        master.kill()
        code = commit_without_master(replica, 40)
        replica.kill()
        nodes.etcd.restart(member)
        master.start()
        nodes.wait_in_sync(master.id, other.id)
        after = committed(nodes.master())
        assert code == SERVICE_NOT_AVAILABLE or after == 40, f"answered with {code}, and {after} is left"
        assert after == 10


def test_an_offset_that_a_replica_keeps_without_a_master_reaches_the_next_one(tmp_path: Path) -> None:
    """It is refused, because it can be lost. It is kept all the same, as well as that goes."""
    with BrokerNodes(tmp_path / "group") as nodes:
        prepare(nodes)
        master, (replica, other) = nodes.master(), nodes.replicas()
        assert commit(master, 10) == SUCCESS
        wait_committed([master, replica, other], 10)
        [member] = nodes.etcd.members
        nodes.etcd.kill(member)
        master.kill()
        assert commit_without_master(replica, 40) == SERVICE_NOT_AVAILABLE
        nodes.etcd.restart(member)
        master.start()
        nodes.wait_in_sync()
        wait_committed(list(nodes.nodes.values()), 40)


def test_a_master_without_replicas_does_not_answer_commits_with_success(tmp_path: Path) -> None:
    """Nobody dies, and everybody pauses once: what was answered with success is still there."""
    with BrokerNodes(tmp_path / "group") as nodes:
        prepare(nodes)
        master, replicas, epoch = nodes.master(), nodes.replicas(), nodes.record().epoch
        assert commit(master, 10) == SUCCESS
        wait_committed([master, *replicas], 10)
        for replica in replicas:
            replica.freeze()
        began, done = time.monotonic(), [(0.0, 10)]

        def commit_next() -> int:
            offset = done[-1][1] + 1
            code = commit(master, offset)
            if code == SUCCESS:
                done.append((time.monotonic() - began, offset))
            return code if time.monotonic() - began >= 6 else SUCCESS

        try:
            wait_until(lambda: commit_next() == SERVICE_NOT_AVAILABLE, 60, "a refused commit", interval_s=0.2)
        finally:
            master.freeze()
            for replica in replicas:
                replica.thaw()
        nodes.wait_for_epoch_after(epoch)
        master.thaw()
        nodes.wait_in_sync()
        # Twice behind_limit_s; the rest is for a busy machine.
        late = [offset for at, offset in done if at > 4]
        assert not late, f"answered with success long after the replicas stopped: {late}"


def test_a_master_that_was_replaced_while_it_hung_answers_no_commit_with_success(tmp_path: Path) -> None:
    """The commit is in its socket when it wakes up, before it can know that it was replaced."""
    with BrokerNodes(tmp_path / "group") as nodes:
        prepare(nodes)
        old = nodes.master()
        wanted = 10
        assert commit(old, wanted) == SUCCESS
        wait_committed(list(nodes.nodes.values()), wanted)
        for _ in range(3):
            old, epoch = nodes.master(), nodes.record().epoch
            with PlainClient(old.address, 60) as client:
                # The connection is accepted before.
                assert client.call(QUERY_CONSUMER_OFFSET, PLACE).code == SUCCESS
                old.freeze()
                wanted += 10
                fields = {**PLACE, "commitOffset": str(wanted)}
                client.write(frame(UPDATE_CONSUMER_OFFSET, fields, opaque=client.next_opaque()))
                new = nodes.nodes[nodes.wait_for_epoch_after(epoch).master]
                old.thaw()
                code = client.read_reply().code
            nodes.wait_in_sync()
            if code == SUCCESS:
                # Relayed to the new master.
                assert committed(nodes.master()) == wanted
            else:
                assert code == SERVICE_NOT_AVAILABLE
                assert commit(new, wanted) == SUCCESS
            wait_committed(list(nodes.nodes.values()), wanted)
