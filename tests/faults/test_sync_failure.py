"""A failed fsync is final: nothing is acknowledged after it, even if the disk would sync again."""

from __future__ import annotations

from pathlib import Path

from tests.faults.senders import Senders, served_queues
from tests.faults.sync_faults import Sync, SyncFaults
from tests.support.checker import violations
from tests.support.plain_client import (
    PULL_NOT_FOUND,
    SEND_MESSAGE_V2,
    SUCCESS,
    create_topic,
    pull,
    read_queue,
    send,
)
from tests.support.serving import Serving
from tests.support.waiting import wait_until

QUEUES = 2
TOPIC = "sync_failure"
END_TRANSACTION = 37
SERVICE_NOT_AVAILABLE = 14


def test_nothing_is_acknowledged_after_a_failed_sync(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    faults = SyncFaults()
    senders = Senders(TOPIC, QUEUES, count=2, seed=1)
    with Serving(home, data, prefix=faults.prefix()) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, QUEUES).code == SUCCESS
            # Create the group that reads now: to create it later would need a write.
            assert pull(client, TOPIC, 0, 0).code == PULL_NOT_FOUND
        senders.start()
        senders.target = broker.broker
        wait_until(lambda: senders.history.acknowledged_count() > 100)
        faults.mode = Sync.FAILING
        wait_until(lambda: len(senders.refusals) > 0 or not broker.child.alive)
        senders.stop()
        for faults.mode in (Sync.FAILING, Sync.HONEST):
            # A process that ends on a failed sync is right as well.
            if broker.child.alive:
                _refuses_writes_and_serves_reads(broker)
        wait_until(lambda: "sync" in broker.log().lower())
        broker.kill()
    faults.stop()
    with Serving(home, data) as broker, broker.connect() as client:
        assert violations(senders.history, served_queues(client, TOPIC, QUEUES)) == []
        assert send(client, TOPIC, 0, b"after the restart").code == SUCCESS


def _refuses_writes_and_serves_reads(broker: Serving) -> None:
    with broker.connect() as client:
        for _ in range(20):
            refused = send(client, TOPIC, 0, b"too late")
            assert refused.code == SERVICE_NOT_AVAILABLE
            assert "sync" in refused.remark.lower()
        assert read_queue(client, TOPIC, 0)


def test_a_repeated_commit_is_not_acknowledged_before_the_first_one_is_safe(tmp_path: Path) -> None:
    faults = SyncFaults()
    with Serving(tmp_path / "home", tmp_path / "data", prefix=faults.prefix()) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, QUEUES).code == SUCCESS
            half = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "4", "g": "0", "h": "0"}
            half["i"] = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02"
            begun = client.call(SEND_MESSAGE_V2, half, b"half")
            assert begun.code == SUCCESS
            commit = {
                "producerGroup": "p",
                "tranStateTableOffset": begun.fields["queueOffset"],
                "commitLogOffset": str(int(begun.fields["msgId"][-16:], 16)),
                "commitOrRollback": "8",
                "fromTransactionCheck": "true",
                "msgId": "",
            }
            faults.mode = Sync.FAILING
            codes = [client.call(END_TRANSACTION, commit).code for _ in range(2)]
            assert SUCCESS not in codes
        broker.kill()
    faults.stop()
