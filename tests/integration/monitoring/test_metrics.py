"""The pages for monitoring of a running MetaQ, and its metrics beside those of an Apache broker."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import metaq
from metaq.admin import Admin
from tests.support.metaq import Metaq
from tests.support.processes import free_port
from tests.support.waiting import wait_until

Families: TypeAlias = dict[str, Metric]

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
APACHE = Path(__file__).with_name("rocketmq-5.5.0-metrics.txt")
NOT_HERE = {
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "there is no pop yet",
    "rocketmq_pop_checkpoint_buffer_size": "there is no pop yet",
    "rocketmq_pop_offset_buffer_size": "there is no pop yet",
    "rocketmq_pop_revive_lag_milliseconds": "there is no pop yet",
    "rocketmq_pop_revive_latency_milliseconds": "there is no pop yet",
    "rocketmq_processor_watermark": "there are no pools of threads that requests wait for",
    "rocketmq_consumer_group_create_execution_time_milliseconds": "a request like others",
    "rocketmq_timer_dequeue_lag": "what is due is delivered at once; how late it is says dequeue_latency",
}


def get(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def scrape(server: Metaq) -> Families:
    status, text = get(server.ready["metrics"], "/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: Families, name: str, **labels: str) -> float | None:
    """The sum of the series with these labels; None if there is none."""
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def test_names_types_and_labels_are_those_of_an_apache_broker(served: Metaq) -> None:
    received: list[bytes] = []
    with metaq.Client(served.nameserver) as client, client.producer() as producer:
        for number in range(5):
            producer.send("Counted", f"message {number}".encode())

        @client.consumer("Counted", group="counters", start="earliest")
        def keep(message: metaq.Message) -> None:
            received.append(message.body)

        client.start()
        wait_until(lambda: len(received) == 5, what="received")
        lag = "rocketmq_consumer_lag_messages"
        wait_until(lambda: value(scrape(served), lag, topic="Counted") == 0, what="committed")
        families = scrape(served)
    theirs = {}
    for line in APACHE.read_text().splitlines():
        if not line.startswith("#"):
            name, kind, labels, *bounds = line.split("\t")
            theirs[name] = (kind, set(labels.split(",")), bounds)
    assert set(NOT_HERE) <= set(theirs)
    for name, (kind, labels, bounds) in theirs.items():
        if name in NOT_HERE:
            continue
        family = families.get(name.removesuffix("_total"))
        assert family is not None, f"{name} is missing"
        assert family.type == kind, name
        ours = {frozenset(sample.labels.keys() - {"le"}) for sample in family.samples}
        assert ours == {frozenset(labels)}, name
        if bounds:
            assert {sample.labels["le"] for sample in family.samples if "le" in sample.labels} == set(
                bounds[0].split()
            ), name
    assert value(families, "rocketmq_messages_in_total", topic="Counted", message_type="normal") == 5
    assert value(families, "rocketmq_messages_out_total", topic="Counted", consumer_group="counters") == 5
    assert value(families, "rocketmq_consumer_connections", consumer_group="counters") == 1
    assert value(families, "metaq_metrics_series_dropped") == 0


def test_dead_letters_are_no_lag_of_their_group(served: Metaq) -> None:
    topic, group, received = "Dying", "gives_up", list[bytes]()
    lag = "rocketmq_consumer_lag_messages"
    with (
        metaq.Client(served.nameserver) as client,
        client.producer() as producer,
        Admin(served.nameserver) as admin,
    ):
        admin.topics.create(topic, queues=1)

        @client.consumer(topic, group=group, start="earliest", concurrency=1)
        def reject(message: metaq.Message) -> None:
            received.append(message.body)
            raise metaq.Reject("no stock")

        client.start()
        for body in (b"one", b"two", b"three"):
            producer.send(topic, body)
        wait_until(lambda: admin.dead_letters.counts([group])[0].stored == 3, what="three dead letters")
        # The first ones that are sent again give the group an offset among its dead letters.
        assert len(list(admin.dead_letters.resend(group))) == 3
        wait_until(lambda: admin.dead_letters.counts([group])[0].stored == 6, what="three more dead letters")
        wait_until(lambda: value(scrape(served), lag, consumer_group=group, topic=topic) == 0)
        wait_until(lambda: value(scrape(served), lag, consumer_group=group) == 0, what="no lag at all")
        # A group that consumes the dead letters of another one is behind with them.
        queue = metaq.Queue(f"%DLQ%{group}", "broker-a", 0)
        admin.groups.create("reads_letters")
        admin.offsets.commit("reads_letters", {queue: 2})
        wait_until(lambda: value(scrape(served), lag, consumer_group="reads_letters") == 4, what="real lag")


def test_open_transactions_are_counted_by_topic(served: Metaq) -> None:
    def half(topic: str) -> float | None:
        return value(scrape(served), "rocketmq_half_messages", topic=topic)

    with metaq.Client(served.nameserver) as client, client.producer("halves") as producer:

        @producer.check
        def is_done(message: metaq.Message) -> bool | None:
            return None

        producer.send("Other", b"not a transaction")
        with producer.transaction("Open", b"one"), producer.transaction("Open", b"two"):
            assert (half("Open"), half("Other")) == (2.0, None)
        wait_until(lambda: half("Open") is None, 60, "ended")


def test_health_names_the_check_that_fails(served: Metaq, tmp_path: Path) -> None:
    address = served.ready["metrics"]
    assert get(address, "/livez") == (200, "ok\n")
    assert get(address, "/readyz") == (200, "recovered: ok\nregistered: ok\nwritable: ok\n")
    nobody = f"127.0.0.1:{free_port()}"
    lonely = Metaq(
        "broker",
        "--listen",
        "127.0.0.1:0",
        "--namesrv",
        nobody,
        "--data",
        str(tmp_path / "data"),
        home=tmp_path,
    )
    try:
        status, text = get(lonely.ready["metrics"], "/readyz")
        assert status == 503
        assert f"registered: no name server has taken the registration: {nobody}" in text
        assert get(lonely.ready["metrics"], "/livez") == (200, "ok\n")
    finally:
        lonely.stop()


def test_metrics_can_be_cut_down_or_switched_off(start_metaq: Callable[..., Metaq]) -> None:
    coarse = start_metaq("serve", *FREE_PORTS, "--set", "metrics_detail=broker")
    coarse.run("send", "Hidden", "x")
    families = scrape(coarse)
    assert value(families, "rocketmq_rpc_latency_milliseconds_count", request_code="310") == 1
    assert value(families, "rocketmq_messages_in_total") is None
    silent = start_metaq("serve", *FREE_PORTS, "--data", "other", "--set", "metrics=false")
    assert "metrics" not in silent.ready
