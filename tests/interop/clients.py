"""Apache's clients as objects of the test: each is a handle in a driver, stopped when the test ends."""

from __future__ import annotations

import base64
import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.interop.driver import ClientError, Driver, eventually
from tests.interop.servers import Cluster, uses_apache

Message = dict[str, Any]
Queue = tuple[str, int]
"""Broker name and queue number."""

CONSUME_TIMEOUT_S = 90.0
ROUTE_TIMEOUT_S = 60.0
WOKEN_S = 12.0
"""Long enough for a busy machine, and less than the 15 s that a pull of a Java consumer is held for."""

# Apache's broker tells a consumer of its own arrival before it answers the heartbeat that announced it. When
# the client is slow it then subscribes anew while that heartbeat is under way, cannot send another, and its
# pulls are refused (code 25) until the next one: 30 s, too long for a test. Ours has to do without this.
HEARTBEAT_INTERVAL_MS = 2_000 if uses_apache() else 30_000

# One count for all drivers: the handle becomes the client's instance name, and that part of its identity.
_numbers = itertools.count(1)


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:10]}"


def numbered(count: int, prefix: str = "message") -> list[Message]:
    return [{"body": f"{prefix}-{number}"} for number in range(count)]


def binary(body: bytes) -> Message:
    return {"body_base64": base64.b64encode(body).decode()}


def bodies(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


def queue_of(message: Mapping[str, Any]) -> Queue:
    return message["broker"], message["queue_id"]


def by_queue(messages: Iterable[Message]) -> dict[Queue, list[Message]]:
    """The messages of each queue, in the order they are in."""
    queues: dict[Queue, list[Message]] = defaultdict(list)
    for message in messages:
        queues[queue_of(message)].append(message)
    return dict(queues)


class Client:
    """A client that was started; what it does in its own time is in `events`."""

    def __init__(self, driver: Driver, kind: str, arguments: Mapping[str, Any]) -> None:
        self.driver = driver
        self.handle = f"{kind}-{next(_numbers)}"
        self.client_id: str | None = driver.call(kind, handle=self.handle, **arguments)
        self._stopped = False

    def call(self, do: str, **arguments: Any) -> Any:
        return self.driver.call(do, handle=self.handle, **arguments)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.call("stop")

    def stop_soon(self) -> None:
        """As the test is over; the client may take seconds to come to its end and nobody waits for that."""
        if not self._stopped:
            self._stopped = True
            self.driver.ask("stop", handle=self.handle)


class Producer(Client):
    def send(self, topic: str, messages: list[Message], how: str = "sync", **options: Any) -> Any:
        return self.call("send", topic=topic, messages=messages, how=how, **options)


class TransactionProducer(Client):
    """Its listener answers what the messages say: properties `local` and `checks`."""

    def send(self, topic: str, messages: list[Message]) -> Any:
        return self.call("send", topic=topic, messages=messages, how="transaction")

    @property
    def checks(self) -> list[Message]:
        """The half messages it was asked for."""
        return self.driver.events("check", self.handle)


class Stream(Client):
    """A producer that sends without end, one message after another."""

    @property
    def acknowledged(self) -> list[Message]:
        return self.driver.events("acknowledged", self.handle)

    @property
    def refused(self) -> list[Message]:
        return self.driver.events("refused", self.handle)

    def wait_for_acknowledged(self, count: int, timeout_s: float = CONSUME_TIMEOUT_S) -> None:
        self.driver.wait_for(
            lambda _: len(self.acknowledged) >= count,
            timeout_s,
            f"{count} acknowledged sends of {self.handle}",
        )


class PushConsumer(Client):
    @property
    def messages(self) -> list[Message]:
        return self.driver.events("message", self.handle)

    def assignment(self, topic: str) -> set[Queue]:
        """The queues of the topic that this consumer works on now."""
        return {queue_of(queue) for queue in self.call("assignment") if queue["topic"] == topic}

    def wait_for_assignment(self, topic: str, count: int, timeout_s: float = CONSUME_TIMEOUT_S) -> set[Queue]:
        return eventually(
            lambda: self.assignment(topic), lambda queues: len(queues) == count, timeout_s, f"{count} queues"
        )

    def wait_until_consumed(self, topic: str, count: int) -> None:
        """Waits until the listener has returned from that many messages."""

        def consumed() -> int:
            offsets = [q["queue_offset"] for q in self.call("consumed_offsets") if q["topic"] == topic]
            return sum(offset for offset in offsets if offset > 0)

        eventually(consumed, lambda found: found == count, CONSUME_TIMEOUT_S, f"{count} messages consumed")


class PullConsumer(Client):
    def read_all(self, topic: str) -> list[Message]:
        """Every message of the topic, queue by queue, each queue from its first offset to its end."""
        found: list[Message] = []
        for queue in self.call("subscribe_queues", topic=topic):
            bounds = self.call("queue_bounds", **queue)
            next_offset = bounds["min_offset"]
            while next_offset < bounds["max_offset"]:
                pulled = self.call("pull", **queue, queue_offset=next_offset)
                assert pulled["status"] == "FOUND", pulled
                assert pulled["next_offset"] > next_offset, pulled
                found += pulled["messages"]
                next_offset = pulled["next_offset"]
        return found


class LiteConsumer(Client):
    def poll_bodies(self, count: int, timeout_s: float = CONSUME_TIMEOUT_S) -> list[Message]:
        """Polls until that many messages came; a poll that returns more gives them all."""
        found: list[Message] = []

        def poll() -> int:
            found.extend(self.call("lite_poll", timeout_ms=500))
            return len(found)

        eventually(poll, lambda seen: seen >= count, timeout_s, f"{count} messages polled")
        return found


class Clients:
    """Starts clients of one driver against one cluster and remembers them until `close`."""

    def __init__(self, driver: Driver, cluster: Cluster, admin: Client | None = None) -> None:
        self.driver = driver
        self.cluster = cluster
        self._started: list[Client] = []
        self._admin = admin

    def _keep(self, client: Any) -> Any:
        self._started.append(client)
        return client

    def producer(self, **options: Any) -> Producer:
        arguments = {"namesrv": self.cluster.namesrv, "group": unique("P"), **options}
        producer: Producer = self._keep(Producer(self.driver, "producer", arguments))
        return producer

    def transaction_producer(self, **options: Any) -> TransactionProducer:
        arguments = {"namesrv": self.cluster.namesrv, "group": unique("P"), **options}
        producer: TransactionProducer = self._keep(
            TransactionProducer(self.driver, "transaction_producer", arguments)
        )
        return producer

    def stream(self, topic: str, *, pause_ms: int = 2, **options: Any) -> Stream:
        producer = self.producer(**options)
        arguments = {"producer": producer.handle, "topic": topic, "pause_ms": pause_ms}
        stream: Stream = self._keep(Stream(self.driver, "stream", arguments))
        return stream

    def push_consumer(self, *topics: str, group: str | None = None, **options: Any) -> PushConsumer:
        arguments = {
            "namesrv": self.cluster.namesrv,
            "group": group or unique("G"),
            "topics": topics,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            **options,
        }
        consumer: PushConsumer = self._keep(PushConsumer(self.driver, "push_consumer", arguments))
        return consumer

    def pull_consumer(self, group: str | None = None, **options: Any) -> PullConsumer:
        arguments = {"namesrv": self.cluster.namesrv, "group": group or unique("G"), **options}
        consumer: PullConsumer = self._keep(PullConsumer(self.driver, "pull_consumer", arguments))
        return consumer

    def lite_consumer(self, group: str | None = None, **options: Any) -> LiteConsumer:
        arguments = {"namesrv": self.cluster.namesrv, "group": group or unique("G"), **options}
        consumer: LiteConsumer = self._keep(LiteConsumer(self.driver, "lite_consumer", arguments))
        return consumer

    @property
    def admin(self) -> Client:
        if self._admin is None:
            self._admin = self._keep(Client(self.driver, "admin", {"namesrv": self.cluster.namesrv}))
        return self._admin

    def topic(self, queues: int = 4, **options: Any) -> str:
        """Creates a topic with that many queues on every broker, known to the name servers."""
        name = unique("T")
        for broker in self.cluster.brokers.values():
            self.admin.call("create_topic", topic=name, queues=queues, address=broker.address, **options)

        self.wait_for_route(name)
        return name

    def retrying_group(self) -> str:
        """A new group whose retry topic is there: a consumer that is the first of its group has it made, and
        reads from it when it next asks for routes (30 s) and shares out the queues."""
        group = unique("G")
        for broker in self.cluster.brokers.values():
            self.admin.call("create_topic", topic=f"%RETRY%{group}", queues=1, address=broker.address)
        self.wait_for_route(f"%RETRY%{group}")
        return group

    def wait_for_route(self, topic: str, timeout_s: float = ROUTE_TIMEOUT_S) -> None:
        """Until every broker of the cluster is in the topic's route."""

        def brokers_in_route() -> int:
            try:
                return len(self.admin.call("topic_route", topic=topic)["queues"])
            except ClientError as not_yet:
                assert not_yet.code == 17, not_yet
                return 0

        wanted = len(self.cluster.brokers)
        eventually(
            brokers_in_route, lambda found: found == wanted, timeout_s, f"{wanted} brokers in the route"
        )

    def wait_for_committed(self, group: str, topic: str, wanted: list[int]) -> None:
        """Until the broker has these offsets of the group: a stopping client tells them without an answer."""
        reader = self.pull_consumer(group=group)

        def committed() -> list[int]:
            queues = [
                {"topic": topic, "broker": "broker-a", "queue_id": number} for number in range(len(wanted))
            ]
            return [reader.call("committed_offset", **queue) for queue in queues]

        eventually(committed, lambda found: found == wanted, CONSUME_TIMEOUT_S, f"committed at {wanted}")
        reader.stop_soon()

    def close(self) -> None:
        for client in reversed(self._started):
            client.stop_soon()


def wait_for_bodies(
    consumers: Iterable[PushConsumer], wanted: Iterable[str], timeout_s: float = CONSUME_TIMEOUT_S
) -> list[Message]:
    """Waits until each wanted body came to one of the consumers; returns all they got, in their order.

    The consumers share a driver, or have one each; only their events wake this up.
    """
    consumers = list(consumers)
    missing = set(wanted)

    def all_came(_: object = None) -> bool:
        for consumer in consumers:
            missing.difference_update(message["body"] for message in consumer.messages)
        return not missing

    try:
        if len({id(consumer.driver) for consumer in consumers}) == 1:
            consumers[0].driver.wait_for(all_came, timeout_s, "every message consumed")
        else:
            eventually(all_came, bool, timeout_s, "every message consumed")
    except TimeoutError as late:
        raise TimeoutError(f"{late}; {len(missing)} missing, among them {sorted(missing)[:10]}") from None
    return [message for consumer in consumers for message in consumer.messages]
