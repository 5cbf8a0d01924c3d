"""Hostile input closes its connection or is refused with a reason; no other client notices."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from bench.process_figures import memory_bytes
from tests.support.plain_client import (
    PULL_MESSAGE,
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    Reply,
    ServerClosed,
    create_topic,
    frame,
    pull,
    read_queue,
    send,
    send_fields,
)
from tests.support.rounds import seeded
from tests.support.serving import KIB, MIB, SMALL_FILES, Serving
from tests.support.waiting import wait_until

TOPIC = "bad_input"
FRAME_DEADLINE_MS = 1_000
CONNECTIONS_PER_ADDRESS_MAX = 300
FRAME_BYTES_MAX = 16 * MIB
MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE, NO_PERMISSION = 13, 14, 16
REQUEST_CODE_NOT_SUPPORTED = 3
CLOSE_TIMEOUT_S = 60
HELD_OPEN = ("01", "08")
"""TCP states in which the server has a descriptor: ESTABLISHED and CLOSE_WAIT."""
QUEUE_FILE_ENTRIES = int(str(SMALL_FILES["consume_queue_file_entries"]))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("bad_input")
    settings = {
        **SMALL_FILES,
        "commit_log_file_bytes": 16 * MIB,
        "frame_deadline_ms": FRAME_DEADLINE_MS,
        "connections_per_address_max": CONNECTIONS_PER_ADDRESS_MAX,
    }
    with Serving(home, home / "data", flush="async", settings=settings) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, 2).code == SUCCESS
            assert send(client, TOPIC, 0, b"first").code == SUCCESS
        yield broker
        assert broker.stop() == 0


@pytest.fixture
def witness(served: Serving) -> Iterator[PlainClient]:
    """An honest connection that must survive everything the test does beside it."""
    with served.connect() as client:
        assert send(client, TOPIC, 0, b"before").code == SUCCESS
        yield client
        assert send(client, TOPIC, 0, b"after").code == SUCCESS
        assert read_queue(client, TOPIC, 0)[-1].body == b"after"


@pytest.fixture(params=["broker", "nameserver"])
def address(request: pytest.FixtureRequest, served: Serving) -> str:
    found: str = getattr(served, request.param)
    return found


# ---------------------------------------------------------------------------------------------------- frames


def _header(data: bytes, kind: int = 0, body: bytes = b"") -> bytes:
    """Returns a frame around any header bytes."""
    return struct.pack(">II", 4 + len(data) + len(body), kind << 24 | len(data)) + data + body


NO_FRAMES: dict[str, bytes] = {
    "longer than 16 MiB": struct.pack(">I", FRAME_BYTES_MAX + 1),
    "as long as an int can say": struct.pack(">I", 0x7FFFFFFF),
    "of length -1": struct.pack(">i", -1),
    "of the lowest length": struct.pack(">i", -(1 << 31)),
    "of length 0": struct.pack(">II", 0, 0),
    "of length 3": struct.pack(">I", 3) + b"abcd",
    "with a header past its end": struct.pack(">II", 100, 97) + bytes(96),
    "with a header of 16 MiB in 100 bytes": struct.pack(">II", 100, 0xFFFFFF) + bytes(96),
    "of an unknown encoding": _header(b'{"code":105}', kind=7),
    "a web request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "all ones": b"\xff" * 4096,
    "with a header that is not JSON": _header(b"{nonsense"),
    "with a header that is not an object": _header(b"[1,2,3]"),
    "with a header that is not text": _header(b"\xfe\xff\xfd" * 10),
    "with an empty header": _header(b""),
    "with a header nested 100,000 deep": _header(b'{"code":10,"x":' + b"[" * 100_000 + b"}"),
    "with a code that is a text": _header(b'{"code":"many","opaque":1,"flag":0}'),
    "with a code past any integer": _header(b'{"code":' + b"9" * 400 + b',"opaque":1,"flag":0}'),
    "with a binary header cut short": _header(bytes(10), kind=1),
    "with a binary remark past its header": _header(
        struct.pack(">hBhiii", 10, 0, 513, 1, 0, 0x7FFFFFFF) + bytes(4), kind=1
    ),
    "with binary fields of negative length": _header(
        struct.pack(">hBhiiii", 10, 0, 513, 1, 0, 0, -5), kind=1
    ),
    "with a binary field past its block": _header(
        struct.pack(">hBhiiii", 10, 0, 513, 1, 0, 0, 6) + struct.pack(">hi", 30_000, 1), kind=1
    ),
}


@pytest.mark.parametrize("what", NO_FRAMES)
def test_an_invalid_frame_closes_its_connection(address: str, witness: PlainClient, what: str) -> None:
    with PlainClient(address) as client:
        client.write(NO_FRAMES[what])
        assert client.closed_by_server(CLOSE_TIMEOUT_S), f"a frame {what} left the connection open"


def test_random_bytes_harm_nobody(address: str, witness: PlainClient) -> None:
    choice = seeded()
    sound = frame(SEND_MESSAGE_V2, send_fields("random", 0), b"x" * 50, opaque=1)
    for _ in range(150):
        with PlainClient(address) as client:
            data = bytearray(sound if choice.random() < 0.7 else choice.randbytes(200))
            for _ in range(choice.randrange(1, 8)):
                data[choice.randrange(len(data))] = choice.randrange(256)
            try:
                client.write(bytes(data))
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(65536):
                    pass
            except (OSError, ServerClosed):
                pass


def test_a_promise_of_a_large_frame_reserves_no_memory(served: Serving, witness: PlainClient) -> None:
    before = memory_bytes(served.pid)["resident"]
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(served.connect())
            client.write(struct.pack(">II", FRAME_BYTES_MAX - 4, 1_000) + b" " * 1_000)
        wait_until(lambda: sum(unread for _, unread in _connections(served.broker)) == 0)
        assert memory_bytes(served.pid)["resident"] - before < 64 * MIB
    assert memory_bytes(served.pid)["resident"] - before < 64 * MIB


def test_many_bad_frames_leave_no_memory_behind(served: Serving, witness: PlainClient) -> None:
    before = memory_bytes(served.pid)["resident"]
    for _ in range(10):
        for data in NO_FRAMES.values():
            with served.connect() as client:
                client.write(data)
                client.closed_by_server(CLOSE_TIMEOUT_S)
    assert memory_bytes(served.pid)["resident"] - before < 32 * MIB


def test_trickled_bytes_meet_a_deadline(address: str, witness: PlainClient) -> None:
    data = frame(PULL_MESSAGE, {"topic": TOPIC}, opaque=1)
    with PlainClient(address) as slow, PlainClient(address) as silent:
        began = time.monotonic()
        with pytest.raises((ServerClosed, OSError)):
            for byte in data:
                slow.write(bytes([byte]))
                time.sleep(FRAME_DEADLINE_MS / 1000 / 20)
        assert time.monotonic() - began > FRAME_DEADLINE_MS / 1000 / 2
        # The deadline is for a frame that has begun: a silent client may stay.
        assert silent.call(9_999, {}).code == REQUEST_CODE_NOT_SUPPORTED


# --------------------------------------------------------------------------------------------------- limits


def _short(value: str) -> str:
    return ascii(value)[:24]


def _refused(reply: Reply, *words: str) -> None:
    assert reply.code in (MESSAGE_ILLEGAL, NO_PERMISSION), f"{reply.code} {reply.remark}"
    assert any(word in reply.remark for word in words), f"says neither of {words}: {reply.remark!r}"


def test_a_body_over_the_limit_is_refused_with_the_limit(witness: PlainClient) -> None:
    _refused(send(witness, TOPIC, 0, bytes(4 * MIB + 1)), str(4 * MIB), "4 MiB")
    assert send(witness, TOPIC, 1, bytes(4 * MIB)).code == SUCCESS


def test_a_batch_over_the_limit_is_refused_with_the_limit(witness: PlainClient) -> None:
    one = struct.pack(">IIIII", 22 + 100 * KIB, 0, 0, 0, 100 * KIB) + bytes(100 * KIB) + struct.pack(">H", 0)
    reply = witness.call(SEND_BATCH_MESSAGE, {**send_fields(TOPIC, 0), "m": "true"}, one * 50)
    _refused(reply, str(4 * MIB), "4 MiB")


def test_properties_over_the_limit_are_refused_with_the_limit(witness: PlainClient) -> None:
    _refused(send(witness, TOPIC, 0, b"x", "k\x01" + "v" * 32_767 + "\x02"), "32767", "32,767")
    assert send(witness, TOPIC, 1, b"x", "k\x01" + "v" * 20_000 + "\x02").code == SUCCESS


@pytest.mark.parametrize("topic", ["a b", "a/b", "../up", "a\x00b", "ü", "a.b", "x" * 128], ids=_short)
def test_a_bad_topic_is_refused_with_a_reason(witness: PlainClient, topic: str) -> None:
    reply = send(witness, topic, 0, b"x")
    _refused(reply, "topic")
    created = create_topic(witness, topic, 1)
    assert created.code != SUCCESS
    assert "topic" in created.remark.lower()


BAD_GROUPS = ["a b", "a/b", "ü", "", "g" * 256]


@pytest.mark.parametrize("group", BAD_GROUPS, ids=_short)
def test_a_bad_producer_group_is_refused_with_a_reason(witness: PlainClient, group: str) -> None:
    _refused(witness.call(SEND_MESSAGE_V2, send_fields(TOPIC, 0, group=group), b"x"), "group")


@pytest.mark.parametrize("group", BAD_GROUPS, ids=_short)
def test_a_bad_consumer_group_is_refused_with_a_reason(witness: PlainClient, group: str) -> None:
    pulled = witness.call(PULL_MESSAGE, _pull_fields(0, group=group))
    assert pulled.code != SUCCESS
    assert "group" in pulled.remark.lower()


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ],
)
def test_a_system_topic_takes_nothing_from_a_client(witness: PlainClient, topic: str) -> None:
    _refused(send(witness, topic, 0, b"x"), topic)


@pytest.mark.parametrize("code", [0, 8, 9_999, -1, 32_767, 2_147_483_647])
def test_an_unknown_code_is_answered(address: str, code: int) -> None:
    with PlainClient(address) as client:
        assert client.call(code, {}).code == REQUEST_CODE_NOT_SUPPORTED
        assert client.call(9_998, {}).code == REQUEST_CODE_NOT_SUPPORTED


# ------------------------------------------------------------------------------------------ valid but absurd


ABSURD_SENDS: dict[str, dict[str, str]] = {
    "no fields": {"b": ""},
    "a queue that is not there": {"e": "99"},
    "a queue below zero": {"e": "-7"},
    "a queue that is not a number": {"e": "first"},
    "a flag past any integer": {"f": "9" * 40},
    "properties that never end": {"i": "\x01\x01\x02\x02\x01"},
}


@pytest.mark.parametrize("what", ABSURD_SENDS)
def test_an_absurd_send_is_answered_and_stores_nothing_wrong(witness: PlainClient, what: str) -> None:
    reply = witness.call(SEND_MESSAGE_V2, {**send_fields(TOPIC, 0), **ABSURD_SENDS[what]}, b"absurd")
    if what != "properties that never end":
        # Apache takes a queue below zero as "any"; so may we.
        assert reply.code != SUCCESS or what == "a queue below zero"
        assert reply.remark or reply.code == SUCCESS


@pytest.mark.parametrize(
    "changes",
    [
        {"queueOffset": "-1"},
        {"queueOffset": str((1 << 63) - 1)},
        {"queueOffset": "x"},
        {"queueId": "99"},
        {"queueId": "-1"},
        {"maxMsgNums": str((1 << 31) - 1)},
        {"maxMsgNums": "0"},
        {"maxMsgNums": "-5"},
        {"suspendTimeoutMillis": str(-(1 << 63))},
        {"sysFlag": "-1"},
        {"subscription": "||||"},
        {"subscription": "a" * 30_000},
        {"commitOffset": "-9"},
        {"maxMsgBytes": "-1"},
    ],
    ids=lambda changes: "-".join(f"{name}={value[:12]}" for name, value in changes.items()),
)
def test_an_absurd_pull_is_answered(witness: PlainClient, changes: dict[str, str]) -> None:
    witness.call(PULL_MESSAGE, {**_pull_fields(0), **changes})


BATCHES: dict[str, bytes] = {
    "cut short": struct.pack(">IIIII", 500, 0, 0, 0, 5) + b"hello",
    "of negative size": struct.pack(">iIIII", -1, 0, 0, 0, 5) + b"hello" + b"\0\0",
    "with a body past its end": struct.pack(">IIIII", 27, 0, 0, 0, 0x7FFFFFFF) + b"hello" + b"\0\0",
    "with properties past its end": struct.pack(">IIIII", 27, 0, 0, 0, 5) + b"hello" + b"\xff\xff",
    "of size 0": bytes(64),
    "empty": b"",
    "with one byte too many": struct.pack(">IIIII", 27, 0, 0, 0, 5) + b"hello" + b"\0\0" + b"!",
}


@pytest.mark.parametrize("what", BATCHES)
def test_a_malformed_batch_is_refused_whole(witness: PlainClient, what: str) -> None:
    before = len(read_queue(witness, TOPIC, 1))
    good = struct.pack(">IIIII", 27, 0, 0, 0, 5) + b"hello" + b"\0\0"
    body = BATCHES[what] if what == "empty" else good + BATCHES[what]
    reply = witness.call(SEND_BATCH_MESSAGE, {**send_fields(TOPIC, 1), "m": "true"}, body)
    _refused(reply, "batch", "body", "empty")
    assert len(read_queue(witness, TOPIC, 1)) == before


# ---------------------------------------------------------------------------------------------- connections


def test_a_flood_from_one_address_is_capped(served: Serving, witness: PlainClient) -> None:
    with ExitStack() as stack:
        flood = [stack.enter_context(served.connect()) for _ in range(CONNECTIONS_PER_ADDRESS_MAX + 50)]
        refused = [client for client in flood if _is_closed(client)]
        assert 50 <= len(refused) <= 60
    _until_served(served)


def test_the_accept_loop_survives_a_lack_of_file_descriptors(served: Serving, witness: PlainClient) -> None:
    assert create_topic(witness, "lacking", 1).code == SUCCESS
    assert send(witness, "lacking", 0, b"first").code == SUCCESS
    refused: list[Reply] = []

    def is_refused() -> bool:
        refused.append(send(witness, "lacking", 0, b"on"))
        return refused[-1].code != SUCCESS

    with ExitStack() as stack:
        stack.enter_context(_few_descriptors(served))
        for _ in range(40):
            stack.enter_context(served.connect())
        # More than the queue's file holds. A call may fail once and then work: the second one counts.
        record = struct.pack(">IIIII", 27, 0, 0, 0, 5) + b"hello" + b"\0\0"
        full = witness.call(
            SEND_BATCH_MESSAGE, {**send_fields("lacking", 0), "m": "true"}, record * QUEUE_FILE_ENTRIES
        )
        assert full.code == SUCCESS
        wait_until(is_refused)
        assert len(refused) > 1
        assert refused[-1].code == SERVICE_NOT_AVAILABLE
        assert "Too many open files" in refused[-1].remark
        assert "full" not in refused[-1].remark
        assert pull(witness, TOPIC, 0, 0).code == SUCCESS
        assert pull(witness, "lacking", 0, 0).code == SUCCESS
    _until_served(served)
    wait_until(lambda: send(witness, "lacking", 0, b"again").code == SUCCESS)
    assert read_queue(witness, "lacking", 0)[-1].body == b"again"


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _connections(address: str) -> list[tuple[str, int]]:
    """Returns state and unread bytes of every connection that the server at this address has open."""
    local = f"{ip_address('127.0.0.1').packed[::-1].hex()}:{int(address.rpartition(':')[2]):04X}".upper()
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        (row[3], int(row[4].rpartition(":")[2], 16))
        for row in rows
        if row[1] == local and row[3] in HELD_OPEN
    ]


@contextmanager
def _few_descriptors(served: Serving) -> Iterator[None]:
    """Inside, the process can open five more files and no others."""
    # Connections of earlier tests must be closed first: they would free more than five descriptors.
    wait_until(lambda: len(_connections(served.broker)) == 1, what="the witness as the only client")
    wait_until(lambda: len(_connections(served.nameserver)) <= 1, what="the broker as the only client")
    limits = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (_open_files(served.pid) + 5, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(served.pid, resource.RLIMIT_NOFILE, limits)


def _is_closed(client: PlainClient) -> bool:
    try:
        return client.call(9_999, {}).code != REQUEST_CODE_NOT_SUPPORTED
    except (ServerClosed, OSError):
        return True


def _until_served(served: Serving) -> None:
    def answers() -> bool:
        with served.connect() as client:
            return not _is_closed(client)

    wait_until(answers)


# ------------------------------------------------------------------------------------------------- overload


def test_a_reader_that_never_reads_costs_little(served: Serving, witness: PlainClient) -> None:
    """It asks for megabytes again and again and reads none: the broker stops reading and does not grow."""
    for _ in range(8):
        assert send(witness, TOPIC, 1, bytes(MIB)).code == SUCCESS
    end = len(read_queue(witness, TOPIC, 1))
    before = memory_bytes(served.pid)["own"]
    request = frame(PULL_MESSAGE, _pull_fields(end - 1, queue_id=1), opaque=1)
    with served.connect(timeout_s=2) as greedy:
        try:
            for _ in range(3_000):
                greedy.write(request)
        except (TimeoutError, ServerClosed):
            pass
        assert memory_bytes(served.pid)["own"] - before < 256 * MIB
        assert pull(witness, TOPIC, 0, 0).code == SUCCESS


def _pull_fields(queue_offset: int, *, group: str = "pullers", queue_id: int = 0) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "100",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
