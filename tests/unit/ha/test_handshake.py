"""The first words on a replication link, on real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq._core import LinkListener, LinkSocket
from metaq.ha import handshake
from metaq.ha.handshake import (
    Follow,
    Identity,
    LinkDone,
    LinkRefused,
    OwnLog,
    Refused,
    SendTail,
    Welcome,
    admit,
    ask_to_follow,
    compare,
    fetch,
    introduce,
    verify,
)

TIMEOUT_MS = 20_000
MASTER = Identity("cluster", "broker-a", 1, "a" * 32)
REPLICA = Identity("cluster", "broker-a", 2, "b" * 32)
WELCOME = Welcome(4, [(1, 0), (4, 700)], 0, 900, 1 << 30, "127.0.0.1:10911")
LOG = OwnLog(4, [(1, 0)], 800)
KEY = b"a key that both hold"


class MasterLog:
    """A log whose bytes are letters, damaged at 700."""

    def checksum(self, from_offset: int, to_offset: int) -> int | None:
        return to_offset - from_offset

    def damaged_ranges(self, from_offset: int, to_offset: int) -> list[tuple[int, int]] | None:
        return None if to_offset > 900 else [(700, 750)] if from_offset < 750 and to_offset > 700 else []

    def piece(self, from_offset: int, to_offset: int) -> bytes | None:
        return None if from_offset >= 900 else b"x" * min(to_offset - from_offset, 16)


Admitted = tuple[Identity, Follow | SendTail]


@dataclass
class Master:
    """A master's end that admits whoever comes, in a thread."""

    listener: LinkListener
    pool: ThreadPoolExecutor
    welcome: Callable[[Identity, OwnLog], Welcome | Refused | SendTail]

    def admit(self, key: bytes = KEY) -> tuple[LinkSocket, Future[Admitted]]:
        """Connects a replica and returns its socket and the master's verdict."""
        socket = LinkSocket.connect(f"127.0.0.1:{self.listener.port}", TIMEOUT_MS)
        while (accepted := self.listener.accept()) is None:
            pass
        held = accepted
        verdict = self.pool.submit(lambda: admit(held, MASTER, key, self.welcome, MasterLog()))
        return socket, verdict


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with ThreadPoolExecutor() as pool:
        yield Master(LinkListener("127.0.0.1:0", TIMEOUT_MS), pool, lambda identity, log: WELCOME)


def refusal(socket: LinkSocket) -> str:
    answer = handshake._receive(socket, handshake._WELCOME)
    assert isinstance(answer, Refused)
    return answer.reason


def test_a_replica_is_admitted_and_asks_for_the_stream(master: Master) -> None:
    socket, verdict = master.admit()
    welcome = introduce(socket, REPLICA, KEY, LOG)
    assert welcome == WELCOME
    assert [compare(socket, 10, 30), compare(socket, 0, 5)] == [20, 5]
    handshake.ask_to_follow(socket, 800, (4, 17))
    assert verdict.result() == (REPLICA, Follow(800, (4, 17)))


@pytest.mark.parametrize("key", [b"", b"another key"])
def test_a_replica_with_another_key_learns_nothing(master: Master, key: bytes) -> None:
    socket, verdict = master.admit()
    with pytest.raises(LinkRefused, match="does not hold this group's key") as caught:
        introduce(socket, REPLICA, key, LOG)
    assert "--cluster-key" in caught.value.hint
    socket.close()
    with pytest.raises((LinkRefused, OSError)):
        verdict.result()


def test_a_replica_that_ignores_the_masters_proof_must_prove_itself(master: Master) -> None:
    socket, verdict = master.admit()
    handshake._send(socket, handshake.Hello(handshake.VERSION, REPLICA, "00", LOG))
    challenge = handshake._receive(socket, handshake._CHALLENGE)
    assert isinstance(challenge, handshake.Challenge)
    # The master's own proof, reflected.
    handshake._send(socket, handshake.Proof(challenge.proof))
    assert refusal(socket) == "it does not hold this group's key (--cluster-key)"
    with pytest.raises(LinkRefused, match="node 2 does not hold this group's key"):
        verdict.result()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cluster": "other"}, "cluster is 'other'"),
        ({"group": "broker-b"}, "broker name is 'broker-b'"),
        ({"node_id": 1}, "node id 1 is taken"),
    ],
)
def test_a_stranger_is_refused_with_the_reason(
    master: Master, change: dict[str, str | int], complaint: str
) -> None:
    socket, verdict = master.admit()
    with pytest.raises(LinkRefused, match=complaint):
        introduce(socket, msgspec.structs.replace(REPLICA, **change), KEY, LOG)
    with pytest.raises(LinkRefused, match=complaint):
        verdict.result()


def test_another_version_is_refused(master: Master) -> None:
    socket, verdict = master.admit()
    handshake._send(socket, handshake.Hello(99, REPLICA, "00", LOG))
    assert "speaks version 99" in refusal(socket)
    with pytest.raises(LinkRefused):
        verdict.result()


def test_a_starting_master_asks_for_the_records_that_it_lacks() -> None:
    seen: list[tuple[Identity, OwnLog]] = []

    def ask(peer: Identity, log: OwnLog) -> SendTail:
        seen.append((peer, log))
        return SendTail(700, (1, 3))

    with ThreadPoolExecutor() as pool:
        starting = Master(LinkListener("127.0.0.1:0", TIMEOUT_MS), pool, ask)
        socket, verdict = starting.admit()
        assert introduce(socket, REPLICA, KEY, LOG) == SendTail(700, (1, 3))
        assert verdict.result() == (REPLICA, SendTail(700, (1, 3)))
    assert seen == [(REPLICA, LOG)]


def test_closing_a_socket_ends_a_read_that_waits() -> None:
    listener = LinkListener("127.0.0.1:0", TIMEOUT_MS)
    socket = LinkSocket.connect(f"127.0.0.1:{listener.port}", TIMEOUT_MS)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(socket.receive, 1)
        while not reading.running():
            threading.Event().wait(0.001)
        socket.close()
        with pytest.raises(OSError):
            reading.result(TIMEOUT_MS / 2000)


def test_a_master_may_refuse_a_node_that_holds_the_key() -> None:
    with ThreadPoolExecutor() as pool:
        strict = Master(LinkListener("127.0.0.1:0", TIMEOUT_MS), pool, lambda *_: Refused("it was removed"))
        socket, verdict = strict.admit()
        with pytest.raises(LinkRefused, match="it was removed"):
            introduce(socket, REPLICA, KEY, LOG)
        with pytest.raises(LinkRefused, match="node 2 is refused: it was removed"):
            verdict.result()


def test_a_master_verifies_and_sends_parts_of_its_log(master: Master) -> None:
    socket, verdict = master.admit()
    introduce(socket, REPLICA, KEY, LOG)
    assert verify(socket, 0, 800) == [(700, 750)]
    assert verify(socket, 0, 700) == []
    assert verify(socket, 0, 1000) is None
    assert fetch(socket, 700, 750) == b"x" * 16
    assert fetch(socket, 900, 950) is None
    ask_to_follow(socket, 800, (4, 7))
    assert verdict.result() == (REPLICA, Follow(800, (4, 7)))


def test_a_replica_may_compare_its_log_and_leave(master: Master) -> None:
    socket, verdict = master.admit()
    introduce(socket, REPLICA, KEY, LOG)
    assert compare(socket, 10, 30) == 20
    socket.close()
    with pytest.raises(LinkDone, match="node 2 has compared its log"):
        verdict.result()


def test_a_replica_that_leaves_without_a_question_is_refused(master: Master) -> None:
    socket, verdict = master.admit()
    introduce(socket, REPLICA, KEY, LOG)
    socket.close()
    with pytest.raises(OSError, match="closed"):
        verdict.result()


def test_a_master_of_an_older_version_does_not_say_that_it_verifies() -> None:
    words = msgspec.json.decode(msgspec.json.encode(WELCOME))
    del words["verifies"]
    assert not msgspec.json.decode(msgspec.json.encode(words), type=Welcome).verifies


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=300))
def test_noise_ends_the_handshake(master: Master, noise: bytes) -> None:
    socket, verdict = master.admit()
    socket.send(noise)
    socket.close()
    with pytest.raises((LinkRefused, OSError)):
        verdict.result()


def test_a_deeply_nested_message_ends_the_handshake(master: Master) -> None:
    socket, verdict = master.admit()
    message = b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    socket.send(len(message).to_bytes(4, "big") + message)
    with pytest.raises(LinkRefused, match="nested too deep"):
        verdict.result()


@pytest.mark.parametrize("field", ["version", "epoch", "epochs", "end_offset"])
def test_a_number_beyond_its_range_is_refused(master: Master, field: str) -> None:
    socket, verdict = master.admit()
    hello = msgspec.json.encode(handshake.Hello(handshake.VERSION, REPLICA, "00", LOG))
    numbers = {"version": b"1", "epoch": b"4", "epochs": b"[[1,0]]", "end_offset": b"800"}
    huge = b"[[1,36893488147419103232]]" if field == "epochs" else b"36893488147419103232"
    name = f'"{field}":'.encode()
    assert name + numbers[field] in hello
    message = hello.replace(name + numbers[field], name + huge)
    socket.send(len(message).to_bytes(4, "big") + message)
    with pytest.raises(LinkRefused, match="does not speak the replication protocol"):
        verdict.result()


def test_a_huge_message_is_not_read(master: Master) -> None:
    socket, verdict = master.admit()
    socket.send(b"\xff\xff\xff\xff")
    with pytest.raises(LinkRefused, match="limit is 1048576"):
        verdict.result()


def test_a_silent_peer_does_not_hold_a_thread_for_ever() -> None:
    listener = LinkListener("127.0.0.1:0", 50)
    socket = LinkSocket.connect(f"127.0.0.1:{listener.port}", TIMEOUT_MS)
    while (accepted := listener.accept()) is None:
        threading.Event().wait(0.001)
    with pytest.raises(TimeoutError):
        admit(accepted, MASTER, KEY, lambda *_: WELCOME, MasterLog())
    socket.close()
