"""Sends while the master of a broker changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import metaq
import metaq.aio
from metaq.errors import NotDelivered, NotDurable, NotSent
from tests.support.processes import free_port
from tests.support.written_broker import STORED, Answer, WrittenBroker

MakeBroker = Callable[[Callable[[int], Answer]], WrittenBroker]
STORED_ANSWER: Answer = (0, STORED)
SWITCH_S = 5.0
"""Far more than the pauses between tries, far less than the time of a send."""


def send(producer: Any, is_soon: bool) -> metaq.SendResult:
    result: metaq.SendResult = (
        producer.send_soon("t", b"x").result() if is_soon else producer.send("t", b"x", timeout=60)
    )
    return result


@pytest.mark.parametrize("is_soon", [False, True], ids=["send", "send_soon"])
@pytest.mark.parametrize("code", [14, 12])
def test_a_former_master_s_answer_leads_to_the_new_master(
    broker: MakeBroker, code: int, is_soon: bool
) -> None:
    new = broker(lambda _: STORED_ANSWER)

    def answer(count: int) -> Answer:
        if count == 1:
            return STORED_ANSWER
        old.nodes = {0: new.address}
        return code, STORED

    old = broker(answer)
    with metaq.Client(old.address) as client, client.producer("g", timeout=60) as producer:
        send(producer, is_soon)
        begun = time.monotonic()
        assert send(producer, is_soon).status == "stored"
        assert time.monotonic() - begun < SWITCH_S
        send(producer, is_soon)
    assert (len(old.asked), len(new.asked)) == (2, 2), "once to each, and then only to the new one"


@pytest.mark.parametrize("is_soon", [False, True], ids=["send", "send_soon"])
def test_a_send_waits_until_a_master_is_elected(broker: MakeBroker, is_soon: bool) -> None:
    """The dead master stays in the route, then there is none, then another node is the master."""
    new = broker(lambda _: STORED_ANSWER)
    names = broker(lambda _: STORED_ANSWER)
    dead = {0: f"127.0.0.1:{free_port()}", 2: new.address}
    routes = iter([dead, dead, {2: new.address}, {2: new.address}])
    names.route = lambda: next(routes, {0: new.address})
    with metaq.Client(names.address) as client, client.producer("g", timeout=60) as producer:
        begun = time.monotonic()
        assert send(producer, is_soon).status == "stored"
        assert time.monotonic() - begun < SWITCH_S
    assert (len(names.asked), len(new.asked)) == (0, 1)


def test_send_soon_with_a_key_waits_until_a_master_is_elected(broker: MakeBroker) -> None:
    new = broker(lambda _: STORED_ANSWER)
    names = broker(lambda _: STORED_ANSWER)
    missing = {2: new.address}
    routes = iter([{0: new.address}, missing, missing, missing])
    names.route = lambda: next(routes, {0: new.address})
    with metaq.Client(names.address) as client, client.producer("g", timeout=60) as producer:
        assert producer.send_soon("t", b"x", key="k").result().status == "stored"
        client._portal.run(client._client._session.routes.refresh_all)
        begun = time.monotonic()
        assert producer.send_soon("t", b"x", key="k").result().status == "stored"
        assert time.monotonic() - begun < SWITCH_S


def test_send_soon_with_a_key_waits_on_the_event_loop(broker: MakeBroker) -> None:
    new = broker(lambda _: STORED_ANSWER)
    names = broker(lambda _: STORED_ANSWER)
    missing = {2: new.address}
    routes = iter([missing, missing, missing])
    names.route = lambda: next(routes, {0: new.address})

    async def scenario() -> None:
        async with (
            metaq.aio.Client(names.address) as client,
            client.producer("g", timeout=60) as producer,
        ):
            futures = [await producer.send_soon("t", b"%d" % number, key="k") for number in range(3)]
            assert [(await future).status for future in futures] == ["stored"] * 3

    asyncio.run(scenario())


def test_send_soon_with_a_key_gives_up_in_time(broker: MakeBroker) -> None:
    names = broker(lambda _: STORED_ANSWER)
    names.route = lambda: {2: f"127.0.0.1:{free_port()}"}
    with metaq.Client(names.address) as client, client.producer("g", timeout=1.0) as producer:
        begun = time.monotonic()
        with pytest.raises(NotSent, match="no writable queue"):
            producer.send_soon("t", b"x", key="k")
        assert 0.5 < time.monotonic() - begun < SWITCH_S


def test_an_unavailable_master_is_asked_until_the_time_is_over(broker: MakeBroker) -> None:
    alone = broker(lambda _: (14, {}))
    with metaq.Client(alone.address) as client, client.producer("g") as producer:
        begun = time.monotonic()
        with pytest.raises(NotSent, match="code 14"):
            producer.send("t", b"x", timeout=1.5)
        assert 1.0 < time.monotonic() - begun < SWITCH_S
    assert 4 <= len(alone.asked) <= 40, "with pauses between the tries"


def test_an_unavailable_master_that_recovers_gets_the_message(broker: MakeBroker) -> None:
    alone = broker(lambda count: STORED_ANSWER if count > 6 else (14, {}))
    with metaq.Client(alone.address) as client, client.producer("g") as producer:
        assert producer.send("t", b"x", timeout=60).status == "stored"


@pytest.mark.parametrize("is_soon", [False, True], ids=["send", "send_soon"])
def test_a_slow_replica_is_no_master_switch(broker: MakeBroker, is_soon: bool) -> None:
    alone = broker(lambda _: (12, STORED))
    # The end of the block reports messages of `send_soon` again.
    with (
        metaq.Client(alone.address) as client,
        contextlib.suppress(NotDelivered),
        client.producer("g") as producer,
        pytest.raises(NotDurable),
    ):
        send(producer, is_soon)
    assert len(alone.asked) == 1, "the message is stored, so it is not sent again"


def test_a_message_that_the_producer_accepts_is_not_sent_again(broker: MakeBroker) -> None:
    new = broker(lambda _: STORED_ANSWER)

    def answer(count: int) -> Answer:
        old.nodes = {0: new.address}
        return 12, STORED

    old = broker(answer)
    with (
        metaq.Client(old.address) as client,
        client.producer("g", accept=["replica-timeout"]) as producer,
    ):
        assert producer.send("t", b"x").status == "replica-timeout"
    assert (len(old.asked), len(new.asked)) == (1, 0)


def test_one_topic_finds_the_new_master_for_all(broker: MakeBroker) -> None:
    """The second topic does not send to the former master any more, although nobody asked for its route."""
    new = broker(lambda _: STORED_ANSWER)
    old = broker(lambda count: STORED_ANSWER if count <= 3 else (14, {}))
    with metaq.Client(old.address) as client, client.producer("g") as producer:
        producer.send("one", b"x")
        producer.send("two", b"x")
        producer.send_soon("two", b"x").result()
        old.nodes = {0: new.address}
        producer.send("one", b"x", timeout=60)
        assert (len(old.asked), len(new.asked)) == (4, 1)
        producer.send("two", b"x", timeout=60)
        producer.send_soon("two", b"x").result()
        assert (len(old.asked), len(new.asked)) == (4, 3)
