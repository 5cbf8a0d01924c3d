"""The trace topic as our client writes it, read by Apache's own decoder and by mqadmin."""

from __future__ import annotations

from typing import Any

import pytest

import metaq
from tests.interop.clients import Clients, unique
from tests.interop.kinds import java_id
from tests.support.reading import stored
from tests.support.servers import uses_apache
from tests.support.waiting import eventually

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.mark.parametrize("java_kind", [("5.5.0", "json")], ids=java_id, indirect=True, scope="session")
def test_apache_reads_our_traces(java: Clients) -> None:
    topic, group = java.topic(queues=1), unique("G")
    handled: list[str] = []

    def handle(message: metaq.Message) -> None:
        handled.append(message.id)
        if message.body == b"bad":
            raise metaq.Reject

    with metaq.Client(java.cluster.namesrv, trace_topic=True) as client:
        producer = client.producer("traced")
        producer.start()
        producer.check(lambda message: True)
        good = producer.send(topic, b"good", tag="T", keys=["k1", "k2"]).id
        bad = producer.send(topic, b"bad").id
        with producer.transaction(topic, b"paid", keys=["k3"]) as transaction:
            paid = transaction.id
        delayed = producer.send(topic, b"later", delay=3600)
        later = delayed.id
        # Apache's broker refuses recalls unless they are switched on.
        recalled = [] if uses_apache() else [producer.recall(topic, delayed.recall_handle)]
        client.consumer(topic, group=group, start="earliest")(handle)
        eventually(lambda: set(handled), lambda found: found == {good, bad, paid}, 90, "all messages")

    entries = [
        entry for message in stored(java.cluster.namesrv, TRACE_TOPIC) for entry in decoded(java, message)
    ]
    ours = {
        (entry["type"], entry["id"]): entry for entry in entries if entry["id"] in (good, bad, paid, later)
    }
    assert set(ours) == {
        *(("Pub", message_id) for message_id in (good, bad, paid, later)),
        *((kind, message_id) for kind in ("SubBefore", "SubAfter") for message_id in (good, bad, paid)),
        ("EndTransaction", paid),
        *(("Recall", message_id) for message_id in recalled),
    }
    assert recalled in ([], [later])
    for message_id in recalled:
        recall = ours["Recall", message_id]
        assert (recall["topic"], recall["group"], recall["success"]) == (topic, "traced", True)
    pub = ours["Pub", good]
    broker = java.cluster.brokers["broker-a"].address
    assert (pub["group"], pub["topic"], pub["tags"], pub["keys"]) == ("traced", topic, "T", "k1 k2")
    assert (pub["store_host"], pub["body_bytes"], pub["success"]) == (broker, 4, True)
    assert (pub["region"], len(pub["offset_id"])) == ("DefaultRegion", 32)
    kinds = {message_id: ours["Pub", message_id]["message_type"] for message_id in (good, paid, later)}
    assert kinds == {good: "Normal_Msg", paid: "Trans_Msg_Half", later: "Delay_Msg"}
    for message_id, success, code in ((good, True, 0), (bad, False, 4), (paid, True, 0)):
        before, after = ours["SubBefore", message_id], ours["SubAfter", message_id]
        assert (before["group"], before["retries"], before["region"]) == (group, 0, "DefaultRegion")
        assert (after["group"], after["success"], after["context_code"]) == (group, success, code)
        assert before["request_id"] == after["request_id"]
    end = ours["EndTransaction", paid]
    assert (end["transaction_state"], end["from_check"], end["keys"]) == ("COMMIT_MESSAGE", False, "k3")
    assert (end["message_type"], end["topic"], end["group"]) == ("Trans_msg_Commit", topic, "traced")
    assert end["store_host"] == broker

    def printed() -> str:
        line = f"queryMsgTraceById -i {good} -n {java.cluster.namesrv}"
        outcome: dict[str, Any] = java.driver.call("mqadmin", arguments=line.split())
        return str(outcome["printed"])

    found = eventually(printed, lambda text: "Pub" in text and group in text, 90, "the trace by mqadmin")
    assert "success" in found
    assert "traced" in found


def decoded(java: Clients, message: metaq.Message) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = java.driver.call("decode_trace", data=message.body.decode())
    return entries
