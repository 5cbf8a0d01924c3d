"""Only the broker writes the state that it trusts: attacks on its own offsets, followed by a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    Reply,
    create_topic,
    pull,
    queue_end,
    read_queue,
    send_fields,
    stored_records,
)
from tests.support.serving import SMALL_FILES, Serving

TOPIC = "payments"
HALF_TOPIC, DONE_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
NO_PERMISSION, INVALID_PARAMETER = 16, 29
QUERY_MESSAGE = 12
UPDATE_CONSUMER_OFFSET, HEART_BEAT, SEND_BACK, END_TRANSACTION, LOCK = 15, 34, 36, 37, 41
VIEW, UPDATE_GROUP, RESET, CLONE = 33, 200, 222, 314
QUERY_CONSUME_QUEUE = 321
PREPARED, COMMIT = 4, 8
SETTINGS = {**SMALL_FILES, "offsets_persist_interval_s": 0.1}


def begin_transaction(client: PlainClient, body: bytes) -> Reply:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01fault_sender\x02UNIQ_KEY\x01K{body.decode()}\x02"
    fields = send_fields(TOPIC, 0, properties) | {"f": str(PREPARED)}
    reply = client.call(SEND_MESSAGE_V2, fields, body)
    assert reply.code == SUCCESS, reply
    return reply


def commit_transaction(client: PlainClient, half: Reply) -> Reply:
    fields = {
        "producerGroup": "fault_sender",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "false",
        "msgId": "",
    }
    return client.call(END_TRANSACTION, fields)


def commit_offset(client: PlainClient, group: str, topic: str, queue_offset: int, queue_id: int = 0) -> Reply:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(queue_offset),
    }
    return client.call(UPDATE_CONSUMER_OFFSET, fields)


def test_an_open_transaction_survives_an_attack_on_the_brokers_offsets(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Serving(tmp_path / "first", data, settings=SETTINGS) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, 1).code == SUCCESS
            halves = [begin_transaction(client, body) for body in (b"1", b"2", b"3")]
            for topic in (HALF_TOPIC, DONE_TOPIC):
                end = queue_end(client, topic, 0)
                refused = commit_offset(client, TRANSACTION_GROUP, topic, end)
                assert (refused.code, "broker's own" in refused.remark) == (NO_PERMISSION, True)
            for refused in other_attacks(client, halves[0]):
                assert (refused.code, "broker's own" in refused.remark) == (NO_PERMISSION, True), refused
        broker.kill()
    with Serving(tmp_path / "second", data, settings=SETTINGS) as broker:
        with broker.connect() as client:
            answers = [commit_transaction(client, half).code for half in halves]
            assert answers == [SUCCESS] * 3, "the transactions are open, and their commits are accepted"
            assert [record.body for record in read_queue(client, TOPIC, 0)] == [b"1", b"2", b"3"]
        assert broker.stop() == 0


def other_attacks(client: PlainClient, half: Reply) -> list[Reply]:
    """Every other request that would move the broker's offsets or show a half message."""
    physical_offset = str(int(half.fields["msgId"][-16:], 16))
    group, heartbeat = (
        TRANSACTION_GROUP,
        {"clientID": "x", "consumerDataSet": [{"groupName": TRANSACTION_GROUP}]},
    )
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": HALF_TOPIC}
    lock = {"clientId": "x", "consumerGroup": group, "mqSet": [queue]}
    reset = {"topic": HALF_TOPIC, "group": group, "timestamp": "-1", "isForce": "true"}
    clone = {"srcGroup": "fault_checker", "destGroup": group, "topic": HALF_TOPIC, "offline": "true"}
    lines = {"topic": HALF_TOPIC, "queueId": "0", "index": "0", "count": "10", "consumerGroup": ""}
    return [
        client.call(HEART_BEAT, {}, json.dumps(heartbeat).encode()),
        client.call(LOCK, {}, json.dumps(lock).encode()),
        client.call(RESET, reset),
        client.call(CLONE, clone),
        client.call(UPDATE_GROUP, {}, json.dumps({"groupName": group}).encode()),
        client.call(SEND_BACK, {"offset": physical_offset, "group": group, "delayLevel": "0"}),
        client.call(SEND_BACK, {"offset": physical_offset, "group": "TOOLS_CONSUMER", "delayLevel": "0"}),
        client.call(VIEW, {"offset": physical_offset}),
        client.call(QUERY_CONSUME_QUEUE, lines),
        pull(client, HALF_TOPIC, 0, 0),
        pull(client, DONE_TOPIC, 0, 0),
        commit_offset(client, "fault_checker", HALF_TOPIC, 0),
    ]


@pytest.mark.parametrize(
    ("topic", "queue", "delay"),
    [("SCHEDULE_TOPIC_XXXX", 17, {"DELAY": "18"}), ("rmq_sys_wheel_timer", 0, {"TIMER_DELAY_SEC": "3600"})],
)
def test_a_message_is_not_read_before_its_time(
    tmp_path: Path, topic: str, queue: int, delay: dict[str, str]
) -> None:
    waits = "".join(f"{name}\x01{value}\x02" for name, value in delay.items())
    with Serving(tmp_path / "home", tmp_path / "data", settings=SETTINGS) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, 1).code == SUCCESS
            fields = send_fields(TOPIC, 0, f"UNIQ_KEY\x01U1\x02KEYS\x01k\x02{waits}")
            sent = client.call(SEND_MESSAGE_V2, fields, b"later")
            assert sent.code == SUCCESS
            offset = str(int(sent.fields["msgId"][-16:], 16))
            lines = {"topic": topic, "queueId": str(queue), "index": "0", "count": "10", "consumerGroup": ""}
            key = {"topic": topic, "key": "k", "maxNum": "32", "beginTimestamp": "0"}
            key["endTimestamp"] = str(2**62)
            for refused in (
                pull(client, topic, queue, 0),
                commit_offset(client, "fault_checker", topic, 0, queue),
                client.call(QUERY_CONSUME_QUEUE, lines),
                client.call(QUERY_MESSAGE, key),
                client.call(SEND_BACK, {"offset": offset, "group": "TOOLS_CONSUMER", "delayLevel": "0"}),
            ):
                assert (refused.code, "broker's own" in refused.remark) == (NO_PERMISSION, True), refused
            seen = client.call(VIEW, {"offset": offset})
            assert seen.code == SUCCESS, "queryMsgById of Apache's tools shows where a message is"
            assert [record.body for record in stored_records(seen.body)] == [b"later"]
        assert broker.stop() == 0


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"])
def test_tools_still_read_the_other_system_topics(tmp_path: Path, topic: str) -> None:
    with Serving(tmp_path / "home", tmp_path / "data", settings=SETTINGS) as broker:
        with broker.connect() as client:
            reply = pull(client, topic, 0, 0)
            assert reply.code not in (NO_PERMISSION, INVALID_PARAMETER), reply
        assert broker.stop() == 0


def test_offsets_of_queues_that_do_not_exist_take_no_disk(tmp_path: Path) -> None:
    """Two million such offsets once took 230 MB of memory, and 19 MB of disk every five seconds."""
    data = tmp_path / "data"
    with Serving(tmp_path / "home", data, settings=SETTINGS) as broker:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, 4).code == SUCCESS
            assert commit_offset(client, "TOOLS_CONSUMER", TOPIC, 0, 3).code == SUCCESS
            refusals = [commit_offset(client, "TOOLS_CONSUMER", TOPIC, 0, queue) for queue in range(4, 1_004)]
            assert {reply.code for reply in refusals} == {INVALID_PARAMETER}
            assert "which has 4 queues" in refusals[0].remark
            beyond = commit_offset(client, "TOOLS_CONSUMER", TOPIC, 1 << 62)
            assert (beyond.code, "beyond the end" in beyond.remark) == (INVALID_PARAMETER, True)
        assert broker.stop() == 0
    journal = b"".join(
        path.read_bytes() for path in data.rglob("*") if "journal" in str(path) and path.is_file()
    )
    assert f"{TOPIC}@TOOLS_CONSUMER@0".encode() in journal
    assert f"{TOPIC}@TOOLS_CONSUMER@1".encode() not in journal
