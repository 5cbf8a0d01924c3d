"""SIGTERM to consuming programs: messages in hand are finished, but not beyond the timeout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from metaq.protocol.bodies import ConsumerList
from metaq.protocol.commands.clients import GetConsumerListByGroup
from metaq.protocol.commands.offsets import QueryConsumerOffset
from tests.integration.client.conftest import Served
from tests.support.clients import create_topic, send
from tests.support.patient import Connection
from tests.support.processes import Child
from tests.support.waiting import run

SYNC = """
import sys, time
import metaq

client = metaq.Client(sys.argv[1])

@client.consumer(sys.argv[2], group=sys.argv[2], start="earliest", concurrency=1)
def handle(message):
    print("begun", message.body.decode(), flush=True)
    while not handle.is_closed:  # The message is in hand when the signal comes.
        time.sleep(0.01)
    time.sleep({longer})
    print("done", message.body.decode(), flush=True)

client.run(timeout={timeout})
print("closed", flush=True)
"""

AIO = """
import asyncio, sys, time
import metaq.aio

async def main():
    client = metaq.aio.Client(sys.argv[1])

    @client.consumer(sys.argv[2], group=sys.argv[2], start="earliest", concurrency=1)
    async def handle(message):
        print("begun", message.body.decode(), flush=True)
        while not handle.is_closed:
            await asyncio.sleep(0.01)
        await asyncio.sleep({longer})
        print("done", message.body.decode(), flush=True)

    await client.run(timeout={timeout})
    print("closed", flush=True)

asyncio.run(main())
"""

# A plain handler of the asyncio face, which cannot be cancelled.
AIO_PLAIN = AIO.replace("async def handle", "def handle").replace("await asyncio.sleep", "time.sleep")
FOR_EVER_S = 3600


def ended_by_sigterm(
    program: str, topic: str, served: Served, home: Path, *, hurried: bool = False
) -> tuple[list[str], int]:
    """Returns what the program printed and the committed offset, once the group is empty.

    If `hurried`, a second signal follows as soon as the first has stopped the consumer.
    """

    async def scenario() -> None:
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "first", "second")
        (home / "program.py").write_text(program)
        arguments = [sys.executable, str(home / "program.py"), served.nameserver, topic]
        child = Child(arguments, home / "program.log", dict(os.environ), directory=home)
        try:
            await asyncio.to_thread(child.wait_for, lambda log: "begun first" in log or None, 60, "a message")
            child.process.send_signal(signal.SIGTERM)
            if hurried:
                await asyncio.to_thread(child.wait_for, lambda log: "closing" in log or None, 60, "the close")
                child.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(child.process.wait, 60) == 0, child.tail()
        finally:
            child.kill()
        connection = await Connection.open(served.broker)
        query = QueryConsumerOffset(consumer_group=topic, topic=topic, queue_id=0)
        offset.append(int((await connection.call(query)).fields.get("offset", 0)))
        async with asyncio.timeout(60):
            while await members(connection, topic):
                await asyncio.sleep(0.02)
        await connection.close()

    offset: list[int] = []
    run(scenario)
    return (home / "program.log").read_text().splitlines(), offset[0]


async def members(connection: Connection, group: str) -> list[str]:
    reply = await connection.call(GetConsumerListByGroup(consumer_group=group))
    return ConsumerList.decode(reply.body).consumer_id_list if reply.code == 0 else []


@pytest.mark.parametrize(("face", "program"), [("sync", SYNC), ("aio", AIO)], ids=["sync", "aio"])
def test_sigterm_ends_a_consumer_in_order(face: str, program: str, served: Served, tmp_path: Path) -> None:
    program = program.format(longer=0.5, timeout=60)
    printed, offset = ended_by_sigterm(program, f"ended-{face}", served, tmp_path)
    assert printed == ["begun first", "done first", "closed"]
    assert offset == 1


@pytest.mark.parametrize(
    ("face", "program"),
    [("sync", SYNC), ("aio", AIO), ("aio-plain", AIO_PLAIN)],
    ids=["sync", "aio", "aio-plain"],
)
def test_sigterm_waits_for_no_handler_that_is_stuck(
    face: str, program: str, served: Served, tmp_path: Path
) -> None:
    """The program ends, although its handler would run for an hour."""
    program = program.format(longer=FOR_EVER_S, timeout=0.5)
    printed, offset = ended_by_sigterm(program, f"stuck-{face}", served, tmp_path)
    assert printed == ["begun first", "closed"]
    assert offset == 0, "the message comes again, to another member"


# Tells when the close has begun to wait for handlers.
TELLS = """
from metaq.client.consumer.group.group_member import GroupMember
stop_taking = GroupMember.stop_taking
async def told(member):
    await stop_taking(member)
    print("closing", flush=True)
GroupMember.stop_taking = told
"""


@pytest.mark.parametrize(("face", "program"), [("sync", SYNC), ("aio", AIO)], ids=["sync", "aio"])
def test_a_second_signal_ends_the_wait_for_a_handler(
    face: str, program: str, served: Served, tmp_path: Path
) -> None:
    program = TELLS + program.format(longer=FOR_EVER_S, timeout=FOR_EVER_S)
    printed, offset = ended_by_sigterm(program, f"hurried-{face}", served, tmp_path, hurried=True)
    assert printed[:2] == ["begun first", "closing"]
    assert printed[-1] == "closed"
    assert offset == 0, "the message comes again, to another member"


EARLY = """
import asyncio, os, signal
import metaq.aio

class Early({client}):
    {define} start(self):
        {wait}super().start()
        os.kill(os.getpid(), signal.SIGTERM)

    {define} close(self, timeout=0):
        {wait}super().close(timeout)
        print("closed", flush=True)

{run}
"""
ASYNCHRONOUS = {
    "client": "metaq.aio.Client",
    "define": "async def",
    "wait": "await ",
    # On a running event loop.
    "run": "async def main():\n    await Early('127.0.0.1:1').run()\nasyncio.run(main())",
}
PLAIN = {"client": "metaq.Client", "define": "def", "wait": "", "run": "Early('127.0.0.1:1').run()"}


@pytest.mark.parametrize("parts", [PLAIN, ASYNCHRONOUS], ids=["sync", "aio"])
def test_a_signal_that_comes_while_it_starts_ends_it_in_order_too(
    parts: dict[str, str], tmp_path: Path
) -> None:
    """With several consumers, the first may already have messages in hand."""
    (tmp_path / "early.py").write_text(EARLY.format(**parts))
    child = Child([sys.executable, str(tmp_path / "early.py")], tmp_path / "early.log", directory=tmp_path)
    try:
        assert child.process.wait(60) == 0, child.tail()
    finally:
        child.kill()
    assert (tmp_path / "early.log").read_text() == "closed\n"
