"""Purges and the retention of single topics: nobody gets or counts what is gone, also after a kill."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import metaq
from metaq.admin import Admin
from metaq.broker import Broker
from metaq.errors import UsageError
from metaq.protocol.commands.messages import ConsumerSendMsgBack
from metaq.protocol.commands.purge import PurgeTopic, QueuePlaces
from metaq.protocol.errors import Refused
from metaq.testing import LocalMetaq
from tests.support.broker_cluster import connected, started_nameserver
from tests.support.broker_group import BrokerGroup
from tests.support.clients import send
from tests.support.etcd import Etcd
from tests.support.invoking import CommandLine
from tests.support.metaq import Metaq
from tests.support.waiting import run, until

TOPIC = "orders"


def sent(broker: str, first: int, end: int, topic: str = TOPIC) -> None:
    asyncio.run(send(broker, topic, *(str(number) for number in range(first, end))))


def consumed(nameserver: str, group: str, count: int, topic: str = TOPIC) -> list[int]:
    """Returns the messages that a group gets, in the order of their only queue."""
    found: list[int] = []
    with (
        metaq.Client(nameserver) as client,
        client.subscribe(topic, group=group, start="earliest") as messages,
    ):
        for message in messages:
            found.append(int(message.body))
            if len(found) == count:
                return found
    return found


def held(admin: Admin, topic: str = TOPIC) -> tuple[int, int]:
    [queue] = admin.topics.show(topic).queues
    return queue.first_offset, queue.end_offset


def test_a_purge_is_previewed_made_and_survives_a_kill(tmp_path: Path) -> None:
    serving = Metaq.serve(tmp_path)
    try:
        with Admin(serving.nameserver) as admin:
            admin.topics.create(TOPIC, queues=1)
            sent(serving.broker, 0, 10)
            assert consumed(serving.nameserver, "behind", 3) == [0, 1, 2]
            plan = admin.topics.purge(TOPIC, 7, dry_run=True)
            assert (plan.messages, plan.is_dry_run, held(admin)) == (7, True, (0, 10))
            with pytest.raises(UsageError, match="it holds 0 to 10"):
                admin.topics.purge(TOPIC, 11)
            done = serving.run("topic", "purge", TOPIC, "--to", "7", "--yes", "-o", "json")
            assert done.returncode == 0 and '"messages": 7' in done.stdout, done.stderr
            assert held(admin) == (7, 10)
            assert admin.topics.purge(TOPIC, "earliest").messages == 0, "a start never moves back"
            assert admin.topics.figures_of(TOPIC).messages == 3
        serving.kill()
        serving = Metaq.serve(tmp_path)
        with Admin(serving.nameserver) as admin:
            assert held(admin) == (7, 10)
            sent(serving.broker, 10, 12)
            assert consumed(serving.nameserver, "new", 5) == [7, 8, 9, 10, 11]
            assert consumed(serving.nameserver, "behind", 5) == [7, 8, 9, 10, 11]
    finally:
        serving.stop()


def test_a_topic_that_is_deleted_begins_again(tmp_path: Path) -> None:
    with LocalMetaq(tmp_path) as server, Admin(server.nameserver) as admin:
        admin.topics.create(TOPIC, queues=1)
        sent(server.broker, 0, 10)
        admin.topics.purge(TOPIC, "latest")
        assert held(admin) == (10, 10)
        admin.topics.delete(TOPIC)
        admin.topics.create(TOPIC, queues=1)
        sent(server.broker, 0, 3)
        assert held(admin) == (0, 3)
        server.restart()
        assert held(admin) == (0, 3)


def test_topics_of_the_system_and_wrong_places_are_refused(tmp_path: Path) -> None:
    with LocalMetaq(tmp_path) as server:
        for command, places in (("SCHEDULE_TOPIC_XXXX", {0: 1}), (TOPIC, {9: 1}), (TOPIC, {0: -1})):
            server.create_topic(TOPIC, queues=1)
            with pytest.raises(Refused, match=r"system's own|has no queue"):
                asyncio.run(_purge(server.broker, command, places))


async def _purge(broker: str, topic: str, places: dict[int, int]) -> None:
    async with connected(broker) as client:
        reply = await client.connection.call(PurgeTopic(topic=topic), QueuePlaces(places).encode())
        reply.check()


def test_messages_past_their_age_are_no_longer_delivered_or_counted(tmp_path: Path) -> None:
    with LocalMetaq(tmp_path, frozen=True) as server, Admin(server.nameserver) as admin:
        admin.topics.create(TOPIC, queues=1)
        [kept] = admin.topics.retain(TOPIC, age_ms=3_600_000)
        assert (kept.age_ms, kept.size_bytes) == (3_600_000, None)
        sent(server.broker, 0, 4)
        server.clock.advance(timedelta(minutes=50))
        sent(server.broker, 4, 6)
        assert held(admin) == (0, 6)
        server.clock.advance(timedelta(minutes=20))
        assert held(admin) == (4, 6)
        assert consumed(server.nameserver, "g", 2) == [4, 5]
        server.restart()
        assert held(admin) == (4, 6)
        admin.topics.retain(TOPIC, age_ms="none")
        server.clock.advance(timedelta(minutes=90))
        assert held(admin) == (4, 6)


def test_a_topic_keeps_what_fits_its_size(tmp_path: Path) -> None:
    with LocalMetaq(tmp_path) as server, Admin(server.nameserver) as admin:
        admin.topics.create(TOPIC, queues=1)
        asyncio.run(send(server.broker, TOPIC, *("x" * 1_000 for _ in range(100))))
        admin.topics.retain(TOPIC, size=20_000)
        server.clock.advance(timedelta(minutes=1))
        first, end = held(admin)
        assert end == 100 and 80 < first <= 84, "records are a little longer than their bodies"
        asyncio.run(send(server.broker, TOPIC, *("x" * 1_000 for _ in range(10))))
        server.clock.advance(timedelta(minutes=1))
        assert held(admin) == (first + 10, 110), "each message is counted once"


def test_dead_letters_are_purged_all_or_by_age(tmp_path: Path) -> None:
    with LocalMetaq(tmp_path, frozen=True) as server, Admin(server.nameserver) as admin:

        def letters() -> list[str]:
            return [letter.message.body.decode() for letter in admin.dead_letters.list("weary")]

        for number in range(2):
            asyncio.run(_give_up(server.broker, b"%d" % number))
            server.clock.advance(timedelta(hours=1))
        assert letters() == ["0", "1"]
        before = server.clock.now() - timedelta(minutes=90)
        assert admin.dead_letters.purge("weary", before, dry_run=True).messages == 1
        assert letters() == ["0", "1"]
        admin.dead_letters.purge("weary", before)
        assert letters() == ["1"]
        asked = CommandLine(server.nameserver).invoke("dlq", "purge", "weary", text="n\n")
        assert asked.exit_code != 0 and letters() == ["1"]
        done = CommandLine(server.nameserver).invoke("dlq", "purge", "weary", "--yes")
        assert done.exit_code == 0 and "1 message from the dead letters of weary is gone" in done.stdout
        assert letters() == []
        [count] = admin.dead_letters.counts(["weary"])
        assert count.stored == 0


async def _give_up(broker: str, body: bytes) -> None:
    async with connected(broker) as client:
        await client.heartbeat("weary", TOPIC)
        sent = await client.send(TOPIC, body, UNIQ_KEY=f"{uuid4().hex}".upper())
        place = int(sent.msg_id[-16:], 16)
        back = ConsumerSendMsgBack(physical_offset=place, group="weary", delay_level=-1)
        (await client.connection.call(back)).check()


def test_a_purge_survives_a_switch_of_the_master(tmp_path: Path, etcd: Etcd) -> None:
    register = f"etcd://{','.join(member.address for member in etcd.members)}"

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, register=register) as group,
        ):
            await group.start()
            first = await group.master()
            await group.in_sync(1, 2, 3)
            async with connected(first.address) as client:
                for number in range(10):
                    await client.send(TOPIC, b"%d" % number)
            await _purge(first.address, TOPIC, {0: 6})
            await until(lambda: all(_starts(broker) == 6 for broker in group.running.values()), 30, "starts")
            await group.stop(next(each for each, broker in group.running.items() if broker is first))
            second = await group.master()
            assert _starts(second) == 6
            async with connected(second.address) as client:
                await client.heartbeat("g", TOPIC)
                await client.send(TOPIC, b"10")
                assert [int(body) for body in await client.bodies("g", TOPIC)] == [6, 7, 8, 9, 10]
            await _purge(second.address, TOPIC, {0: 3})
            assert _starts(second) == 6, "it never moves back"

    run(scenario)


def _starts(broker: Broker) -> int:
    return broker.store.min_offset(TOPIC, 0)


def test_a_log_that_lost_its_end_hides_nothing_that_comes_later(tmp_path: Path) -> None:
    with LocalMetaq(tmp_path) as server, Admin(server.nameserver) as admin:
        admin.topics.create(TOPIC, queues=1)
        sent(server.broker, 0, 5)
        # The journal of a broker whose log has lost its end.
        server._loop.run(_put_starts(server._servers.broker, {0: 50}))
        server.restart()
        assert held(admin) == (5, 5)
        sent(server.broker, 5, 8)
        assert held(admin) == (5, 8)


async def _put_starts(broker: Broker, starts: dict[int, int]) -> None:
    topics = broker.master.state.topics
    topics.put_starts(TOPIC, starts)
    await topics.keep()
