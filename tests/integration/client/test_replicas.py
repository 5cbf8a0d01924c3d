"""Consumers of a broker group with replicas: `read_from`, and reading on while the master is away."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

import metaq
from metaq.admin import Admin
from tests.support.replica_group import KINDS, ReplicaGroup, messages_out, start_group
from tests.support.waiting import wait_until

TOPIC = "replicated"
LATER = "replicated-later"
COUNT = 200
TIMEOUT_S = 120.0


@pytest.fixture(scope="module", params=KINDS)
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaGroup]:
    """A group for all tests here. Each of them has a topic of its own, and brings killed nodes back."""
    started = start_group(request.param, tmp_path_factory.mktemp("group"))
    try:
        yield started
    finally:
        started.close()


class Sent:
    """A producer and the bodies of everything that it has sent."""

    def __init__(self, client: metaq.Client, topic: str = TOPIC) -> None:
        self._topic = topic
        self._producer = client.producer("tests", timeout=TIMEOUT_S)
        self._producer.start()
        self.bodies: list[bytes] = []
        self.results: list[metaq.SendResult] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.bodies)
            self.results.append(self._producer.send(self._topic, body))
            self.bodies.append(body)

    def close(self) -> None:
        self._producer.close()


class Readers:
    """A handler, an iteration and a puller, and what each has received."""

    def __init__(self, client: metaq.Client) -> None:
        self.received: dict[str, Counter[bytes]] = {name: Counter() for name in ("handler", "loop", "puller")}
        options = {"start": "earliest", "read_from": "replica"}
        client.consumer(TOPIC, group="handlers", **options)(
            lambda message: self.received["handler"].update([message.body])
        )
        self._subscribed = client.subscribe(TOPIC, group="loops", **options)
        self._puller = client.puller(**options)
        self._puller.assign(TOPIC)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._iterate, self._poll)]
        for thread in self._threads:
            thread.start()

    def _iterate(self) -> None:
        with self._subscribed as messages:
            for message in messages:
                self.received["loop"][message.body] += 1

    def _poll(self) -> None:
        while not self._stop.is_set():
            self.received["puller"].update(message.body for message in self._puller.poll(0.2))

    def wait_all(self, sent: Sent) -> None:
        wanted = set(sent.bodies)
        wait_until(
            lambda: all(found.keys() == wanted for found in list(self.received.values())),
            TIMEOUT_S,
            "received by every reader",
        )

    def close(self) -> None:
        self._stop.set()
        self._subscribed.close()
        for thread in self._threads:
            thread.join()


def test_consumers_read_from_replicas_and_fall_back_to_the_master(group: ReplicaGroup) -> None:
    with metaq.Client(group.nameserver) as client:
        sent = Sent(client)
        sent.send(COUNT)
        group.wait_replicated(TOPIC)
        before = messages_out(group.nameserver)
        readers = Readers(client)
        readers.wait_all(sent)
        given = {broker_id: count - before[broker_id] for broker_id, count in _out(group).items()}
        assert sum(given.values()) >= 3 * COUNT
        assert given[0] == 0, "the master gave nothing"
        counts_the_group_once(group)

        group.kill_replica()
        sent.send(COUNT // 4)
        readers.wait_all(sent)

        group.restart_killed()
        group.wait_replicated(TOPIC)
        before = messages_out(group.nameserver)

        def is_replica_read_again() -> bool:
            sent.send(4)
            readers.wait_all(sent)
            return any(
                count > before.get(broker_id, 0) for broker_id, count in _out(group).items() if broker_id
            )

        wait_until(is_replica_read_again, TIMEOUT_S)
        readers.close()
        sent.close()
    repeated = {name: max(found.values()) for name, found in readers.received.items()}
    assert repeated == {"handler": 1, "loop": 1, "puller": 1}, "a change of the node repeats nothing"


def counts_the_group_once(group: ReplicaGroup) -> None:
    with Admin(group.nameserver) as admin:
        assert len({broker.name for broker in admin.brokers.cluster().brokers}) == 1
        assert len(admin.topics.create("made")) == 1
        assert admin.topics.show(TOPIC).messages == COUNT
        assert len(admin.groups.show("handlers").settings) == 1


def _out(group: ReplicaGroup) -> dict[int, int]:
    return messages_out(group.nameserver)


def test_consumers_read_on_and_commit_while_the_master_is_away(group: ReplicaGroup) -> None:
    received: Counter[bytes] = Counter()
    may_go_on = threading.Event()

    def handle(message: metaq.Message) -> None:
        received[message.body] += 1
        assert may_go_on.wait(TIMEOUT_S)

    few = {"start": "earliest", "concurrency": 1, "buffer_count": 4, "pull_count": 2, "buffer_span": 8}
    with metaq.Client(group.nameserver) as client:
        sent = Sent(client, LATER)
        sent.send(COUNT)
        group.wait_replicated(LATER)
        client.consumer(LATER, group="stayers", **few)(handle)
        with client.puller(start="earliest", buffer_count=4) as puller:
            puller.assign(LATER)
            pulled = Counter(message.body for message in puller.poll(TIMEOUT_S, count=1))
            wait_until(lambda: received)
            group.kill_master()
            may_go_on.set()

            def pull_all() -> bool:
                pulled.update(message.body for message in puller.poll(0.2))
                return len(pulled) == COUNT

            wait_until(pull_all, TIMEOUT_S, "pulled from a replica")
        wait_until(lambda: len(received) == COUNT, TIMEOUT_S, "received from a replica")
    assert max(pulled.values()) == max(received.values()) == 1

    # A new member continues where the closed one has committed, and a new group reads everything.
    again: list[bytes] = []
    fresh: Counter[bytes] = Counter()
    with metaq.Client(group.nameserver) as client:
        client.consumer(LATER, group="stayers", start="earliest")(lambda message: again.append(message.body))
        client.consumer(LATER, group="others", start="earliest")(lambda message: fresh.update([message.body]))
        wait_until(lambda: len(fresh) == COUNT, TIMEOUT_S, "received by a new group")
        # While a node changes its role, it refuses everything.
        with Admin(group.nameserver, retry=TIMEOUT_S) as admin:
            queues = admin.topics.route(LATER).readable
            ends = admin.offsets.ends(queues)
            assert admin.offsets.committed("stayers", queues) == ends
            assert sorted(message.body for message in admin.messages.read(LATER)) == sorted(sent.bodies)
            first = sent.results[0]
            assert admin.messages.by_offset_id(first.offset_id).body == sent.bodies[0]
            assert [message.body for message in admin.messages.by_id(LATER, first.id)] == sent.bodies[:1]
        assert again == []

        group.restart_killed()
        sent = Sent(client, LATER)
        sent.send(8)
        wait_until(lambda: set(again) >= set(sent.bodies) and set(fresh) >= set(sent.bodies), TIMEOUT_S)
        sent.close()
