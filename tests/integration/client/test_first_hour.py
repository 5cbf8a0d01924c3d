"""Mistakes of a program's first hour are errors that say what to do, in both faces, on a real broker."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import metaq
from metaq.protocol.errors import Refused
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name, poll_all
from tests.support.clients import Face, create_topic, send
from tests.support.metaq import run as run_command
from tests.support.waiting import run, until


def test_messages_of_send_soon_that_nobody_awaits_are_sent(served: Served) -> None:
    async def scenario() -> None:
        await create_topic(served.broker, "unawaited", queues=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with metaq.aio.Client(served.nameserver) as client:
                async with client.producer("unawaited") as producer:
                    for number in range(300):
                        producer.send_soon("unawaited", b"plain-%d" % number)
                        producer.send_soon("unawaited", b"keyed-%d" % number, key=f"k{number % 3}")
                        producer.send_soon("unawaited", b"properties-%d" % number, properties={"a": "b"})
                    gc.collect()
                async with client.puller(start="earliest") as puller:
                    await puller.assign("unawaited")
                    found = await poll_all(Face("aio"), puller, 900)
        kinds = ("plain", "keyed", "properties")
        assert sorted(found) == sorted(f"{kind}-{number}" for kind in kinds for number in range(300))
        for key in range(3):
            mine = [body for body in found if body in {f"keyed-{n}" for n in range(key, 300, 3)}]
            assert mine == [f"keyed-{number}" for number in range(key, 300, 3)], "the order of a key is kept"

    run(scenario)


def test_a_small_buffer_passes_more_than_it_holds(served: Served) -> None:
    async def scenario() -> None:
        await create_topic(served.broker, "drained", queues=1)
        async with metaq.aio.Client(served.nameserver) as client:
            async with client.producer("drained", buffer_bytes_max=20_000) as producer:
                for number in range(500):
                    producer.send_soon("drained", b"%d" % number + bytes(1000), key="k")
                    await producer.drain()
            async with client.puller(start="earliest") as puller:
                await puller.assign("drained")
                found = await poll_all(Face("aio"), puller, 500)
        assert [int(body.rstrip("\0")) for body in found] == list(range(500))

    run(scenario)


def test_a_flush_waits_for_what_found_no_room(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "roomless")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            producer = client.producer("roomless", buffer_bytes_max=20_000, linger=60)
            await face.call(producer.start)
            if face.is_sync:
                futures = [producer.send_soon(topic, bytes(1000)) for _ in range(10)]
            else:
                futures = [producer.send_soon(topic, bytes(1000)).future for _ in range(35)]
            await face.call(producer.flush, 60)
            assert all(future.done() for future in futures)
            await face.call(producer.drain)
            await face.call(producer.close)

    run(scenario)


def test_a_second_recall_is_refused(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "recalled-twice")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            producer = client.producer("recalls")
            await face.call(producer.start)
            for delay in (30, timedelta(days=2)):
                later = await face.call(producer.send, topic, b"x", delay=delay)
                await face.call(producer.recall, topic, later.recall_handle)
                with pytest.raises(Refused, match="the message was recalled before"):
                    await face.call(producer.recall, topic, later.recall_handle)
            await face.call(producer.close)

    run(scenario)


def test_a_time_without_a_zone_is_local(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "zoned")
        await create_topic(served.broker, topic, queues=1)
        now_s = served.clock.now_ms() / 1000
        async with connected(face, served) as client:
            producer = client.producer("zoned")
            await face.call(producer.start)
            local = datetime.fromtimestamp(now_s + 1)
            assert local.tzinfo is None
            await face.call(producer.send, topic, b"local", deliver_at=local)
            await face.call(producer.send, topic, b"utc", deliver_at=datetime.fromtimestamp(now_s + 1, UTC))
            puller = client.puller(start="earliest")
            await face.call(puller.assign, topic)
            assert sorted(await poll_all(face, puller, 2)) == ["local", "utc"]
            await face.call(producer.close)

    run(scenario)


def test_help_docstring_and_page_say_which_zone_a_time_has() -> None:
    docs = Path(__file__).parents[3] / "docs"
    assert "without a zone, local time" in " ".join(metaq_help("send", "--help").split())
    for method in (metaq.Producer.send, metaq.aio.Producer.send):
        assert "without a time zone is local time" in " ".join((method.__doc__ or "").split())
    assert "Without a time zone it is local time" in (docs / "python.md").read_text(encoding="utf-8")
    assert "A time without a zone" in (docs / "commands.md").read_text(encoding="utf-8")


def metaq_help(*arguments: str) -> str:
    shown = run_command(*arguments, COLUMNS="300")
    assert shown.returncode == 0, shown.stderr
    return str(shown.stdout)


def test_a_failed_batch_is_one_short_line(
    face: Face, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    topic = name(face, "failing-batch")
    sizes: list[int] = []

    def fail(messages: Any) -> None:
        sizes.append(len(messages))
        raise metaq.Reject("no") if len(sizes) > 1 else LookupError("no customer")

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, *(f"{number}" for number in range(50)))
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=topic, start="earliest", batch=50, concurrency=1)
            await face.call(declare, face.handler(fail))
            await until(lambda: sizes)
            await until(lambda: "the handler failed on" in caplog.text)

    run(scenario)
    (line,) = (record.getMessage() for record in caplog.records if "failed on" in record.getMessage())
    assert f"{sizes[0]} messages: " in line
    assert f" and {sizes[0] - 3} more" in line
    assert line.count(",") == 2


async def page(scope: Any, receive: Any, send: Any) -> None:
    """A web page; nobody gets as far as reading it."""


def test_a_web_server_is_not_a_name_server(face: Face) -> None:
    async def scenario() -> None:
        config = uvicorn.Config(page, host="127.0.0.1", port=0, lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        client = face.client(f"127.0.0.1:{port}")
        with pytest.raises(
            metaq.Unreachable, match="the peer speaks HTTP/1, not RocketMQ's remoting protocol"
        ):
            await face.call(client.start, 5)
        server.should_exit = True
        await serving

    run(scenario)
