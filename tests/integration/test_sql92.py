"""SQL92 filters on a real broker: from a heartbeat, from the pull itself, in held pulls, and wrong ones."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from metaq._core import Clock, Frame, decode_records, encode_frame
from metaq.broker.background.subscription_inquiry import RunningSubscriptions
from metaq.protocol.bodies import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from metaq.protocol.commands.clients import CheckClientConfig, HeartBeat
from metaq.protocol.commands.messages import Pulled, PullMessage
from metaq.protocol.reply import Reply
from tests.support.broker_cluster import (
    SUBSCRIPTION,
    SUSPEND,
    Client,
    broker_options,
    connected,
    started_broker,
)
from tests.support.waiting import run, until
from tests.support.wire import Wire


def sql(topic: str, expression: str, version: int = 1, expression_type: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, sub_version=version, expression_type=expression_type
    )


async def subscribe(client: Client, group: str, *subscriptions: SubscriptionData) -> None:
    data = HeartbeatData(
        client_id=client.client_id,
        consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=list(subscriptions))],
    )
    (await client.connection.call(HeartBeat(), data.encode())).check()


async def pull(
    client: Client,
    topic: str,
    queue_offset: int = 0,
    *,
    carried: str | None = None,
    expression_type: str = "SQL92",
    hold_ms: int = 0,
    version: int = 1,
) -> Reply:
    command = PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        sys_flag=(SUSPEND if hold_ms else 0) | (SUBSCRIPTION if carried is not None else 0),
        suspend_timeout_millis=hold_ms,
        subscription=carried,
        sub_version=version,
        expression_type=expression_type,
    )
    return await client.connection.call(command, timeout=hold_ms / 1000 + 60)


def bodies(reply: Reply) -> list[bytes]:
    return [record.body for record in decode_records(reply.body)]


def next_offset(reply: Reply) -> int:
    return reply.header(Pulled).next_begin_offset


async def send_colors(client: Client, topic: str, *colors: str) -> None:
    for number, color in enumerate(colors):
        await client.send(topic, f"{color}-{number}".encode(), color=color, size=str(number))


def test_a_group_gets_what_its_expression_selects(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await send_colors(client, "t", "red", "green", "red", "blue")
            await subscribe(client, "g", sql("t", "color IN ('red', 'blue') AND size > 0"))
            found = await pull(client, "t")
            assert (found.code, bodies(found)) == (0, [b"red-2", b"blue-3"])
            assert next_offset(found) == 4
            nothing = await pull(client, "t", 4)
            assert nothing.code == 19
            await subscribe(client, "g", sql("t", "color = 'pink'", version=2))
            filtered = await pull(client, "t", version=2)
            assert (filtered.code, next_offset(filtered)) == (20, 4), (
                "passed over, never to be looked at again"
            )

    run(scenario)


def test_a_wrong_expression_stops_its_own_subscription_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await send_colors(client, "good", "red")
            await send_colors(client, "bad", "red")
            await subscribe(client, "g", sql("bad", "color = = 'red'"), sql("good", "color = 'red'"))
            assert bodies(await pull(client, "good")) == [b"red-0"]
            refused = await pull(client, "bad")
            assert refused.code == 23
            assert "line 1, column 9: '=' was not expected here" in (refused.remark or "")
            await subscribe(client, "g", sql("bad", "color = 'red'", version=2))
            assert bodies(await pull(client, "bad", version=2)) == [b"red-0"]

    run(scenario)


def test_a_pull_ahead_of_its_heartbeat_is_not_served_by_an_old_expression(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await send_colors(client, "t", "red", "green")
            await subscribe(client, "g", sql("t", "green", version=1, expression_type="TAG"))
            by_tags = await pull(client, "t", version=2, expression_type="TAG")
            assert len(bodies(by_tags)) == 2, "the client sorts tags out by itself"
            await subscribe(client, "g", sql("t", "color = 'red'", version=3))
            refused = await pull(client, "t", version=4)
            assert refused.code == 25, "this client does not tell"
            assert [frame.code for frame in client.told if frame.code == 307] == [307]
            assert bodies(await pull(client, "t", version=3)) == [b"red-0"]

    run(scenario)


def test_a_consumer_whose_heartbeat_is_late_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(1_750_000_000_000)
        async with started_broker(broker_options(tmp_path), clock) as broker:
            with PlainConsumer(broker.address, [sql("t", "color = 'red'", version=5)]) as consumer:
                async with connected(broker.address) as producer:
                    await send_colors(producer, "t", "red", "green")
                await asyncio.to_thread(consumer.subscribe, sql("t", "color = 'red'", version=4))
                for _ in range(2):
                    code, found = await asyncio.to_thread(consumer.pull, 5)
                    assert (code, found) == (0, [b"red-0"])
                assert consumer.asked == 1
                consumer.subscriptions = [sql("t", "color = 'green'", version=6)]
                assert await asyncio.to_thread(consumer.pull, 5) == (0, [b"red-0"])
                assert await asyncio.to_thread(consumer.pull, 6) == (25, []), "asked a moment ago"
                clock.advance_ms(1_000)
                assert await asyncio.to_thread(consumer.pull, 6) == (0, [b"green-1"])
                assert await asyncio.to_thread(consumer.pull, 7) == (25, []), "it does not know more either"
                assert consumer.asked == 2

    run(scenario)


class PlainConsumer(Wire):
    """A consumer that answers the broker's question for its subscriptions."""

    def __init__(self, address: str, subscriptions: list[SubscriptionData]) -> None:
        super().__init__(int(address.rpartition(":")[2]))
        self.subscriptions = subscriptions
        self.asked = 0

    def subscribe(self, subscription: SubscriptionData) -> None:
        consumer = ConsumerData(group_name="g", subscription_data_set=[subscription])
        assert (
            self._call(34, {}, HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()).code == 0
        )

    def pull(self, version: int) -> tuple[int, list[bytes]]:
        fields: dict[str, object] = {
            "consumerGroup": "g",
            "topic": "t",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 0,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subVersion": version,
            "expressionType": "SQL92",
        }
        frame = self._call(11, fields)
        return frame.code, [record.body for record in decode_records(frame.body)]

    def _call(self, code: int, fields: dict[str, object], body: bytes = b"") -> Frame:
        opaque = self.write(code, fields, body)
        while True:
            frame = self.read()
            if frame.flag & 1 and frame.opaque == opaque:
                return frame
            if frame.code == 307:
                self.asked += 1
                info = RunningSubscriptions(subscription_set=self.subscriptions).encode()
                answer = encode_frame(0, opaque=frame.opaque, flag=1, fields={}, body=info)
                self.socket.sendall(answer)


def test_a_pull_may_carry_its_expression(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            await send_colors(client, "t", "red", "green", "red")
            crossed = broker.listener.figures().crossed
            for _ in range(3):
                found = await pull(client, "t", carried="color = 'red'")
                assert (found.code, bodies(found)) == (0, [b"red-0", b"red-2"])
            assert broker.listener.figures().crossed == crossed + 1, "compiled once"
            everything = await pull(client, "t", carried="*", expression_type="TAG")
            assert len(bodies(everything)) == 3
            wrong = await pull(client, "t", carried="color LIKE 'r%'")
            assert wrong.code == 23 and "column 7" in (wrong.remark or "")
            assert (await pull(client, "t", carried="")).code == 23
            unknown = await pull(client, "t", carried="x", expression_type="GROOVY")
            assert unknown.code == 23 and "GROOVY" in (unknown.remark or "")

    run(scenario)


@pytest.mark.parametrize("expression_type", ["SQL92", "TAG"])
def test_a_pull_waits_on_through_messages_it_does_not_want(tmp_path: Path, expression_type: str) -> None:
    wanted = {"SQL92": "color = 'red'", "TAG": "red"}[expression_type]

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address) as producer,
            connected(broker.address) as client,
        ):
            await producer.send("t", b"first", color="green", TAGS="green")
            await subscribe(client, "g", sql("t", wanted, expression_type=expression_type))
            waiting = asyncio.create_task(
                pull(client, "t", 1, hold_ms=120_000, expression_type=expression_type)
            )
            await until(lambda: broker.listener.figures().held == 1)
            requests = broker.listener.figures().requests
            for number in range(1_000):
                await producer.send("t", b"%d" % number, color="green", TAGS="green")
            assert not waiting.done()
            assert broker.listener.figures().requests == requests + 1_000, "the client asked once"
            await producer.send("t", b"last", color="red", TAGS="red")
            found = await asyncio.wait_for(waiting, 60)  # Woken, not expired after two minutes.
            if expression_type == "TAG":
                # The others were not looked at one by one; the next pulls do that.
                assert (found.code, next_offset(found)) == (20, 801)
                found = await pull(client, "t", 801, expression_type=expression_type)
            assert (found.code, bodies(found), next_offset(found)) == (0, [b"last"], 1_002)

    run(scenario)


def test_a_pull_that_waited_in_vain_goes_on_behind_what_it_did_not_want(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address) as producer,
            connected(broker.address) as client,
        ):
            await send_colors(producer, "t", "green")
            began = time.monotonic()
            waiting = asyncio.create_task(
                pull(client, "t", 1, carried="color = 'red' OR broken > 1", hold_ms=4_000)
            )
            await until(lambda: broker.listener.figures().held == 1)
            await producer.send("t", b"x", color="green", broken="no number")
            await send_colors(producer, "t", "green", "blue")
            reply = await waiting
            assert time.monotonic() - began > 3.9
            assert (reply.code, next_offset(reply)) == (20, 4)
            began = time.monotonic()
            reply = await pull(client, "t", 4, carried="color = 'red'", hold_ms=1_000)
            assert (reply.code, next_offset(reply)) == (19, 4)
            assert time.monotonic() - began > 0.9

    run(scenario)


def test_many_waiting_pulls_with_many_producers_lose_nothing(tmp_path: Path) -> None:
    """Messages arrive all the time while pulls are held, woken, and held again."""

    async def consume(client: Client, color: str, count: int) -> list[bytes]:
        found: list[bytes] = []
        queue_offset = 0
        while len(found) < count:
            reply = await pull(client, "t", queue_offset, carried=f"color = '{color}'", hold_ms=5_000)
            assert reply.code in (0, 19, 20)
            found += bodies(reply)
            assert next_offset(reply) >= queue_offset
            queue_offset = next_offset(reply)
        return found

    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address) as first,
            connected(broker.address) as second,
            connected(broker.address) as client,
        ):
            await first.send("t", b"first", color="none")
            consumers = [
                asyncio.create_task(consume(client, color, 200)) for color in ("red", "green", "blue")
            ]
            for number in range(200):
                await asyncio.gather(
                    first.send("t", b"red-%d" % number, color="red"),
                    second.send("t", b"green-%d" % number, color="green"),
                    second.send("t", b"blue-%d" % number, color="blue"),
                )
            for color, found in zip(("red", "green", "blue"), await asyncio.gather(*consumers), strict=True):
                assert found == [f"{color}-{number}".encode() for number in range(200)]

    run(scenario)


async def check(client: Client, expression: str, expression_type: str = "SQL92") -> Reply:
    body = CheckClientRequestBody(
        client_id="c", group="g", subscription_data=sql("t", expression, expression_type=expression_type)
    )
    return await client.connection.call(CheckClientConfig(), body.encode())


def test_clients_learn_of_a_wrong_expression_before_they_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            assert (await check(client, "a > 5")).code == 0
            assert (await check(client, "a || b", "TAG")).code == 0
            wrong = await check(client, "a > 5 AND\n  b >")
            assert wrong.code == 23 and "line 2, column 6" in (wrong.remark or "")
            assert (await check(client, "(" * 10_000)).code == 23
            assert (await check(client, "a" * 50_000)).code == 23

    run(scenario)


def test_filters_by_property_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path, enable_property_filter=False)
        async with started_broker(options) as broker, connected(broker.address) as client:
            await send_colors(client, "t", "red")
            await subscribe(client, "g", sql("t", "color = 'red'"))
            replies = [
                await check(client, "a > 5"),
                await pull(client, "t"),
                await pull(client, "t", carried="color = 'red'"),
            ]
            for reply in replies:
                assert reply.code == 1
                assert "does not support consumer to filter message by SQL92" in (reply.remark or "")

    run(scenario)


SEARCHES = " OR ".join(f"big CONTAINS 'needle{number}'" for number in range(120))


def test_a_costly_filter_makes_progress_over_many_pulls(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = broker_options(tmp_path)
        async with started_broker(options) as broker, connected(broker.address) as client:
            big = "x" * 31_000
            for number in range(40):
                await client.send("t", b"%d" % number, big=big, color="red" if number % 10 == 9 else "blue")
            found: list[bytes] = []
            pulls = queue_offset = 0
            while queue_offset < 40:
                reply = await pull(client, "t", queue_offset, carried=f"color = 'red' OR {SEARCHES}")
                assert reply.code in (0, 20), reply.remark
                assert next_offset(reply) > queue_offset
                found += bodies(reply)
                pulls, queue_offset = pulls + 1, next_offset(reply)
            assert found == [b"9", b"19", b"29", b"39"], "nothing is skipped"
            assert pulls == 40, "a pull may not examine two messages of this kind"
            cheap = await pull(client, "t", carried="color = 'red'")
            assert (bodies(cheap), next_offset(cheap)) == (found, 40), "all in one pull"
            too_many = " OR ".join(f"a CONTAINS '{number}'" for number in range(800))
            refused = await pull(client, "t", carried=too_many)
            assert refused.code == 23
            assert "800 searches with CONTAINS, the limit is 128" in (refused.remark or "")

    run(scenario)


def test_many_checks_do_not_stop_other_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_broker(broker_options(tmp_path)) as broker,
            connected(broker.address) as hostile,
            connected(broker.address) as healthy,
        ):
            long = " OR ".join(f"a = {number}" for number in range(1_000))
            checks = [asyncio.create_task(check(hostile, f"{long} OR b = {turn}")) for turn in range(100)]
            pool = broker.node.pools.compilation
            await until(lambda: bool(pool._turns._waiting))
            await healthy.send("new-topic", b"x")
            assert (await check(healthy, "quick_one = 1")).code == 0
            assert sum(task.done() for task in checks) < 50, "it did not wait for all of them"
            codes = [(await task).code for task in checks]
            assert set(codes) <= {0, 2} and codes.count(0) >= 64, "the rest may come again"

    run(scenario)
