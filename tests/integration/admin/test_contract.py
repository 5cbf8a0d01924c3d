"""The administration client on MetaQ's broker and on Apache's: the same calls, the same facts."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import metaq
from metaq.admin import READ, Admin, DeadLetter, aio
from metaq.client.session.routes import Queue
from metaq.errors import (
    AlreadyExists,
    MetaqError,
    NoRoute,
    NoSuchGroup,
    NoSuchMessage,
    NotSupported,
    UsageError,
)
from metaq.protocol.bodies import TopicList
from metaq.protocol.commands.topics import GetSystemTopicListFromBroker
from metaq.protocol.errors import Refused, Unreachable
from tests.integration.admin.conftest import Served
from tests.support.clients import send
from tests.support.patient import Connection
from tests.support.processes import free_port
from tests.support.reading import stored_all
from tests.support.waiting import wait_until

BROKER = "broker-a"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def fresh(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex[:8]}"


def filled(cluster: Served, admin: Admin, queues: int = 2, messages: int = 3) -> str:
    """A topic whose first queue holds messages."""
    topic = fresh("T")
    admin.topics.create(topic, queues=queues)
    asyncio.run(send(cluster.broker, topic, *(f"m{number}" for number in range(messages))))
    stored_all(cluster.nameserver, topic, messages)
    return topic


# Topics


async def system_topics(broker: str) -> list[str]:
    """Lists the topics that a broker itself calls system topics."""
    connection = await Connection.open(broker)
    try:
        reply = (await connection.call(GetSystemTopicListFromBroker())).check()
        return TopicList.decode(reply.body).topic_list
    finally:
        await connection.close()


def test_a_topic_is_created_changed_shown_and_deleted(admin: Admin) -> None:
    name = fresh("Life")
    [created] = admin.topics.create(name, queues=3, ordered=True)
    assert (created.broker, created.read_queues, created.write_queues, created.ordered) == (
        BROKER,
        3,
        3,
        True,
    )
    assert admin.topics.create(name, queues=3, ordered=True) == (created,), (
        "creating it again changes nothing"
    )
    with pytest.raises(AlreadyExists, match=f"topic {name} exists on {BROKER} with queues 3, not 4"):
        admin.topics.create(name, queues=4, ordered=True)
    [changed] = admin.topics.change(name, queues=4, permission=READ)
    assert (changed.write_queues, changed.ordered) == (4, True), "the rest stays"
    assert (changed.readable, changed.writable) == (True, False)
    shown = admin.topics.show(name)
    assert shown.settings == (changed,)
    assert [state.queue for state in shown.queues] == [Queue(name, BROKER, number) for number in range(4)]
    assert {(state.messages, state.last_stored_ms) for state in shown.queues} == {(0, None)}
    assert admin.topics.delete(name) == (BROKER,)
    with pytest.raises(NoRoute, match=f"topic {name} does not exist") as missing:
        admin.topics.show(name)
    assert "metaq topic list" in missing.value.hint


def test_topics_are_listed_by_kind(cluster: Served, admin: Admin) -> None:
    name = fresh("Listed")
    admin.topics.create(name)
    kinds = {topic.name: topic.kind for topic in admin.topics.list()}
    assert kinds[name] == "normal"
    assert kinds["TBW102"] == "system"
    assert {kinds[topic] for topic in asyncio.run(system_topics(cluster.broker)) if topic in kinds} == {
        "system"
    }
    assert {topic.name for topic in admin.topics.list(cluster="DefaultCluster")} >= {name}


def test_a_route_names_brokers_and_queues(cluster: Served, admin: Admin) -> None:
    name = fresh("Route")
    admin.topics.create(name, queues=2)
    route = admin.topics.route(name)
    [broker] = route.brokers
    assert (broker.name, broker.cluster, broker.addresses) == (BROKER, "DefaultCluster", {0: cluster.broker})
    assert route.readable == route.writable == (Queue(name, BROKER, 0), Queue(name, BROKER, 1))


def test_attributes_are_set_and_removed(admin: Admin) -> None:
    name = fresh("Typed")
    [created] = admin.topics.create(name, attributes={"message.type": "FIFO"})
    assert created.attributes["message.type"] == "FIFO"
    [changed] = admin.topics.change(name, attributes={"message.type": None})
    assert "message.type" not in changed.attributes
    assert admin.topics.show(name).settings == (changed,)


@pytest.mark.parametrize("name", ["", "bad name", "x" * 300])
def test_a_bad_topic_name_is_refused_before_anything_is_sent(admin: Admin, name: str) -> None:
    with pytest.raises(UsageError):
        admin.topics.create(name)


# Groups


def test_a_group_is_created_changed_shown_and_deleted(admin: Admin) -> None:
    name = fresh("G")
    with pytest.raises(NoSuchGroup, match=f"group {name} does not exist"):
        admin.groups.show(name)
    assert name not in {group.name for group in admin.groups.list().groups}, "asking does not create it"
    [created] = admin.groups.create(name, retries_max=3)
    assert (created.broker, created.retries_max, created.enabled) == (BROKER, 3, True)
    assert admin.groups.create(name, retries_max=3) == (created,)
    with pytest.raises(AlreadyExists, match="retries_max 3, not 16"):
        admin.groups.create(name)
    [changed] = admin.groups.change(name, enabled=False)
    assert (changed.retries_max, changed.enabled) == (3, False)
    shown = admin.groups.show(name)
    assert shown.settings == (changed,)
    assert (shown.members.members, shown.progress.queues, shown.progress.lag) == ((), (), 0)
    listed = {group.name: group for group in admin.groups.list().groups}
    assert (listed[name].kind, listed[name].brokers) == ("normal", (BROKER,))
    assert listed["TOOLS_CONSUMER"].kind == "system"
    assert admin.groups.delete(name) == (BROKER,)
    with pytest.raises(NoSuchGroup):
        admin.groups.delete(name)


def test_members_and_their_subscriptions(cluster: Served, admin: Admin) -> None:
    topic, group = filled(cluster, admin), fresh("G")
    with metaq.Client(cluster.nameserver) as client, client.subscribe(topic, group=group, tags="a || b"):
        wait_until(lambda: bool(admin.groups.members(group).members))
        found = admin.groups.members(group)
        [member] = found.members
        assert (member.client_id, member.brokers) == (client.client_id, (BROKER,))
        # To Apache's brokers, a client has the version of the protocol only.
        version = metaq.__version__ if cluster.kind == "metaq" else "5.5.0"
        assert (member.language, member.version, found.is_broadcasting) == ("PYTHON", version, False)
        assert [s.expression for s in found.subscriptions if s.topic == topic] == ["a || b"]
        assert admin.groups.show(group).members.members == (member,)
        assert group in admin.topics.groups(topic)
    assert admin.groups.members("nobody_here").members == ()


def test_progress_in_messages_and_in_time(cluster: Served, admin: Admin) -> None:
    topic, group = filled(cluster, admin, messages=5), fresh("G")
    admin.groups.create(group)
    first, second = Queue(topic, BROKER, 0), Queue(topic, BROKER, 1)
    admin.offsets.commit(group, {first: 2, second: 0})
    progress = admin.groups.progress(group)
    assert [(q.queue, q.committed_offset, q.end_offset, q.lag) for q in progress.queues] == [
        (first, 2, 5, 3),
        (second, 0, 0, 0),
    ]
    assert progress.lag == 3
    assert progress.lag_ms is not None and 0 <= progress.lag_ms < 300_000
    assert admin.groups.progress(group, topic).queues[0].lag == 3
    assert admin.groups.show(group).progress.lag == 3


# Offsets and resets


def test_a_stopped_group_is_reset_to_every_kind_of_position(cluster: Served, admin: Admin) -> None:
    topic, group = filled(cluster, admin, messages=5), fresh("G")
    queue = Queue(topic, BROKER, 0)
    with pytest.raises(NoSuchGroup):
        admin.groups.reset(group, topic, "earliest")
    admin.groups.create(group)
    planned = admin.groups.reset(group, topic, "latest", dry_run=True)
    assert planned.is_dry_run
    assert [(q.queue.id, q.committed_offset, q.queue_offset) for q in planned.queues] == [
        (0, None, 5),
        (1, None, 0),
    ]
    assert admin.offsets.committed(group, [queue]) == {queue: None}, "a dry run changes nothing"
    assert not admin.groups.apply(planned).is_dry_run
    assert admin.offsets.committed(group, [queue]) == {queue: 5}
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    for position, offset in (("latest", 5), ("earliest", 0), (now + hour, 5), (now - hour, 0)):
        done = admin.groups.reset(group, topic, position)  # type: ignore[arg-type]
        assert not done.is_dry_run
        assert admin.offsets.committed(group, [queue]) == {queue: offset}, position
    with pytest.raises(UsageError, match="offset 3 is outside queue 1"):
        admin.groups.reset(group, topic, 3)
    admin.groups.reset(group, topic, 3, queues=[queue])
    assert admin.offsets.committed(group, [queue]) == {queue: 3}
    with pytest.raises(UsageError, match="no queue 9"):
        admin.groups.reset(group, topic, 0, queues=[Queue(topic, BROKER, 9)])
    with pytest.raises(UsageError, match="'yesterday' is not a position"):
        admin.groups.reset(group, topic, "yesterday")  # type: ignore[arg-type]


def test_a_running_group_is_reset(cluster: Served, admin: Admin) -> None:
    topic, group = filled(cluster, admin, queues=1, messages=4), fresh("G")
    bodies: list[bytes] = []
    seen = threading.Condition()

    def handle(message: metaq.Message) -> None:
        with seen:
            bodies.append(message.body)
            seen.notify_all()

    with metaq.Client(cluster.nameserver) as client:
        client.consumer(topic, group=group, start=LONG_AGO)(handle)
        with seen:
            assert seen.wait_for(lambda: len(bodies) == 4, 60)
        assert admin.groups.reset(group, topic, "earliest").queues[0].queue_offset == 0
        # Apache's broker tells a consumer when the pull that it holds has ended.
        asyncio.run(send(cluster.broker, topic, "new"))
        with seen:
            assert seen.wait_for(lambda: b"new" in bodies and len(bodies) >= 9, 60), bodies
    assert all(bodies.count(b"m%d" % number) == 2 for number in range(4)), bodies


def test_offsets_of_queues(cluster: Served, admin: Admin) -> None:
    topic = filled(cluster, admin, messages=3)
    queue, empty = admin.topics.route(topic).readable
    bounds = admin.offsets.bounds([queue, empty])
    assert [(bounds[q].first, bounds[q].end) for q in (queue, empty)] == [(0, 3), (0, 0)]
    assert admin.offsets.ends([queue]) == {queue: 3}
    assert admin.offsets.at_times({queue: 0}) == {queue: 0}
    assert (queue in admin.offsets.ordered_since([queue])) == cluster.is_metaq
    measured = admin.offsets.measure({queue: (1, 3)})[queue]
    assert (measured.end_offset, measured.before_physical_offset is not None) == (3, True)
    assert measured.size_bytes > 100
    assert (measured.delay_ms is None) == (not cluster.is_metaq)
    assert admin.offsets.replica_ends(queue) == {}


# Messages


def test_messages_are_found(cluster: Served, admin: Admin) -> None:
    topic = fresh("Found")
    admin.topics.create(topic, queues=2)
    before = datetime.now(UTC) - timedelta(seconds=1)
    with metaq.Client(cluster.nameserver) as client, client.producer() as producer:
        first = producer.send(topic, b"first", keys=["k"], tag="red", properties={"colour": "blue"})
        second = producer.send(topic, b"second", keys=["k", "other"])
        # One batch is stored at one time.
        producer.send_many([metaq.Message(topic, b"%d" % number, keys=["batch"]) for number in range(5)])
    # Apache's broker indexes a moment after it has acknowledged.
    wait_until(lambda: len(admin.messages.by_key(topic, "k")) == 2)
    [found] = admin.messages.by_id(topic, first.id)
    assert (found.body, found.queue, found.queue_offset) == (b"first", first.queue, first.queue_offset)
    assert (found.id, found.offset_id, found.tag) == (first.id, first.offset_id, "red")
    assert found.properties["colour"] == "blue"
    assert admin.messages.by_offset_id(second.offset_id).body == b"second"
    assert [message.body for message in admin.messages.by_key(topic, "k")] == [b"first", b"second"]
    assert [message.body for message in admin.messages.by_key(topic, "other")] == [b"second"]
    wait_until(lambda: len(admin.messages.by_key(topic, "batch")) == 5)
    assert [int(message.body) for message in admin.messages.by_key(topic, "batch")] == [0, 1, 2, 3, 4]
    assert admin.messages.by_key(topic, "k", end=before) == ()
    after = datetime.now(UTC) + timedelta(minutes=5)
    assert [m.body for m in admin.messages.by_time(topic, before, after)][:2] == [b"first", b"second"]
    assert [m.body for m in admin.messages.by_time(topic, before, after, limit=1)] == [b"first"]
    assert admin.messages.by_time(topic, before - timedelta(hours=1), before) == ()
    with pytest.raises(NoSuchMessage):
        admin.messages.by_id(topic, "F" * 32)
    with pytest.raises(NoSuchMessage):
        admin.messages.by_offset_id("0" * 32)
    with pytest.raises(UsageError, match="not an offset id"):
        admin.messages.by_offset_id("nonsense")


def test_a_topic_is_read_and_followed(cluster: Served, admin: Admin) -> None:
    topic = filled(cluster, admin, messages=40)
    bodies = [message.body.decode() for message in admin.messages.read(topic)]
    assert bodies == [f"m{number}" for number in range(40)]
    asyncio.run(send(cluster.broker, topic, *("x" for _ in range(5)), queue_id=1))
    stored_all(cluster.nameserver, topic, 45)
    assert len([1 for _ in admin.messages.read(topic, 2, 4)]) == 4, "two offsets of each queue"
    followed = admin.messages.read(topic, "latest", follow=True)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(next(followed).body), daemon=True)
    reader.start()
    wait_until(lambda: (asyncio.run(send(cluster.broker, topic, "later")), bool(got))[1])
    assert got == [b"later"]
    followed.close()  # type: ignore[attr-defined]


def test_a_reader_selects_messages(cluster: Served, admin: Admin) -> None:
    topic = fresh("Selected")
    admin.topics.create(topic, queues=3)
    queues = admin.topics.route(topic).writable
    with metaq.Client(cluster.nameserver) as client, client.producer() as producer:
        for number in range(120):
            producer.send_soon(
                topic,
                b"%d" % number,
                tag="even" if number % 2 == 0 else "odd",
                keys=[f"k{number % 10}"],
                properties={"number": str(number)},
                queue=queues[number % 3],
            )
    stored_all(cluster.nameserver, topic, 120)

    def numbers(**options: Any) -> list[int]:
        return sorted(int(message.body) for message in admin.messages.read(topic, **options))

    assert numbers(tags="even") == list(range(0, 120, 2))
    assert numbers(tags=["even", "odd"], key="k3") == list(range(3, 120, 10))
    assert numbers(sql="number BETWEEN 5 AND 8 AND TAGS = 'odd'") == [5, 7]
    assert numbers(queues=[queues[1]]) == list(range(1, 120, 3))
    assert len(numbers(last=7)) == 7
    assert numbers(last=1000, key="k3") == list(range(3, 120, 10))
    assert numbers(last=4, queues=[queues[2]]) == [110, 113, 116, 119]
    assert numbers(last=2, queues=[queues[2]], sql="number < 50") == [44, 47]
    with pytest.raises(UsageError, match="exclude each other"):
        numbers(tags="even", sql="number > 1")
    with pytest.raises(UsageError, match="has no queue 9"):
        numbers(queues=[Queue(topic, BROKER, 9)])
    with pytest.raises(UsageError, match="the expression ends too early"):
        numbers(sql="number >")


def test_a_stored_message_is_sent_again(cluster: Served, admin: Admin) -> None:
    topic, group = fresh("Again"), fresh("G")
    admin.topics.create(topic, queues=2)
    admin.groups.create(group)
    body = b"large " * 2_000  # It is stored compressed.
    with metaq.Client(cluster.nameserver) as client, client.producer() as producer:
        sent = producer.send(topic, body, keys=["k"], tag="red", properties={"colour": "blue"})
    wait_until(lambda: len(admin.messages.by_key(topic, "k")) == 1)
    [message] = admin.messages.by_id(topic, sent.id)
    copy = admin.messages.resend(message)
    assert (copy.id, copy.queue) == (sent.id, sent.queue)
    again = admin.messages.by_offset_id(copy.offset_id)
    assert (again.body, again.tag, again.keys, again.id) == (body, "red", ("k",), sent.id)
    assert again.properties == message.properties
    for_group = admin.messages.resend(again, group=group)
    assert for_group.queue.topic == f"%RETRY%{group}"
    [retried] = stored_all(cluster.nameserver, f"%RETRY%{group}", 1)
    assert retried.system_properties["RETRY_TOPIC"] == topic and retried.body == body
    assert admin.messages.resend(admin.messages.by_offset_id(for_group.offset_id)).queue.topic == topic
    with pytest.raises(NoSuchGroup, match="group nobody_here does not exist"):
        admin.messages.resend(message, group="nobody_here")


def letters_of(admin: Admin, group: str) -> list[DeadLetter]:
    """None while the group does not exist yet."""
    try:
        return list(admin.dead_letters.list(group))
    except NoSuchGroup:
        return []


def test_dead_letters_are_listed_and_sent_again(cluster: Served, admin: Admin) -> None:
    topic, group = filled(cluster, admin, queues=1, messages=3), fresh("G")

    def reject(message: metaq.Message) -> None:
        raise metaq.Reject

    with metaq.Client(cluster.nameserver) as client:
        client.consumer(topic, group=group, start=LONG_AGO)(reject)
        wait_until(lambda: len(letters_of(admin, group)) == 3)
    letters = list(admin.dead_letters.list(group))
    assert sorted(letter.message.body for letter in letters) == [b"m0", b"m1", b"m2"]
    assert {letter.origin_topic for letter in letters} == {topic}
    others = [letters[0].message.id, letters[2].message.id]
    one = admin.dead_letters.resend_one(group, letters[1].message.offset_id)
    assert one.message.body == letters[1].message.body
    # The copy is found by the key index, which follows the log.
    wait_until(lambda: [letter.message.id for letter in admin.dead_letters.list(group)] == others)
    page = admin.dead_letters.newest(group)
    assert (sorted(letter.message.id for letter in page.letters), page.resent) == (sorted(others), 1)
    assert admin.dead_letters.counts([group])[0].waiting == 3, "the group's place is before all of them"
    [first] = admin.dead_letters.resend_each(group, [letters[0].message.offset_id])
    assert first.error is None
    # The place has passed both letters that were sent again, so they no longer count.
    assert admin.dead_letters.counts([group])[0].waiting == 1
    page = admin.dead_letters.newest(group)
    assert ([letter.message.id for letter in page.letters], page.resent) == (others[1:], 0)
    assert {letter.origin_topic for letter in page.letters} == {topic}
    pages = [admin.dead_letters.newest(group, resent=True, limit=2)]
    pages.append(admin.dead_letters.newest(group, resent=True, limit=2, before=pages[0].before))
    found = [letter.message.offset_id for page in pages for letter in page.letters]
    assert found == sorted((letter.message.offset_id for letter in letters), reverse=True)
    assert len(list(admin.dead_letters.resend(group, rate=1000))) == 1
    assert list(admin.dead_letters.list(group)) == []
    assert admin.dead_letters.newest(group).letters == ()
    assert len(list(admin.dead_letters.list(group, resent=True))) == 3
    assert len(stored_all(cluster.nameserver, f"%RETRY%{group}", 3)) == 3
    is_stored = cluster.kind == "metaq"
    assert {letter.error_type for letter in letters} == {"Reject" if is_stored else None}
    for wrong in ("nonsense", "0" * 32):
        with pytest.raises(NoSuchMessage, match="metaq dlq list"):
            admin.dead_letters.resend_one(group, wrong)
    [count] = [count for count in admin.dead_letters.counts() if count.group == group]
    assert (count.waiting, count.stored, count.error) == (0, 3, None)
    again = list(admin.dead_letters.resend_each(group, [letters[1].message.id, "nonsense"]))
    assert [outcome.error is None for outcome in again] == [True, False]
    assert admin.dead_letters.find(group, letters[1].message.id).message.body == letters[1].message.body
    for ask in (admin.dead_letters.list, admin.dead_letters.resend):
        with pytest.raises(NoSuchGroup, match="group nobody_here does not exist"):
            list(ask("nobody_here"))


# Servers


def test_the_cluster_and_its_brokers(cluster: Served, admin: Admin) -> None:
    found = admin.brokers.cluster()
    assert [(server.address, server.error) for server in found.name_servers] == [(cluster.nameserver, None)]
    [broker] = found.brokers
    assert (broker.name, broker.cluster, broker.id, broker.is_master) == (BROKER, "DefaultCluster", 0, True)
    assert (broker.address, broker.kind, broker.version) == (cluster.broker, cluster.kind, "5.5.0")


def test_the_configuration_of_a_broker(cluster: Served, admin: Admin) -> None:
    assert admin.brokers.configuration(BROKER).values["brokerName"] == BROKER
    changed = admin.brokers.configure(BROKER, {"autoCreateTopicEnable": "false"})
    assert changed.values["autoCreateTopicEnable"] == "false"
    admin.brokers.configure(cluster.broker, {"autoCreateTopicEnable": "true"})
    assert admin.brokers.configuration(BROKER).values["autoCreateTopicEnable"] == "true"
    with pytest.raises(UsageError):
        admin.brokers.configure(BROKER, {"a=b": "c"})
    with pytest.raises(NoRoute, match="broker nobody"):
        admin.brokers.configuration("nobody")


def test_the_figures_of_a_broker(cluster: Served, admin: Admin) -> None:
    filled(cluster, admin)
    figures = admin.brokers.figures(BROKER)
    assert figures.version == "5.5.0"
    assert figures.started_ms is not None and figures.messages_in is not None and figures.messages_in >= 3
    assert figures.disk_used_ratio is not None and 0 <= figures.disk_used_ratio <= 1
    assert "putTps" in figures.values


# Limits


def test_limits(cluster: Served, admin: Admin) -> None:
    topic, group = fresh("Limited"), fresh("G")
    admin.topics.create(topic)
    admin.groups.create(group)
    assert [(limit.messages_per_second, limit.bytes_per_second) for limit in admin.topics.limits(topic)] == [
        (None, None)
    ]
    if not cluster.is_metaq:
        for limit in (admin.topics.limit, admin.groups.limit):
            with pytest.raises(NotSupported, match="it is not a MetaQ broker"):
                limit(topic, messages_per_second=5)
        return
    [limits] = admin.topics.limit(topic, messages_per_second=5, bytes_per_second=6)
    assert (limits.broker, limits.messages_per_second, limits.bytes_per_second) == (BROKER, 5, 6)
    [limits] = admin.topics.limit(topic, messages_per_second="none")
    assert (limits.messages_per_second, limits.bytes_per_second) == (None, 6)
    assert admin.topics.limits(topic) == (limits,)
    [limits] = admin.groups.limit(group, messages_per_second=7)
    assert admin.groups.limits(group) == (limits,)
    assert limits.messages_per_second == 7
    with pytest.raises(UsageError, match="messages_per_second is 0"):
        admin.topics.limit(topic, messages_per_second=0)


# The other face, and servers that are away


def test_the_other_face(cluster: Served) -> None:
    async def scenario() -> None:
        async with aio.Admin(cluster.nameserver, timeout=30) as admin:
            topic = fresh("T")
            await admin.topics.create(topic, queues=1)
            await send(cluster.broker, topic, "x")
            async for message in admin.messages.read(topic, follow=True):
                assert message.body == b"x"
                break
            names, shown = await asyncio.gather(admin.topics.list(), admin.topics.show(topic))
            assert topic in {name.name for name in names}
            assert shown.messages == 1
        with pytest.raises(MetaqError, match="closed"):
            await admin.topics.list()

    asyncio.run(scenario())


def test_a_name_server_that_is_away(cluster: Served) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with Admin(nobody) as admin, pytest.raises(Unreachable, match="no name server answers"):
        admin.topics.list()
    with Admin(f"{nobody};{cluster.nameserver}") as admin:
        found = admin.brokers.cluster()
    assert [server.error is None for server in found.name_servers] == [False, True]
    with pytest.raises(UsageError, match="host:port"):
        Admin("nonsense")


def test_a_refusal_names_its_reason(admin: Admin, cluster: Served) -> None:
    if cluster.is_metaq:  # Apache's broker takes every setting.
        with pytest.raises(Refused, match="cannot be changed while the broker runs"):
            admin.brokers.configure(BROKER, {"listenPort": "1"})
