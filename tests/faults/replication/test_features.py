"""Transactions, delayed messages, orderly readers and offsets over a switch of the master; forged bytes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import metaq
from tests.faults.replication.nodes import BrokerNodes
from tests.faults.replication.trial import Trial
from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    Reply,
    ServerClosed,
    read_queue,
    send,
)
from tests.support.rounds import rounds
from tests.support.waiting import eventually, wait_until

TOPIC = "features"
END_TRANSACTION = 37
COMMIT, ROLLBACK = 8, 12
LOCK_BATCH = 41
DELAYED = 20


def _at_master(nodes: BrokerNodes, ask: Callable[[PlainClient], Reply]) -> Reply:
    """Asks the master again until it answers with success."""

    def once() -> Reply | None:
        with suppress(OSError, ServerClosed), PlainClient(nodes.master().address, 5) as client:
            reply = ask(client)
            return reply if reply.code == SUCCESS else None
        return None

    found = eventually(once, lambda reply: reply is not None, 60, "a success of the master")
    assert found is not None
    return found


def _bodies(nodes: BrokerNodes, topic: str = TOPIC) -> list[bytes]:
    def read() -> list[bytes] | None:
        # A broker that changes its role refuses, which `read_queue` takes for a failure.
        with (
            suppress(OSError, ServerClosed, AssertionError),
            PlainClient(nodes.master().address, 5) as client,
        ):
            return [stored.body for stored in read_queue(client, topic, 0)]
        return None

    found = eventually(read, lambda bodies: bodies is not None, 60, "a queue that can be read")
    assert found is not None
    return found


def _half(client: PlainClient, name: str) -> Reply:
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "4", "g": "0", "h": "0"}
    fields["i"] = f"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01{name}\x02"
    return client.call(SEND_MESSAGE_V2, fields, name.encode())


def _end(begun: Reply, how: int) -> dict[str, str]:
    return {
        "producerGroup": "p",
        "tranStateTableOffset": begun.fields["queueOffset"],
        "commitLogOffset": str(int(begun.fields["msgId"][-16:], 16)),
        "commitOrRollback": str(how),
        "fromTransactionCheck": "false",
        "msgId": "",
    }


def _replace_master(nodes: BrokerNodes) -> None:
    epoch = nodes.record().epoch
    nodes.master().kill()
    nodes.wait_for_epoch_after(epoch)
    nodes.start_dead()


def test_a_half_message_of_the_last_moment_is_known_to_the_next_master(tmp_path: Path) -> None:
    """It was acknowledged just before the kill, so no replica has heard yet that it is confirmed."""
    with BrokerNodes(tmp_path) as nodes:
        nodes.create_topic(TOPIC, 1)
        wanted = []
        for number in range(rounds(2, 20)):
            nodes.wait_in_sync()
            name = f"last-{number}"
            master, epoch = nodes.master(), nodes.record().epoch
            with PlainClient(master.address) as client:
                begun = _half(client, name)
                os.kill(master.pid, signal.SIGKILL)
            assert begun.code == SUCCESS
            master.kill()
            nodes.wait_for_epoch_after(epoch)
            _at_master(nodes, lambda client, begun=begun: client.call(END_TRANSACTION, _end(begun, COMMIT)))
            wanted.append(name.encode())
            nodes.start_dead()
        assert _bodies(nodes) == wanted


def test_open_transactions_end_at_the_next_master(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes:
        nodes.create_topic(TOPIC, 1)
        begun = {
            name: _at_master(nodes, lambda client, name=name: _half(client, name))
            for name in ("first", "second", "third", "undone")
        }
        _at_master(nodes, lambda client: client.call(END_TRANSACTION, _end(begun["first"], COMMIT)))
        _replace_master(nodes)
        # An end that was already answered may come again: it must not show the message twice.
        for name in ("first", "second", "third"):
            _at_master(
                nodes, lambda client, name=name: client.call(END_TRANSACTION, _end(begun[name], COMMIT))
            )
        _at_master(nodes, lambda client: client.call(END_TRANSACTION, _end(begun["undone"], ROLLBACK)))
        nodes.wait_in_sync()
        _replace_master(nodes)
        assert Counter(_bodies(nodes)) == Counter([b"first", b"second", b"third"])


def test_delayed_messages_are_never_early_and_come_once_or_a_little_more(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes:
        nodes.create_topic(TOPIC, 1)
        due: dict[bytes, float] = {}
        for number in range(DELAYED):
            # Some are due before the switch, most during or after it.
            at_ms = int((time.time() + 1 + number * 0.25) * 1000)
            body = b"%d" % number
            _at_master(
                nodes,
                lambda client, body=body, at_ms=at_ms: send(
                    client, TOPIC, 0, body, f"TIMER_DELIVER_MS\x01{at_ms}\x02"
                ),
            )
            due[body] = at_ms / 1000
        came: dict[bytes, float] = {}
        _replace_master(nodes)

        def all_came() -> bool:
            for body in _bodies(nodes):
                came.setdefault(body, time.time())
            return set(came) == set(due)

        wait_until(all_came, 60, "every delayed message")
        early = {body: came[body] - due[body] for body in due if came[body] < due[body] - 0.01}
        assert early == {}
        repeats = len(_bodies(nodes)) - len(due)
        print(f"{repeats} repeats of {len(due)}")
        assert repeats <= len(due)


def test_an_ordered_queue_has_one_reader_over_a_switch(tmp_path: Path) -> None:
    """Two members of a group; each notes when it handles which message. The order never breaks."""
    with BrokerNodes(tmp_path) as nodes:
        nodes.create_topic(TOPIC, 1)
        busy = threading.Lock()
        handled: list[int] = []
        overlaps: list[int] = []

        def handle(message: metaq.Message) -> None:
            if not busy.acquire(blocking=False):
                overlaps.append(int(message.body))
                return
            try:
                handled.append(int(message.body))
                time.sleep(0.002)
            finally:
                busy.release()

        with metaq.Client(nodes.namesrv) as one, metaq.Client(nodes.namesrv) as two:
            for client in (one, two):
                client.consumer(TOPIC, group="ordered", ordered=True, start="earliest")(handle)
            with one.producer("numbers") as producer:
                for number in range(150):
                    if number in (50, 100):
                        _replace_master(nodes)
                    _send_until_durable(producer, b"%d" % number)
            wait_until(lambda: set(handled) == set(range(150)), 120, "all handled")
        assert overlaps == [], "two readers at once"
        seen: set[int] = set()
        fresh = [number for number in handled if not (number in seen or seen.add(number))]
        assert fresh == sorted(fresh)
        print(f"{len(handled) - len(fresh)} repeats of {len(fresh)}")


def _send_until_durable(producer: metaq.Producer, body: bytes) -> None:
    """Sends again if too few replicas answered in time, which may store the message twice."""
    while True:
        try:
            producer.send(TOPIC, body, key="one", timeout=60)
            return
        except metaq.NotDurable:
            continue


@pytest.mark.parametrize("seconds", [2])
def test_forged_bytes_at_the_replication_port_move_nothing(tmp_path: Path, seconds: float) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("forged bytes", nodes) as trial:
        before = nodes.record()
        ends = time.monotonic() + seconds
        tries = 0
        while time.monotonic() < ends:
            for node in nodes.nodes.values():
                host, _, port = node.replication.rpartition(":")
                with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as link:
                    trial.fault("forged bytes")
                    tries += 1
                    link.sendall((b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64)[tries % 3] + os.urandom(2000))
                    link.settimeout(10)
                    with suppress(ConnectionError):
                        while link.recv(4096):
                            pass
        # A replica without a processor for two seconds leaves the set, and comes back.
        after = nodes.wait_in_sync()
        assert (after.epoch, after.master) == (before.epoch, before.master)
        assert tries > 10
        assert "the replication port refuses" in nodes.master().log()
        trial.finish()


@pytest.mark.soak
def test_what_a_replica_was_told_reaches_the_next_master(tmp_path: Path) -> None:
    """Offsets that were committed at a replica while there was no master never go back."""
    with BrokerNodes(tmp_path) as nodes:
        nodes.create_topic(TOPIC, 1)
        for _ in range(60):
            _at_master(nodes, lambda client: send(client, TOPIC, 0, b"one"))
        _at_master(nodes, lambda client: client.call(200, {}, b'{"groupName": "kept"}'))
        fields = {"consumerGroup": "kept", "topic": TOPIC, "queueId": "0"}
        for round_number in range(1, 6):
            nodes.wait_in_sync()
            replica, epoch = nodes.replicas()[0], nodes.record().epoch
            nodes.master().kill()
            offset = str(round_number * 10)

            def committed(at: str = replica.address, to: str = offset) -> bool:
                with suppress(OSError, ServerClosed), PlainClient(at, 5) as client:
                    return client.call(15, {**fields, "commitOffset": to}).code == SUCCESS
                return False

            wait_until(committed, 30, "a commit at a replica")
            nodes.wait_for_epoch_after(epoch)
            nodes.start_dead()
            wait_until(
                lambda to=offset: (
                    _at_master(nodes, lambda client: client.call(14, fields)).fields["offset"] == to
                ),
                30,
                f"offset {offset} at the new master",
            )
