"""Messages with sharding keys for topics that the first of them creates, on two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

import metaq
from metaq.client.producer.arrow_rows import Rows, Texts
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.queue_selection import queue_of_key
from metaq.client.producer.row_sender import RowSender
from metaq.client.session.routes import Route
from metaq.errors import NotDelivered
from tests.support.clients import create_topic
from tests.support.reading import stored
from tests.support.servers import Cluster, start_metaq

KEYS = [f"key-{number}" for number in range(40)]
BROKERS = ("broker-a", "broker-b")
LONG_LINGER_S = 60.0
"""Nothing is sent before a flush."""
Send = Callable[[metaq.Client, str, list[str]], Callable[[], None]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = start_metaq(tmp_path_factory.mktemp("cluster"), 1, BROKERS, "async", {})
    yield started
    started.close()


def texts(values: list[str]) -> Texts:
    data = [value.encode() for value in values]
    ends = [0]
    for value in data:
        ends.append(ends[-1] + len(value))
    return Texts(b"".join(data), b"".join(end.to_bytes(4, "little") for end in ends))


def send_soon(client: metaq.Client, topic: str, keys: list[str]) -> Callable[[], None]:
    producer = client.producer("soon", linger=LONG_LINGER_S, timeout=20)
    producer.start()
    for key in keys:
        producer.send_soon(topic, key.encode(), key=key)
    return producer.flush


def put_rows(client: metaq.Client, topic: str, keys: list[str]) -> Callable[[], None]:
    sender = RowSender(client, ProducerOptions("rows", linger_s=LONG_LINGER_S, timeout_s=20))
    sender.start()
    sender.know([topic])
    sender.put(Rows(len(keys), texts(keys), topic=topic, sharding_keys=texts(keys)))
    return sender.flush


def route_of(client: metaq.Client, topic: str) -> Route:
    """Asks the name server, and with it updates what the client's producers know."""
    routes = client._client._session.routes
    found: Route = client._portal.run(lambda: routes.get(topic, refresh=True, creatable=True))
    return found


@pytest.mark.parametrize("send", [send_soon, put_rows])
def test_all_keys_of_a_new_topic_share_a_broker(cluster: Cluster, send: Send) -> None:
    topic = f"shared-{send.__name__}"
    with metaq.Client(cluster.namesrv) as client:
        for _ in range(2):
            send(client, topic, KEYS)()
            real = route_of(client, topic)
            assert not real.is_template and len(real.brokers) == 1
        for message in stored(cluster.namesrv, topic):
            wanted = queue_of_key(real, message.body.decode())
            assert message.queue == wanted
        assert len({message.queue for message in stored(cluster.namesrv, topic)}) > 1
        assert sorted(message.body.decode() for message in stored(cluster.namesrv, topic)) == sorted(KEYS * 2)


@pytest.mark.parametrize("queues", [4, 3])
@pytest.mark.parametrize("send", [send_soon, put_rows])
def test_a_batch_follows_a_topic_that_was_created_elsewhere(
    cluster: Cluster, send: Send, queues: int
) -> None:
    topic = f"elsewhere-{send.__name__}-{queues}"
    with metaq.Client(cluster.namesrv) as client:
        flush = send(client, topic, KEYS[:1])
        expected = route_of(client, topic)
        assert expected.is_template
        chosen = queue_of_key(expected, KEYS[0])
        (other,) = set(BROKERS) - {chosen.broker}
        asyncio.run(create_topic(cluster.brokers[other].address, topic, queues))
        real = route_of(client, topic)
        assert real.brokers.keys() == {other}
        flush()
        (message,) = stored(cluster.namesrv, topic)
        assert message.queue == queue_of_key(real, KEYS[0])


def test_a_given_queue_that_the_topic_lacks_is_not_replaced(cluster: Cluster) -> None:
    topic = "given"
    with metaq.Client(cluster.namesrv) as client:
        queue = metaq.Queue(topic, BROKERS[0], 1)
        with client.producer("given", linger=LONG_LINGER_S, timeout=2) as producer:
            assert route_of(client, topic).is_template
            producer.send_soon(topic, b"nowhere else", queue=queue)
            asyncio.run(create_topic(cluster.brokers[BROKERS[1]].address, topic, 2))
            route_of(client, topic)
            with pytest.raises(NotDelivered, match="no writable queue 1 at broker-a"):
                producer.flush()
        assert list(stored(cluster.namesrv, topic)) == []
