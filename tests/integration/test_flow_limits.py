"""Rate limits, set by the commands and by Apache's requests, on a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import metaq
from metaq._core import Clock
from metaq.broker import Broker
from metaq.cli.exits import NOT_FOUND
from metaq.protocol.bodies import KVTable, SubscriptionGroupConfig
from metaq.protocol.commands.admin import GetBrokerRuntimeInfo
from metaq.protocol.commands.groups import UpdateAndCreateSubscriptionGroup
from metaq.protocol.commands.messages import Sent
from metaq.protocol.commands.topics import UpdateAndCreateTopic
from metaq.protocol.errors import Refused
from tests.integration.test_commands import document
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.metaq import Metaq
from tests.support.waiting import run, until

NOW_MS = 1_750_000_000_000


async def limit_topic(client: Client, text: str) -> None:
    command = UpdateAndCreateTopic(topic="orders", read_queue_nums=2, write_queue_nums=2, attributes=text)
    (await client.connection.call(command)).check()


async def limit_group(client: Client, **attributes: str) -> None:
    config = SubscriptionGroupConfig(group_name="g", attributes={f"+{k}": v for k, v in attributes.items()})
    (await client.connection.call(UpdateAndCreateSubscriptionGroup(), config.encode())).check()


RATE, BURST = 100, 10
"""Messages per second, and the messages that pass at once: a tenth of a second's worth."""


async def moved(clock: Clock, count: int, done: Callable[[], int], step_ms: int = 20) -> int:
    """Moves the clock until that many are done, and returns by how much."""
    passed_ms = 0
    while True:
        allowed = min(count, BURST + RATE * passed_ms // 1000)
        await until(lambda allowed=allowed: done() >= allowed)
        assert done() == allowed
        if allowed == count:
            return passed_ms
        clock.advance_ms(step_ms)
        passed_ms += step_ms


async def sent_slowly(broker: Broker, client: Client, clock: Clock, count: int) -> list[Sent]:
    """Sends that many at once, and moves the clock by the time that they have to wait."""
    slowed = broker.listener.figures().sends_slowed
    sends = [asyncio.create_task(client.send("orders", b"x")) for _ in range(count)]
    await until(lambda: broker.master.plane.figures().limits_waiting == count - BURST)
    assert await moved(clock, count, lambda: sum(task.done() for task in sends)) == (count - BURST) * 10
    assert broker.listener.figures().sends_slowed - slowed == count - BURST
    return [task.result() for task in sends]


def test_sends_keep_the_rate_and_a_restart_keeps_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(NOW_MS)
        options = broker_options(tmp_path)
        async with started_broker(options, clock) as broker, connected(broker.address) as client:
            await limit_topic(client, "+send.rate.messages=100")
            sent = await sent_slowly(broker, client, clock, 60)
            assert len({each.queue_offset for each in sent}) == 60
        async with started_broker(options, clock) as broker, connected(broker.address) as client:
            await sent_slowly(broker, client, clock, 30)
            reply = (await client.connection.call(GetBrokerRuntimeInfo())).check()
            assert KVTable.decode(reply.body).table["sendSlowedTotal"] == "20"
            await limit_topic(client, "-send.rate.messages")
            await asyncio.gather(*(client.send("orders", b"x") for _ in range(50)))

    run(scenario)


def test_a_group_consumes_at_its_rate_over_all_queues_and_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(NOW_MS)
        async with (
            started_broker(broker_options(tmp_path), clock) as broker,
            connected(broker.address) as client,
            connected(broker.address, "other") as other,
        ):
            await limit_topic(client, "")
            for queue_id in (0, 1):
                for number in range(60):
                    await client.send("orders", b"%d" % number, queue_id)
            await client.heartbeat("g", "orders", "%RETRY%g")
            for number in range(30):
                await client.send("%RETRY%g", b"%d" % number)
            await limit_group(client, **{"consume.rate.messages": "100"})

            found: list[list[bytes]] = [[], [], []]

            async def consume(who: Client, topic: str, queue_id: int, end: int, mine: list[bytes]) -> None:
                while len(mine) < end:
                    code, records, after = await who.pull("g", topic, len(mine), queue_id, hold_ms=60_000)
                    assert code in (0, 20) and after == len(mine) + len(records)
                    mine += [record.body for record in records]

            work = [
                asyncio.create_task(consume(client, "orders", 0, 60, found[0])),
                asyncio.create_task(consume(other, "orders", 1, 60, found[1])),
                asyncio.create_task(consume(client, "%RETRY%g", 0, 30, found[2])),
            ]
            # 150 at 100 a second, with 10 at once.
            assert await moved(clock, 150, lambda: sum(map(len, found))) == 1_400
            await asyncio.gather(*work)
            for mine, end in zip(found, (60, 60, 30), strict=True):
                assert mine == [b"%d" % number for number in range(end)]

    run(scenario)


def test_bad_limits_are_refused_with_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            with pytest.raises(Refused, match=r"send\.rate\.messages cannot be '0'"):
                await limit_topic(client, "+send.rate.messages=0")
            with pytest.raises(Refused, match=r"there are consume\.rate\.bytes"):
                await limit_group(client, **{"consume.rate": "5"})

    run(scenario)


def test_the_commands_set_show_and_take_away_limits(served: Metaq) -> None:
    served.run("topic", "create", "Limited", "--queues", "3")
    limit = ("topic", "limit", "Limited")
    both = document(
        served.run(*limit, "--messages-per-second", "1_000", "--bytes-per-second", "2MB", "-o", "json")
    )
    row = {"broker": "broker-a", "messages_per_second": 1_000, "bytes_per_second": 2_097_152}
    assert both == {"topic": "Limited", "limits": [row]}
    served.run(*limit, "--messages-per-second", "none")
    assert document(served.run(*limit, "-o", "json"))["limits"] == [row | {"messages_per_second": None}]
    queues = document(served.run("topic", "show", "Limited", "-o", "json"))["queues"]
    assert isinstance(queues, list) and len(queues) == 3, "nothing else of the topic changes"
    assert "2 MiB" in served.run(*limit).stdout


def test_the_commands_limit_groups(served: Metaq) -> None:
    missing = served.run("group", "limit", "Shaved")
    assert missing.returncode == NOT_FOUND
    assert missing.stderr.startswith("metaq: group Shaved does not exist; ")
    limit = ("group", "limit", "Shaved", "--messages-per-second", "80000")
    row = {"broker": "broker-a", "messages_per_second": 80_000, "bytes_per_second": None}
    created = served.run(*limit, "-o", "json")
    assert document(created) == {"group": "Shaved", "limits": [row]}
    assert created.stderr == "metaq: group Shaved did not exist and is created\n"
    assert served.run(*limit).stderr == ""
    shown = document(served.run("group", "show", "Shaved", "-o", "json"))
    assert (shown["limits"], shown["lag"], shown["queues"]) == ([row], None, [])
    served.run("group", "limit", "Shaved", "--messages-per-second", "none")
    printed = served.run("group", "show", "Shaved").stdout
    assert "80000" not in printed
    assert printed.startswith("Shaved: no members; it has committed nothing\n")


def test_a_group_is_shown_with_its_lag(served: Metaq) -> None:
    assert served.run("topic", "create", "Lagging", "--queues", "2").returncode == 0
    for body in ("a", "b", "c"):
        assert served.run("send", "Lagging", body, "--queue", "1").returncode == 0
    with metaq.Client(served.nameserver) as client, client.puller(group="Behind", start="earliest") as puller:
        puller.assign(metaq.Queue("Lagging", "broker-a", 1))
        assert puller.poll(timeout=60, count=1)[0].body == b"a"
        puller.commit()
    shown = document(served.run("group", "show", "Behind", "-o", "json"))
    first = {"topic": "Lagging", "broker": "broker-a", "queue": 0, "committed": 0, "max_offset": 0, "lag": 0}
    second = {**first, "queue": 1, "committed": 1, "max_offset": 3, "lag": 2}
    queues = shown["queues"]
    assert isinstance(queues, list)
    assert (shown["lag"], [{key: queue[key] for key in first} for queue in queues]) == (2, [first, second])
    printed = served.run("group", "show", "Behind").stdout.splitlines()
    assert ["Lagging", "broker-a", "1", "1", "3", "2"] in [line.split()[:6] for line in printed]
    assert printed[0].startswith("Behind: no members; 2 messages behind, the oldest for ")


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--messages-per-second", "0", "must be a whole number from 1 to 1000000000"),
        ("--messages-per-second", "fast", "--messages-per-second none removes the limit"),
        ("--bytes-per-second", "2 XB", "must be a size from 1 B to 1 TiB"),
    ],
)
def test_bad_rates_never_leave_the_command(served: Metaq, flag: str, value: str, says: str) -> None:
    outcome = served.run("topic", "limit", "Any", flag, value)
    assert outcome.returncode == 1
    assert says in outcome.stderr
