"""Clients that lie: forged offsets, records, identities, versions and times."""

from __future__ import annotations

import os
import struct
import time
from contextlib import ExitStack, suppress

from tests.support.hostile.target import (
    LINGER_S,
    Deceived,
    Target,
    answers,
    compressed,
    json_body,
    refuse_all,
)
from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    create_topic,
    frame,
    pull,
    queue_end,
    send,
    send_fields,
)

UPDATE_CONSUMER_OFFSET, VIEW_MESSAGE, HEART_BEAT, SEND_BACK = 15, 33, 34, 36
PUT_KV, REGISTER_BROKER, UNREGISTER_BROKER, GET_ROUTE, SEND_REPLY = 100, 103, 104, 105, 325
DELETE_TOPIC_IN_NAMES = 216
TOPIC = "hostile_forged"
QUEUES = 4
BODY_AT = 88
"""The place of the body in a record, with addresses of four bytes."""
HALF_TOPIC, TRANSACTION_GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
PREPARED = 4
YEARS_68_S = 2**31 - 1
_GUESSES = 10


def commit_for_the_broker(target: Target) -> None:
    """Commits for the group by which the broker knows its open transactions."""
    with target.connect() as client:
        end = queue_end(client, HALF_TOPIC, 0)
        commit = _commit(TRANSACTION_GROUP, HALF_TOPIC, 0, end)
        refuse_all(answers(client, [commit] * target.count(100)), "an offset of the broker's own group")


def commit_absurd_queues(target: Target) -> None:
    """Commits for two million queues of a topic that has four."""
    with target.connect() as client:
        _made(client)
        last = QUEUES + target.count(2_000_000)
        commits = (_commit("TOOLS_CONSUMER", TOPIC, queue, 0) for queue in range(QUEUES, last))
        refuse_all(answers(client, commits), "an offset of a queue that does not exist")


def immune_half_messages(target: Target) -> None:
    """Half messages that ask to be left alone for 68 years."""
    properties = (
        f"TRAN_MSG\x01true\x02PGROUP\x01hostile\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{YEARS_68_S}\x02"
    )
    with target.connect() as client:
        _made(client)
        fields = send_fields(TOPIC, 0, properties, group="hostile") | {"f": str(PREPARED)}
        fields["g"] = str(int(time.time() * 1000))  # One that was born long ago is given up at once.
        answers(client, (frame(SEND_MESSAGE_V2, fields, b"half") for _ in range(target.count(2_000))))


def forged_record(target: Target) -> None:
    """The body of a message holds the image of a record, which is then asked for and taken back."""
    with target.connect() as client:
        _made(client)
        sent_at = _sent_offset(client, b"sound")
        image = bytearray(pull(client, TOPIC, 0, queue_end(client, TOPIC, 0) - 1, 1).body)
        size, next_size = len(image), 2 * len(image) - len(b"sound")
        for _ in range(_GUESSES):
            expected = sent_at + size
            struct.pack_into(">q", image, 28, expected + BODY_AT)
            sent_at, size = _sent_offset(client, bytes(image)), next_size
            if sent_at == expected:
                break  # Nobody else sent in between.
        inner = str(sent_at + BODY_AT)
        send_back = {"offset": inner, "group": "TOOLS_CONSUMER", "delayLevel": "0"}
        asked = [frame(VIEW_MESSAGE, {"offset": inner}), frame(SEND_BACK, send_back)]
        refuse_all(answers(client, asked), "a record inside the body of another one")


def many_tries(target: Target) -> None:
    """A message claims 2,147,483,647 tries and is given back: that must be possible."""
    with target.connect() as client:
        _made(client)
        fields = send_fields(TOPIC, 0, f"RECONSUME_TIME\x01{2**31 - 1}\x02") | {"j": str(2**31 - 1)}
        reply = client.call(SEND_MESSAGE_V2, fields, b"tired")
        offset = str(int(reply.fields["msgId"][-16:], 16))
        back = {"offset": offset, "group": "TOOLS_CONSUMER", "delayLevel": "0", "originTopic": TOPIC}
        answer = client.call(SEND_BACK, back)
        if answer.code != SUCCESS:
            raise Deceived(f"a message with many tries cannot be given back: {answer.code} {answer.remark}")


def steal_identity(target: Target, client_id: str = "healthy", group: str = "healthy") -> None:
    """Heartbeats with the client id of another client, which must stay in its group and get its replies."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [],
    }
    producer = {"groupName": "hostile"}
    data = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [producer]}
    properties = f"REPLY_TO_CLIENT\x01{client_id}\x02"
    reply = send_fields("DefaultCluster_REPLY_TOPIC", 0, properties, group="hostile")
    for _ in range(target.count(20)):
        with target.connect() as client, target.connect() as server:
            client.call(HEART_BEAT, {}, json_body(data))
            server.write(frame(SEND_REPLY, reply, b"secret"))
            server.socket.settimeout(LINGER_S)
            with suppress(TimeoutError):
                server.read_reply()
            client.socket.setblocking(False)
            with suppress(BlockingIOError):
                if b"secret" in client.socket.recv(1 << 16):
                    raise Deceived("the reply to another client came here")


def take_over_routes(target: Target) -> None:
    """Registers the name of the living broker with versions and times that cannot be true."""
    claims = ((2**62, 2**63 - 1, 2**62), (1, 2**63 - 1, 1), (0, None, None))
    with target.ask_names() as names:
        for epoch, timeout_ms, counter in claims:
            fields = _registration_fields("broker-a", "127.0.0.1:666")
            if timeout_ms is not None:
                fields["heartbeatTimeoutMillis"] = str(timeout_ms)
            body = _registration_body(["TBW102", "broker-a"], epoch, counter or 0)
            refuse_all(answers(names, [frame(REGISTER_BROKER, fields, body)]), "a living broker's name")
        fields = _registration_fields("broker-a", target.broker)
        refuse_all(answers(names, [frame(UNREGISTER_BROKER, fields)]), "the end of a living broker")
        deletion = frame(DELETE_TOPIC_IN_NAMES, {"topic": "TBW102"})
        refuse_all(answers(names, [deletion]), "the end of a system topic")
        # Every broker has a topic of its own name. It may have taken TBW102 out of the routes itself, because
        # the generated requests switch `autoCreateTopicEnable` off.
        found = names.call(GET_ROUTE, {"topic": "broker-a"})
        if b"127.0.0.1:666" in found.body or target.broker.encode() not in found.body:
            raise Deceived(
                f"the route of the broker was taken over: {found.code} {found.remark} {found.body!r}"
            )


def flood_registrations(target: Target) -> None:
    """Six brokers that do not exist register 100,000 topics each."""
    count = target.count(100_000)
    with ExitStack() as connections:
        # One connection registers one broker.
        liars = [connections.enter_context(target.ask_names()) for _ in range(6)]
        for number, names in enumerate(liars):
            topics = [f"{'x' * 60}-{os.getpid()}-{number}-{topic}" for topic in range(count)]
            fields = _registration_fields(f"flood-{number}", f"127.0.0.1:{number + 1}")
            data = compressed(_registration_body(topics, 0, 1))
            answers(names, [frame(REGISTER_BROKER, fields | {"compressed": "true"}, data)])
        for number, names in enumerate(liars):
            fields = _registration_fields(f"flood-{number}", f"127.0.0.1:{number + 1}")
            names.call(UNREGISTER_BROKER, fields)


def fill_values(target: Target) -> None:
    """Fills the name server's table of values and then changes one of them 200 times."""
    with target.ask_names() as names:
        value = "v" * 60_000
        keys = range(target.count(280))
        answers(names, (_put(f"k{number}", value) for number in keys))
        answers(names, (_put("changed", str(number)) for number in range(target.count(200))))
        answers(names, (frame(102, {"namespace": "hostile", "key": f"k{number}"}) for number in keys))


def _put(key: str, value: str) -> bytes:
    return frame(PUT_KV, {"namespace": "hostile", "key": key, "value": value})


def _registration_fields(name: str, address: str) -> dict[str, str]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": "127.0.0.1:1",
        "compressed": "false",
        "bodyCrc32": "0",
    }


def _registration_body(topics: list[str], epoch: int, counter: int) -> bytes:
    config = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    table = {topic: {"topicName": topic, **config} for topic in topics}
    version = {"stateVersion": epoch, "timestamp": 1, "counter": counter}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    return json_body({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})


def _commit(group: str, topic: str, queue_id: int, queue_offset: int) -> bytes:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(queue_offset),
    }
    return frame(UPDATE_CONSUMER_OFFSET, fields)


def _made(client: PlainClient) -> None:
    if (reply := create_topic(client, TOPIC, QUEUES)).code != SUCCESS:
        raise RuntimeError(f"topic {TOPIC}: {reply.code} {reply.remark}")


def _sent_offset(client: PlainClient, body: bytes) -> int:
    """Sends a message and returns where in the commit log it is."""
    reply = send(client, TOPIC, 0, body)
    if reply.code != SUCCESS:
        raise RuntimeError(f"{TOPIC}: {reply.code} {reply.remark}")
    return int(reply.fields["msgId"][-16:], 16)
