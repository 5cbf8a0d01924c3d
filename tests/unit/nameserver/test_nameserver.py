"""A name server over its socket: every command, in both encodings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metaq._core import Clock, encode_frame
from metaq.nameserver import NameServer, nameserver
from metaq.protocol.bodies import (
    BrokerData,
    BrokerMemberGroupBody,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from metaq.protocol.commands.cluster import (
    BrokerHeartbeat,
    BrokerRegistered,
    DataVersionCompared,
    GetBrokerMemberGroup,
    QueryDataVersion,
    RegisterBroker,
    UnregisterBroker,
)
from metaq.protocol.commands.routes import (
    AddWritePermissionOfBroker,
    DeleteKeyValue,
    DeleteTopicInNameServer,
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnUnitTopicList,
    GetKeyValue,
    GetKeyValuesByNamespace,
    GetNameServerConfig,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNameServer,
    GetTopicsByCluster,
    GetUnitTopicList,
    PutKeyValue,
    RegisterTopicInNameServer,
    UpdateNameServerConfig,
    ValueOfKey,
    WipeWritePermissionOfBroker,
)
from metaq.remoting import split_address
from metaq.settings import ServerSettings
from tests.support.patient import Connection
from tests.support.waiting import run, until

MASTER = "127.0.0.1:10911"
VERSION = DataVersion(1, 0, 5)


def body_of(*names: str, version: DataVersion = VERSION, **config: Any) -> bytes:
    table = {name: TopicConfig(topic_name=name, **config) for name in names}
    return RegisterBrokerBody([], TopicConfigTable(version, table)).encode()


def master(**changes: Any) -> RegisterBroker:
    fields: dict[str, Any] = {
        "broker_name": "b",
        "broker_addr": MASTER,
        "cluster_name": "c",
        "broker_id": 0,
        "ha_server_addr": "127.0.0.1:10912",
    }
    return RegisterBroker(**(fields | changes))


class Peer:
    """A name server and one connection to it."""

    def __init__(self, server: NameServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.call = connection.call

    async def topics(self, command: Any = None) -> list[str]:
        reply = await self.call(command or GetAllTopicListFromNameServer())
        return TopicList.decode(reply.check().body).topic_list

    async def route(self, topic: str = "A", **more: Any) -> TopicRouteData:
        reply = await self.call(GetRouteInfoByTopic(topic, **more))
        return TopicRouteData.decode(reply.check().body)

    async def register(self, command: RegisterBroker | None = None, body: bytes | None = None) -> None:
        reply = await self.call(command or master(), body_of("A", "B") if body is None else body)
        reply.check()


@contextlib.asynccontextmanager
async def started(binary: bool = False, clock: Clock | None = None, **options: Any) -> AsyncIterator[Peer]:
    server = NameServer(ServerSettings("127.0.0.1", 0), clock or Clock(), **options)
    await server.start()
    try:
        connection = await Connection.open(server.address, binary=binary)
        yield Peer(server, connection)
        await connection.close()
    finally:
        await server.stop()


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_a_broker_registers_and_a_client_finds_its_topic(binary: bool) -> None:
    async def scenario() -> None:
        async with started(binary) as peer:
            reply = await peer.call(master(), body_of("A", "B", read_queue_nums=4, write_queue_nums=4))
            assert reply.check().header(BrokerRegistered) == BrokerRegistered()
            found = await peer.call(GetRouteInfoByTopic("A"))
            assert found.check().body == (
                b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"b","cluster":"c",'
                b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b",'
                b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
            )
            missing = await peer.call(GetRouteInfoByTopic("Z"))
            assert (missing.code, missing.remark) == (17, "no broker has registered the topic 'Z'")

    run(scenario)


@pytest.mark.parametrize(
    ("version", "standard_only", "ids"),
    [(317, False, b"{0:"), (400, False, b"{0:"), (401, False, b'{"0":'), (317, True, b'{"0":')],
)
def test_old_clients_get_bare_ids(version: int, standard_only: bool, ids: bytes) -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register()
            header = {
                "code": 105,
                "language": "GO",
                "version": version,
                "opaque": 1,
                "flag": 0,
                "extFields": {"topic": "A"} | ({"acceptStandardJsonOnly": "true"} if standard_only else {}),
            }
            text = json.dumps(header).encode()
            reader, writer = await asyncio.open_connection(*split_address(peer.server.address))
            writer.write((len(text) + 4).to_bytes(4) + len(text).to_bytes(4) + text)
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            assert b'"brokerAddrs":' + ids + b'"127.0.0.1:10911"}' in frame
            writer.close()

    run(scenario)


def test_a_compressed_registration() -> None:
    def part(data: bytes) -> bytes:
        return len(data).to_bytes(4) + data

    topics = [b"A 4 8 6 SINGLE_TAG {}", b"B 1 1 6 SINGLE_TAG {}"]
    data = (
        part(VERSION.encode())
        + len(topics).to_bytes(4)
        + b"".join(map(part, topics))
        + part(b"[]")
        + bytes(4)
    )
    body = zlib.compress(data, 9)
    crc = zlib.crc32(body) & 0x7FFFFFFF

    async def scenario() -> None:
        async with started() as peer:
            refused = await peer.call(master(compressed=True, body_crc32=crc ^ 1), body)
            assert (refused.code, refused.remark) == (1, "the body does not match bodyCrc32")
            await peer.register(master(compressed=True, body_crc32=crc), body)
            assert (await peer.route()).queue_datas == [QueueData("b", 6, 4, 0, 8)]

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "body", "words"),
    [
        ({"broker_name": ""}, b"", "brokerName"),
        ({"broker_name": "a b"}, b"", "brokerName"),
        ({"cluster_name": "x" * 256}, b"", "clusterName"),
        ({"broker_addr": "nowhere"}, b"", "brokerAddr"),
        ({"broker_addr": 'a"b:1'}, b"", "brokerAddr"),
        ({"broker_addr": "$(id):1"}, b"", "does not begin with a host name or an IP address"),
        ({"broker_addr": "-rf:1"}, b"", "brokerAddr"),
        ({"broker_addr": "[fe80::1%$(id)]:1"}, b"", "brokerAddr"),
        ({"broker_addr": " h:1"}, b"", "brokerAddr"),
        ({"broker_addr": "h" * 300 + ":1"}, b"", "brokerAddr"),
        ({"ha_server_addr": "h:99999"}, b"", "haServerAddr"),
        ({"broker_id": -1}, b"", "negative"),
        ({}, b"{", "the body is not a valid RegisterBrokerBody"),
        ({"compressed": True}, b"junk", "damaged"),
        ({}, body_of("only"), "must bring all its topics"),
    ],
)
def test_bad_registrations_are_refused(changes: dict[str, Any], body: bytes, words: str) -> None:
    async def scenario() -> None:
        async with started() as peer:
            reply = await peer.call(master(**changes), body)
            assert reply.code in (1, 29)
            assert words in (reply.remark or "")
            assert await peer.topics() == []

    run(scenario)


def test_a_replica_learns_of_its_master() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register()
            replica = await Connection.open(peer.server.address)
            reply = await replica.call(master(broker_id=1, broker_addr="127.0.0.1:20911"), body_of("A", "B"))
            assert reply.check().header(BrokerRegistered) == BrokerRegistered("127.0.0.1:10912", MASTER)
            members = await peer.call(GetBrokerMemberGroup("c", "b"))
            assert members.body == (
                b'{"brokerMemberGroup":{"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:20911"},'
                b'"brokerName":"b","cluster":"c"}}'
            )
            nobody = await peer.call(GetBrokerMemberGroup("c", "x"))
            assert BrokerMemberGroupBody.decode(nobody.body).broker_member_group.broker_addrs == {}
            await replica.close()

    run(scenario)


def test_a_broker_leaves() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register()
            (await peer.call(UnregisterBroker("b", MASTER, "c", 0))).check()
            (await peer.call(UnregisterBroker("b", MASTER, "c", 0))).check()
            assert await peer.topics() == []

    run(scenario)


def test_a_closed_connection_unregisters_its_broker() -> None:
    async def scenario() -> None:
        async with started() as peer:
            first = await Connection.open(peer.server.address)
            own = master(registration_key="the key of this broker")
            (await first.call(own, body_of("A", "B"))).check()
            second = await Connection.open(peer.server.address)
            refused = await second.call(master(registration_key="short"), body_of("A", "B"))
            assert (refused.code, "registrationKey has 5 characters" in (refused.remark or "")) == (29, True)
            (await second.call(own, body_of("A", "B"))).check()
            await first.close()
            await asyncio.sleep(0.1)
            assert await peer.topics() == ["A", "B"]
            await second.close()
            await until(lambda: peer.server.routes.topics() == [])

    run(scenario)


def test_a_silent_broker_expires_and_a_jump_of_the_clock_forgives() -> None:
    clock = Clock.manual(1_000_000)

    def pass_time(server: NameServer, seconds: int) -> None:
        for _ in range(seconds // 5):
            clock.advance_ms(5_000)
            server.expire_brokers()

    async def scenario() -> None:
        async with started(clock=clock) as peer:
            await peer.register(master(heartbeat_timeout_millis=60_000))
            pass_time(peer.server, 60)
            (await peer.call(BrokerHeartbeat("c", MASTER, "b"))).check()
            pass_time(peer.server, 55)
            clock.advance_ms(3_600_000)  # Counts as the five seconds between two scans.
            peer.server.expire_brokers()
            assert await peer.topics() == ["A", "B"]
            pass_time(peer.server, 5)
            assert await peer.topics() == []
            (await peer.call(BrokerHeartbeat("c", MASTER, "b"))).check()
            assert await peer.topics() == []
            await peer.register()
            pass_time(peer.server, 120)
            assert await peer.topics() == ["A", "B"]
            pass_time(peer.server, 5)
            assert await peer.topics() == []

    run(scenario)


def test_brokers_are_scanned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameserver, "SCAN_INTERVAL_MS", 10)

    async def scenario() -> None:
        async with started() as peer:
            await peer.register(master(heartbeat_timeout_millis=1))
            await until(lambda: peer.server.routes.topics() == [])

    run(scenario)


def test_data_versions_are_compared() -> None:
    async def scenario() -> None:
        async with started() as peer:
            query = QueryDataVersion("b", MASTER, "c", 0)
            unknown = await peer.call(query, VERSION.encode())
            assert (unknown.header(DataVersionCompared).changed, unknown.body) == (True, b"")
            await peer.register()
            same = await peer.call(query, VERSION.encode())
            assert (same.header(DataVersionCompared).changed, DataVersion.decode(same.body)) == (
                False,
                VERSION,
            )
            other = await peer.call(query, DataVersion(2, 0, 5).encode())
            assert other.header(DataVersionCompared).changed

    run(scenario)


def test_a_query_of_the_version_is_a_sign_of_life() -> None:
    clock = Clock.manual(1_000_000)

    async def scenario() -> None:
        async with started(clock=clock) as peer:
            await peer.register(master(heartbeat_timeout_millis=1000))
            clock.advance_ms(900)
            await peer.call(QueryDataVersion("b", MASTER, "c", 0), DataVersion(9).encode())
            clock.advance_ms(900)
            assert peer.server.routes.expire(clock.now_ms()) == []

    run(scenario)


def test_lists_for_tools() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register(body=body_of("A", "B"))
            unit = TopicRouteData(queue_datas=[QueueData("b", topic_sys_flag=3, read_queue_nums=1)])
            (await peer.call(RegisterTopicInNameServer("U"), unit.encode())).check()
            (await peer.call(RegisterTopicInNameServer("nothing"))).check()
            info = ClusterInfo.decode((await peer.call(GetBrokerClusterInfo())).body)
            assert info == ClusterInfo({"b": BrokerData({0: MASTER}, "b", "c")}, {"c": ["b"]})
            system = TopicList.decode((await peer.call(GetSystemTopicListFromNameServer())).body)
            assert system == TopicList(MASTER, ["c", "b"])
            assert await peer.topics(GetTopicsByCluster("c")) == ["A", "B", "U"]
            assert await peer.topics(GetTopicsByCluster("x")) == []
            assert await peer.topics(GetUnitTopicList()) == ["U"]
            assert await peer.topics(GetHasUnitSubTopicList()) == ["U"]
            assert await peer.topics(GetHasUnitSubUnUnitTopicList()) == []
            (await peer.call(DeleteTopicInNameServer("U", "other"))).check()
            assert await peer.topics() == ["A", "B", "U"]
            (await peer.call(DeleteTopicInNameServer("U"))).check()
            assert await peer.topics() == ["A", "B"]
            huge = TopicRouteData(queue_datas=[QueueData("b", read_queue_nums=10**6)])
            assert (await peer.call(RegisterTopicInNameServer("U"), huge.encode())).code == 29

    run(scenario)


def test_nobody_takes_system_topics_out_of_the_routes() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register(body=body_of("A", "TBW102", "rmq_sys_any", "b", "c"))
            for topic in ("TBW102", "rmq_sys_any", "b", "c"):
                refused = await peer.call(DeleteTopicInNameServer(topic))
                assert (refused.code, "system topic" in (refused.remark or "")) == (16, True)
            (await peer.call(DeleteTopicInNameServer("A"))).check()
            assert await peer.topics() == ["TBW102", "rmq_sys_any", "b", "c"]

    run(scenario)


def test_write_permission() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register()
            wiped = await peer.call(WipeWritePermissionOfBroker("b"))
            assert wiped.fields == {"wipeTopicCount": "2"}
            assert (await peer.route()).queue_datas[0].perm == 4
            added = await peer.call(AddWritePermissionOfBroker("b"))
            assert added.fields == {"addTopicCount": "2"}
            assert (await peer.route()).queue_datas[0].perm == 6

    run(scenario)


def test_key_values_and_ordered_topics(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"

    async def scenario() -> None:
        async with started(key_values_file=path) as peer:
            await peer.register()
            missing = await peer.call(GetKeyValue("ORDER_TOPIC_CONFIG", "A"))
            assert (missing.code, missing.fields) == (22, {})
            assert (await peer.call(GetKeyValuesByNamespace("ORDER_TOPIC_CONFIG"))).code == 22
            assert (await peer.route()).order_topic_conf is None
            (await peer.call(PutKeyValue("ORDER_TOPIC_CONFIG", "A", "b:4"))).check()
            assert (await peer.route()).order_topic_conf == "b:4"
            value = await peer.call(GetKeyValue("ORDER_TOPIC_CONFIG", "A"))
            assert value.header(ValueOfKey).value == "b:4"
            everything = await peer.call(GetKeyValuesByNamespace("ORDER_TOPIC_CONFIG"))
            assert everything.body == b'{"table":{"A":"b:4"}}'
            registered = await peer.call(master(), body_of("A", "B"))
            assert KVTable.decode(registered.body).table == {"A": "b:4"}
        async with started(key_values_file=path) as peer:
            (await peer.call(DeleteKeyValue("ORDER_TOPIC_CONFIG", "A"))).check()
            assert (await peer.call(GetKeyValue("ORDER_TOPIC_CONFIG", "A"))).code == 22

    run(scenario)


def test_zones_and_acting_masters() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register(master(zone_name="east"))
            replica = master(
                broker_name="w",
                broker_addr="127.0.0.1:3",
                broker_id=2,
                zone_name="west",
                enable_acting_master=True,
            )
            other = await Connection.open(peer.server.address)
            (await other.call(replica, body_of("A", "B"))).check()
            both = await peer.route()
            assert [data.broker_addrs for data in both.broker_datas] == [{0: MASTER}, {0: "127.0.0.1:3"}]
            east = await peer.route(zone_mode="true", zone_name="East")
            assert [data.broker_name for data in east.broker_datas] == ["b"]
            ignored = await peer.route(zone_mode="false", zone_name="east")
            assert len(ignored.broker_datas) == 2
            off = b"# by an operator\nsupportActingMaster = false\n"
            (await peer.call(UpdateNameServerConfig(), off)).check()
            plain = await peer.route(zone_mode="true", zone_name="east")
            assert [data.broker_addrs for data in plain.broker_datas] == [{0: MASTER}, {2: "127.0.0.1:3"}]
            await other.close()

    run(scenario)


def test_only_switches_may_be_set() -> None:
    async def scenario() -> None:
        async with started() as peer:
            before = (await peer.call(GetNameServerConfig())).check().body.decode()
            assert "orderMessageEnable=true\n" in before
            assert f"listenPort={split_address(peer.server.address)[1]}\n" in before
            for text, code in (
                (b"orderMessageEnable=false\nkvConfigPath=/etc/passwd", 16),
                (b"orderMessageEnable=false\nlistenPort=1", 16),
                (b"orderMessageEnable=maybe", 29),
                (b"orderMessageEnable", 29),
                (b"\xff=true", 29),
                (b"x" * 100_000, 29),
            ):
                reply = await peer.call(UpdateNameServerConfig(), text)
                assert reply.code == code
                assert reply.remark
            assert (await peer.call(GetNameServerConfig())).body.decode() == before
            (await peer.call(UpdateNameServerConfig(), b"orderMessageEnable=false")).check()
            (await peer.call(UpdateNameServerConfig(), b"")).check()
            assert "orderMessageEnable=false" in (await peer.call(GetNameServerConfig())).body.decode()
            await peer.register()
            await peer.call(PutKeyValue("ORDER_TOPIC_CONFIG", "A", "b:4"))
            assert (await peer.route()).order_topic_conf is None

    run(scenario)


def test_topics_that_a_master_no_longer_names() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register()
            (await peer.call(UpdateNameServerConfig(), b"deleteTopicWithBrokerRegistration=true")).check()
            await peer.register(body=body_of("B", "C", version=DataVersion(2)))
            assert await peer.topics() == ["B", "C"]

    run(scenario)


def test_unknown_codes_and_oneway_requests() -> None:
    async def scenario() -> None:
        async with started() as peer:
            reader, writer = await asyncio.open_connection(*split_address(peer.server.address))
            writer.write(encode_frame(105, opaque=1, flag=2, fields={"topic": "none"}))
            writer.write(encode_frame(10, opaque=2))
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            assert b'"opaque":2' in frame
            assert b"request code 10 is not supported" in frame
            writer.close()

    run(scenario)


def test_a_taken_port_and_two_stops() -> None:
    async def scenario() -> None:
        async with started() as peer:
            port = split_address(peer.server.address)[1]
            with pytest.raises(OSError):
                NameServer(ServerSettings("127.0.0.1", port), Clock())
        await peer.server.stop()
        async with started() as again:
            assert again.server.address.startswith("127.0.0.1:")

    run(scenario)


def test_many_clients_at_once() -> None:
    async def scenario() -> None:
        async with started() as peer:
            await peer.register()
            connections = [await Connection.open(peer.server.address) for _ in range(50)]
            replies = await asyncio.gather(
                *(c.call(GetRouteInfoByTopic("A"), timeout=60) for c in connections for _ in range(40))
            )
            assert {reply.code for reply in replies} == {0}
            for connection in connections:
                await connection.close()
            assert await peer.topics() == ["A", "B"]

    run(scenario)
