"""Consumers of our Python client beside Java ones, on our servers and on Apache's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import metaq
from tests.interop.clients import Clients, Queue, bodies, numbered, unique
from tests.interop.driver import eventually
from tests.interop.kinds import each_once

QUEUES = 8
TIMEOUT_S = 90.0


class PythonConsumer:
    """A handler that keeps what it got."""

    def __init__(self, client: metaq.Client, topic: str, group: str, **options: object) -> None:
        self.topic = topic
        self.got: list[metaq.Message] = []
        self._lock = threading.Lock()
        declare = client.consumer(topic, group=group, start="earliest", **options)  # type: ignore[arg-type]
        self.consumer = declare(self._take)

    def _take(self, message: metaq.Message) -> None:
        with self._lock:
            self.got.append(message)

    @property
    def assignment(self) -> set[Queue]:
        return {(queue.broker, queue.id) for queue in self.consumer.queues if queue.topic == self.topic}

    def wait_for_assignment(self, count: int) -> set[Queue]:
        eventually(lambda: len(self.assignment), lambda found: found == count, TIMEOUT_S, f"{count} queues")
        return self.assignment


@contextmanager
def python_client(java: Clients) -> Iterator[metaq.Client]:
    with metaq.Client(java.cluster.namesrv) as client:
        yield client


@each_once
def test_java_and_python_share_a_group(java: Clients) -> None:
    topic, group = java.topic(queues=QUEUES), unique("G")
    with python_client(java) as client:
        ours = PythonConsumer(client, topic, group)
        alone = ours.wait_for_assignment(QUEUES)
        theirs = java.push_consumer(topic, group=group)
        their_share = theirs.wait_for_assignment(topic, QUEUES // 2, TIMEOUT_S)
        our_share = ours.wait_for_assignment(QUEUES // 2)
        assert our_share | their_share == alone
        assert not our_share & their_share

        wanted = numbered(80)
        java.producer().send(topic, wanted)

        def got() -> list[str]:
            return [message.body.decode() for message in ours.got] + bodies(theirs.messages)

        eventually(lambda: len(got()), lambda count: count >= 80, TIMEOUT_S, "all messages")
        assert Counter(got()) == Counter(bodies(wanted))
        assert {
            (message.queue.broker, message.queue.id) for message in ours.got if message.queue
        } == our_share

        theirs.stop()
        assert ours.wait_for_assignment(QUEUES) == alone


@each_once
def test_python_reads_what_java_sends(java: Clients) -> None:
    topic = java.topic(queues=2)
    with python_client(java) as client:
        tagged = [
            {
                "body": f"{n}",
                "tags": "even" if n % 2 == 0 else "odd",
                "keys": f"k{n}",
                "properties": {"n": f"{n}"},
            }
            for n in range(10)
        ]
        java.producer().send(topic, tagged)
        ours = PythonConsumer(client, topic, unique("G"), tags="even", ordered=True)
        eventually(lambda: len(ours.got), lambda count: count >= 5, TIMEOUT_S, "the even ones")
        for message in ours.got:
            assert message.tag == "even"
            assert message.keys == (f"k{message.body.decode()}",)
            assert message.properties["n"] == message.body.decode()
        with client.puller(start="earliest") as puller:
            puller.assign(topic)
            read: list[bytes] = []
            while len(read) < 10 and (found := puller.poll(timeout=60)):
                read += [message.body for message in found]
        assert sorted(read) == [b"%d" % n for n in range(10)]
