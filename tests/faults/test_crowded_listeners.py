"""One address takes all connections of a broker or name server, and keeps them alive with small requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.plain_client import (
    SUCCESS,
    PlainClient,
    ServerClosed,
    create_topic,
    read_queue,
    send,
)
from tests.support.serving import SMALL_FILES, Serving
from tests.support.waiting import wait_until

CONNECTIONS_MAX = 40
CROWD, OTHER = "127.0.0.2", "127.0.0.3"
NO_SUCH_REQUEST = 9_999
NEWCOMERS = 13
"""A third of the places: then the crowd has no more than twice as many."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("crowded")
    settings = {**SMALL_FILES, "connections_max": CONNECTIONS_MAX}
    with Serving(home, home / "data", flush="async", settings=settings) as broker:
        yield broker
        assert broker.stop() == 0


def is_answered(client: PlainClient) -> bool:
    try:
        return client.call(NO_SUCH_REQUEST, {}).code != SUCCESS
    except (ServerClosed, OSError):
        return False


def wait_for_next_count() -> None:
    """The server counts the requests of its connections at most ten times a second."""
    time.sleep(0.2)


@pytest.mark.parametrize("role", ["broker", "nameserver"])
def test_a_crowd_that_goes_on_asking_leaves_room_for_others(served: Serving, role: str) -> None:
    """Its connections kept their places for ever, and everybody else was refused."""
    address: str = getattr(served, role)
    with ExitStack() as stack:

        def connect(source: str) -> PlainClient:
            return stack.enter_context(PlainClient(address, source=source))

        crowd = []
        # The broker has a connection to the name server already, and its own console or probe may come.
        for _ in range(CONNECTIONS_MAX + 10):
            client = connect(CROWD)
            if is_answered(client):
                crowd.append(client)
        assert CONNECTIONS_MAX - 5 <= len(crowd) <= CONNECTIONS_MAX
        busy = crowd[: len(crowd) // 2]
        for _ in range(20):
            assert all(is_answered(client) for client in busy)
        wait_for_next_count()
        newcomers = [connect(OTHER) for _ in range(NEWCOMERS // 2)]
        assert [is_answered(client) for client in newcomers] == [True] * len(newcomers)
        wait_for_next_count()
        assert all(is_answered(client) for client in busy), "those that do the most keep their places"
        left = sum(is_answered(client) for client in crowd)
        assert left == len(crowd) - len(newcomers)
        assert not is_answered(connect(CROWD)), "it has more than enough"
        assert all(is_answered(client) for client in newcomers)
    assert "(connections_max), its network has most of them" in served.log()


def test_a_broker_whose_places_were_taken_goes_on(served: Serving) -> None:
    def works() -> bool:
        with PlainClient(served.broker) as client:
            create_topic(client, "after", 1)
            return send(client, "after", 0, b"on").code == SUCCESS

    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            is_answered(stack.enter_context(PlainClient(served.broker, source=CROWD)))
        wait_until(works)
    with PlainClient(served.broker) as client:
        assert read_queue(client, "after", 0)[-1].body == b"on"
