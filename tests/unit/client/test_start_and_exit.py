"""A start that fails, what a program prints without logging, and what happens at its end without a close."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import metaq
import metaq.aio
from metaq.client.consumer.handler_threads import as_exception
from metaq.client.stderr_fallback import OnceOnStderr, once
from metaq.errors import NoRoute
from metaq.protocol.errors import Refused, Unreachable
from metaq.testing import LocalMetaq
from tests.support.clients import FACES, Face
from tests.support.waiting import until

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalMetaq]:
    with LocalMetaq() as running:
        yield running


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def ignore(message: object) -> None: ...


def test_a_failed_start_closes_all_consumers(face: Face, server: LocalMetaq) -> None:
    server.create_topic("started")

    async def scenario() -> None:
        client = face.client(server.nameserver)
        good = client.consumer("started", group="good")(face.handler(ignore))
        bad = client.consumer("started", group="bad", sql="price >")(face.handler(ignore))
        with pytest.raises(Refused, match="the filter 'price >' on started was refused"):
            await face.call(client.start)
        assert good.is_closed and bad.is_closed
        with pytest.raises(metaq.MetaqError, match="closed"):
            await face.call(client.start)
        await face.call(client.close)

    asyncio.run(scenario())


@pytest.mark.parametrize("options", [{"sql": "price >"}, {"function": "nobody_registered_it(1)"}])
def test_a_loop_with_a_refused_filter_does_not_start(
    face: Face, server: LocalMetaq, options: dict[str, Any]
) -> None:
    server.create_topic("filtered")

    async def scenario() -> None:
        client = face.client(server.nameserver)
        await face.call(client.start)
        try:
            with pytest.raises(Refused, match="refused"):
                await face.call(client.subscribe("filtered", group="filtered", **options).start)
        finally:
            await face.call(client.close)

    asyncio.run(scenario())


def test_a_start_that_waits_raises(face: Face, server: LocalMetaq) -> None:
    async def scenario() -> None:
        with pytest.raises(Unreachable, match="no name server answers"):
            await face.call(face.client(NOBODY).start, wait=0.05)
        client = face.client(server.nameserver)
        consumer = client.consumer("unheard-of", group="waits")(face.handler(ignore))
        with pytest.raises(NoRoute, match="unheard-of"):
            await face.call(client.start, wait=0.3)
        assert consumer.is_closed

    asyncio.run(scenario())


def test_a_start_that_waits_returns_when_every_consumer_has_its_share(face: Face, server: LocalMetaq) -> None:
    server.create_topic("shared", queues=3)

    async def scenario() -> None:
        client = face.client(server.nameserver)
        consumer = client.consumer("shared", group=f"shared-{face.name}")(face.handler(ignore))
        await face.call(client.start, wait=60)
        try:
            queues = await asyncio.to_thread(lambda: consumer.queues) if face.is_sync else consumer.queues
            assert sum(queue.topic == "shared" for queue in queues) == 3
            await face.call(client.subscribe("shared", group=f"loop-{face.name}").start, wait=60)
        finally:
            await face.call(client.close)

    asyncio.run(scenario())


# Output of a program without logging.

QUIET = """
import sys, threading
import metaq
from metaq.client.consumer.group.rebalance import Shares

looks = threading.Semaphore(0)
work_out = Shares.work_out

async def counted(shares):
    found = await work_out(shares)
    looks.release()
    return found

client = metaq.Client(sys.argv[1])
failed = threading.Semaphore(0)

@client.consumer("printed", group="prints", start="earliest")
def fail(message):
    failed.release()
    raise LookupError("no such customer")

client.start()
for _ in range(3):
    failed.acquire()
client.close()
Shares.work_out = counted
for nameserver, group in ((sys.argv[1], "lost"), ("127.0.0.1:1", "nowhere")):
    with metaq.Client(nameserver) as client:
        client.consumer("nobody-made-it", group=group)(lambda message: None)
        for _ in range(2):
            looks.acquire()
"""


def test_problems_are_printed_once_without_logging(server: LocalMetaq) -> None:
    with metaq.Client(server.nameserver) as client, client.producer("p") as producer:
        server.create_topic("printed")
        for _ in range(3):
            producer.send("printed", b"x")
    ended = subprocess.run(
        [sys.executable, "-c", QUIET, server.nameserver], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    for text in (
        "the handler failed on",
        "LookupError: no such customer",
        "metaq topic create nobody-made-it",
        "group nowhere gets no messages of nobody-made-it: no name server answers",
    ):
        assert ended.stderr.count(text) == 1, ended.stderr


def test_a_program_with_logging_prints_nothing_more(capfd: pytest.CaptureFixture[str]) -> None:
    fallback, other = OnceOnStderr(), logging.NullHandler()
    logger = logging.Logger("metaq.alone")
    logger.addHandler(fallback)
    named = logging.getLogger("metaq.alone")
    named.propagate = False
    try:
        for number in range(3):
            logger.warning("problem %d", number, extra=once("problem"))
            logger.warning("detail %d", number)
        assert capfd.readouterr().err == "metaq: problem 0\n"
        named.addHandler(other)
        logger.warning("another", extra=once("another"))
        assert capfd.readouterr().err == ""
    finally:
        named.removeHandler(other)
        named.propagate = True


def test_the_traceback_of_an_exit_in_a_handler_is_kept() -> None:
    def leave() -> None:
        sys.exit("enough")

    try:
        leave()
    except SystemExit as error:
        failure = as_exception(error)
    text = "".join(traceback.format_exception(failure))
    assert "in leave" in text and "SystemExit: enough" in text


# The end of a program.

SYNC_END = """
import sys
import metaq
from metaq.client.producer import send_buffer

send_buffer.EXIT_TIMEOUT_S = float(sys.argv[3])
client = metaq.Client(sys.argv[1])
client.start()
producer = client.producer("p", linger=0.5)
producer.start()
for number in range(20):
    producer.send_soon(sys.argv[2], b"%d" % number)
"""
AIO_END = """
import asyncio, sys
import metaq.aio
from metaq.client.producer import send_buffer

send_buffer.EXIT_TIMEOUT_S = float(sys.argv[3])

async def main():
    client = metaq.aio.Client(sys.argv[1])
    await client.start()
    producer = client.producer("p", linger=0.5)
    await producer.start()
    await producer.send(sys.argv[2], b"first") if sys.argv[3] == "60" else None
    for number in range(20):
        await producer.send_soon(sys.argv[2], b"%d" % number)

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [SYNC_END, AIO_END], ids=["sync", "aio"])
def test_messages_of_a_producer_that_is_not_closed_are_sent_at_the_end(
    program: str, server: LocalMetaq
) -> None:
    topic = "ended-sync" if program is SYNC_END else "ended-aio"
    server.create_topic(topic)
    arguments = [sys.executable, "-c", program, server.nameserver, topic, "60"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    bodies = {message.body for message in server.messages(topic)}
    assert {b"%d" % number for number in range(20)} <= bodies


@pytest.mark.parametrize("program", [SYNC_END, AIO_END], ids=["sync", "aio"])
def test_messages_that_are_not_sent_at_the_end_are_counted(program: str) -> None:
    arguments = [sys.executable, "-X", "dev", "-c", program, NOBODY, "t", "0.01"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0
    assert "metaq: 20 messages of send_soon not sent" in ended.stderr
    assert len(re.findall("ResourceWarning: unclosed metaq client", ended.stderr)) == 1


def test_a_client_that_is_dropped_warns_only_if_it_was_started(face: Face) -> None:
    async def start() -> Any:
        client = face.client(NOBODY)
        await face.call(client.start)
        return client

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        unstarted = face.client(NOBODY)
        unstarted.producer("g")
        del unstarted
        gc.collect()
        assert [str(each.message) for each in seen] == []

        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(start())
        producer = client.producer("g")
        portal, session = getattr(client, "_portal", None), getattr(client, "_client", client)._session
        del client
        gc.collect()
        assert not seen, "the producer works on without the variable of its client"
        del producer
        gc.collect()
        assert ["unclosed metaq client" in str(each.message) for each in seen] == [True]
        if portal is not None:
            portal.run(session.close)
            portal.close()
        else:
            loop.run_until_complete(session.close())
        loop.close()


# Closing again.


def test_an_interrupted_close_can_be_repeated(face: Face, server: LocalMetaq) -> None:
    topic = f"interrupted-{face.name}"
    server.create_topic(topic, queues=1)
    begun, may_end = threading.Event(), threading.Event()

    async def handle(message: object) -> None:
        begun.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)

    def handle_plainly(message: object) -> None:
        begun.set()
        may_end.wait(60)

    async def scenario() -> None:
        client = face.client(server.nameserver)
        client.consumer(topic, group=topic, start="earliest")(handle_plainly if face.is_sync else handle)
        await face.call(client.start)
        producer = client.producer("p")
        await face.call(producer.start)
        await face.call(producer.send, topic, b"x")
        await until(begun.is_set)
        if face.is_sync:
            # As Ctrl-C does in a thread that waits for the close.
            closing = client._portal.submit(client._client.close, 60)
            await asyncio.sleep(0.05)
            closing.cancel()
        else:
            task = asyncio.create_task(client.close(60))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait((task,))
        may_end.set()
        await face.call(client.close, 60)
        with metaq.Client(server.nameserver) as other, other.puller(group=topic) as puller:
            (queue,) = await asyncio.to_thread(puller.assign, topic)
            assert await asyncio.to_thread(puller.committed, queue) == 1

    asyncio.run(scenario())
