"""Producers with brokers that are killed, come back, move or stay away, and producers that crash."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import metaq
from metaq.errors import NoRoute, NotDelivered, Undecided, UsageError
from tests.interop.servers import Cluster, start_metaq
from tests.support.faces import FACES, opened
from tests.support.metaq import run
from tests.support.reading import eventually, stored


@pytest.fixture(params=FACES)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    with opened(request.param) as make:
        yield make


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    started: list[Cluster] = []

    def start(*brokers: str, **settings: object) -> Cluster:
        started.append(start_metaq(tmp_path, 1, brokers, "async", settings))
        return started[-1]

    yield start
    for old in started:
        old.close()


def bodies(nameserver: str, topic: str) -> set[bytes]:
    return {message.body for message in stored(nameserver, topic)}


def test_a_send_survives_the_kill_of_the_only_broker(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    servers = cluster("broker-a")
    broker = servers.brokers["broker-a"]
    with make(servers.namesrv) as client, client.producer("g", timeout=90) as producer:
        first = producer.send("orders", b"before")
        broker.kill()
        futures = [producer.send_soon("orders", b"soon-%d" % number, key="k") for number in range(20)]
        restart = threading.Timer(0.5, broker.restart)
        restart.start()
        try:
            assert producer.send("orders", b"during").status == "stored"
            producer.flush()
        finally:
            restart.join()
        offsets = [future.result().queue_offset for future in futures]
        assert offsets == sorted(offsets)
        assert producer.send("orders", b"after", queue=first.queue).queue == first.queue
    wanted = {b"before", b"during", b"after"} | {b"soon-%d" % number for number in range(20)}
    assert bodies(servers.namesrv, "orders") == wanted


def test_confirmed_messages_survive_the_kill_of_a_broker_and_others_are_reported(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    """Sends while the broker is killed twice: each message is confirmed and stored, or reported."""
    servers = cluster("broker-a")
    broker = servers.brokers["broker-a"]
    limits = {"batch_bytes_max": 20_000, "buffer_bytes_max": 500_000}
    with make(servers.namesrv) as client, client.producer("g", timeout=30, **limits) as producer:
        producer.send("orders", b"makes the topic")
        ended = threading.Event()
        futures: list[tuple[bytes, bool, Any]] = []

        def send() -> None:
            while not ended.is_set():
                body = b"%08d" % len(futures)
                keyed = len(futures) % 2 == 0
                future = producer.send_soon("orders", body, key="k" if keyed else None)
                futures.append((body, keyed, future))
                if len(futures) % 100 == 0:
                    time.sleep(0.005)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            for _ in range(2):
                so_far = len(futures)
                eventually(lambda so_far=so_far: len(futures) > so_far + 2000)
                broker.kill()
                broker.restart()
        finally:
            ended.set()
            sending.join()
        failed = 0
        try:
            producer.flush()
        except NotDelivered as lost:
            failed = lost.count
        outcomes = [(body, keyed, future.exception()) for body, keyed, future in futures]
        assert sum(error is not None for *_, error in outcomes) == failed
        confirmed = {body for body, _, error in outcomes if error is None}
        assert len(confirmed) > 2000
        assert confirmed <= bodies(servers.namesrv, "orders")
        # Messages of one key keep their order, however many attempts they took.
        results = [future.result() for _, keyed, future in futures if keyed and future.exception() is None]
        assert len({result.queue for result in results}) == 1
        offsets = [result.queue_offset for result in results]
        assert offsets == sorted(offsets)


def test_another_broker_takes_over_and_the_dead_one_is_avoided(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    servers = cluster("broker-a", "broker-b")
    assert run("topic", "create", "orders", METAQ_NAMESRV=servers.namesrv).returncode == 0
    with make(servers.namesrv) as client, client.producer("g", timeout=60) as producer:
        sent_to = {producer.send("orders", b"x").queue.broker for _ in range(16)}
        assert sent_to == {"broker-a", "broker-b"}
        servers.brokers["broker-a"].kill()
        begun = time.monotonic()
        assert {producer.send("orders", b"%d" % number).queue.broker for number in range(20)} == {"broker-b"}
        # No send waited long for the dead broker.
        assert time.monotonic() - begun < 15


def test_many_and_soon_go_to_another_broker_when_one_is_killed(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    servers = cluster("broker-a", "broker-b")
    assert run("topic", "create", "orders", METAQ_NAMESRV=servers.namesrv).returncode == 0
    with make(servers.namesrv) as client, client.producer("g", timeout=60) as producer:

        def many(what: str) -> set[str]:
            messages = [metaq.Message("orders", b"%s-%d" % (what.encode(), number)) for number in range(10)]
            return {result.queue.broker for result in producer.send_many(messages)}

        def soon(what: str) -> set[str]:
            futures = [producer.send_soon("orders", b"%s-%d" % (what.encode(), n)) for n in range(10)]
            producer.flush()
            return {future.result().queue.broker for future in futures}

        for send in (many, soon):
            # Each request goes to one queue, so it takes several until both brokers had one.
            sent_to: set[str] = set()
            for _ in range(50):
                sent_to |= send("before")
            assert sent_to == {"broker-a", "broker-b"}
        servers.brokers["broker-a"].kill()
        for number in range(4):
            assert many(f"many-{number}") == soon(f"soon-{number}") == {"broker-b"}
    wanted = {
        b"%s-%d-%d" % (how, round_, n) for how in (b"many", b"soon") for round_ in range(4) for n in range(10)
    }
    assert wanted <= bodies(servers.namesrv, "orders")


def test_an_undecided_transaction_is_asked_for_after_a_restart_of_the_sender(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    servers = cluster("broker-a", transaction_timeout_ms=200, transaction_check_interval_s=1)
    with make(servers.namesrv) as client, client.producer("payers") as producer:
        producer.check(lambda message: None)
        with producer.transaction("orders", b"good", properties={"order": "1"}) as transaction:
            transaction.leave()
        with producer.transaction("orders", b"bad") as transaction:
            transaction.leave()
        good = transaction.id
        producer.send("orders", b"plain")
    asked: list[metaq.Message] = []
    with make(servers.namesrv) as client, client.producer("payers") as producer:

        @producer.check
        def check(message: metaq.Message) -> bool | None:
            asked.append(message)
            return message.body == b"good"

        producer.send("other", b"introduces us to the broker")
        eventually(lambda: b"good" in bodies(servers.namesrv, "orders"))
        eventually(lambda: {message.body for message in asked} == {b"good", b"bad"})
    assert {message.topic for message in asked} == {"orders"}
    assert good in {message.id for message in asked}
    assert bodies(servers.namesrv, "orders") == {b"good", b"plain"}


def test_a_commit_that_cannot_be_told_is_reported(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    servers = cluster("broker-a")
    with make(servers.namesrv) as client, client.producer("payers") as producer:
        producer.check(lambda message: True)
        with pytest.raises(Undecided, match="ask the checker"), producer.transaction("orders", b"x"):
            servers.brokers["broker-a"].kill()


def test_a_topic_that_does_not_exist_is_told_with_what_to_do(
    make: Callable[..., Any], cluster: Callable[..., Cluster]
) -> None:
    servers = cluster("broker-a", auto_create_topic=False)
    with make(servers.namesrv) as client, client.producer("g") as producer:
        with pytest.raises(NoRoute, match="metaq topic create orders") as failed:
            producer.send("orders", b"x")
        assert (failed.value.code, failed.value.retriable) == (17, False)


def test_after_a_fork_the_client_says_so(cluster: Callable[..., Cluster]) -> None:
    servers = cluster("broker-a")
    with metaq.Client(servers.namesrv) as client, client.producer("g") as producer:
        producer.send_soon("orders", b"x").result()
        pid = os.fork()
        if pid == 0:
            try:
                for send in (producer.send, producer.send_soon):
                    with pytest.raises(UsageError, match="fork"):
                        send("orders", b"y")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.send_soon("orders", b"z").result()
    assert bodies(servers.namesrv, "orders") == {b"x", b"z"}
