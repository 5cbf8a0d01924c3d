"""Hundreds of connections of one address that each ask one long question: other addresses do not notice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from metaq._core import encode_frame
from metaq.broker import Broker
from metaq.protocol.bodies import LockBatchRequestBody
from metaq.protocol.commands.clients import LockBatchQueues, UnlockBatchQueues
from metaq.protocol.commands.messages import ViewMessageById
from metaq.protocol.commands.offsets import GetConsumeStats
from metaq.protocol.java_json import MessageQueue
from tests.support.broker_cluster import broker_options, started_broker
from tests.support.fake_request import FakeRequest
from tests.support.plain_client import PlainClient, Reply, create_topic, send
from tests.support.waiting import run, until

CROWD = 1_100
"""More than the control plane has slots."""
QUEUES = 10_000
HONEST = "127.0.0.9"
UNANSWERED_S = 30.0


class Crowd:
    """Connections of one address, each with one question."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._answers: list[asyncio.Task[bytes]] = []

    async def ask(self, address: str, question: bytes) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(CROWD):
            reader, writer = await asyncio.open_connection(host, int(port))
            self._writers.append(writer)
            self._answers.append(asyncio.create_task(reader.readexactly(4)))
            writer.write(question)

    @property
    def answered(self) -> int:
        return sum(answer.done() for answer in self._answers)

    async def leave(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._answers, return_exceptions=True)


@asynccontextmanager
async def crowded(directory: Path, gate: threading.Event) -> AsyncIterator[tuple[Broker, Crowd]]:
    """A broker whose threads for look-ups are busy until `gate` opens, and a crowd that waits for them."""
    crowd = Crowd()
    async with started_broker(broker_options(directory)) as broker:
        with PlainClient(broker.address) as client:
            topics = [f"wide-{number}" for number in range(4)]
            for topic in topics:
                assert (await asyncio.to_thread(create_topic, client, topic, QUEUES)).code == 0
        pump = broker.node.pump
        question = GetConsumeStats(consumer_group="g", topic_list=";".join(topics))
        look_ups = broker.node.pools.look_ups
        busy = [asyncio.create_task(look_ups.run(FakeRequest(connection=-n), gate.wait)) for n in (1, 2)]
        try:
            await crowd.ask(
                broker.address, encode_frame(question.code, opaque=1, fields=question.to_fields())
            )
            await until(lambda: len(pump._tasks) + pump._slots.waiting_count() == CROWD)
            yield broker, crowd
        finally:
            gate.set()
            await asyncio.gather(*busy)
            await crowd.leave()
        # Nobody needs the answers of clients that have left.
        await until(lambda: not pump._tasks and not pump._slots.waiting_count())


def test_a_crowd_that_only_asks_stops_no_locks_and_no_new_topics_of_others(tmp_path: Path) -> None:
    """Locks of consumers last for a minute unless they are renewed."""
    gate = threading.Event()
    queues = [MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)]
    locks = LockBatchRequestBody(client_id="honest", consumer_group="g", mq_set=queues).encode()

    async def scenario() -> None:
        async with crowded(tmp_path, gate) as (broker, crowd):
            with PlainClient(broker.address, UNANSWERED_S, source=HONEST) as honest:

                async def ask(code: int, body: bytes) -> Reply:
                    return await asyncio.to_thread(honest.call, code, {}, body)

                assert (await asyncio.to_thread(create_topic, honest, "orders", 1)).code == 0
                for _ in range(3):
                    assert (await ask(LockBatchQueues.code, locks)).code == 0
                assert (await asyncio.to_thread(send, honest, "by_first_use", 0, b"m")).code == 0
                assert (await ask(UnlockBatchQueues.code, locks)).code == 0
            assert crowd.answered == 0

    run(scenario)


def test_a_short_question_of_another_address_does_not_wait_for_the_crowd(tmp_path: Path) -> None:
    gate = threading.Event()

    async def scenario() -> None:
        async with crowded(tmp_path, gate) as (broker, crowd):
            look_ups = broker.node.pools.look_ups
            with PlainClient(broker.address, UNANSWERED_S, source=HONEST) as honest:
                assert (await asyncio.to_thread(send, honest, "by_first_use", 0, b"m")).code == 0
                fields = {"offset": "0"}
                asked = asyncio.create_task(asyncio.to_thread(honest.call, ViewMessageById.code, fields))
                await until(lambda: HONEST in look_ups._turns._of)
                assert crowd.answered == 0
                gate.set()
                assert (await asked).code == 0
                assert crowd.answered <= 10, "two threads had one question each, and some more since then"

    run(scenario)
