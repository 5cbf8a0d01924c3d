"""Nodes that change their roles, as our name server and Apache's show them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.broker.background.name_server_link import NameServerLink
from metaq.broker.background.registration import Registration
from metaq.broker.state.apache_files import open_journal
from metaq.broker.state.topics import Topics
from metaq.nameserver import NameServer
from metaq.protocol.bodies import READ, WRITE, BrokerMemberGroupBody, TopicRouteData
from metaq.protocol.commands.cluster import GetBrokerMemberGroup, UnregisterBroker
from metaq.protocol.commands.routes import GetRouteInfoByTopic
from metaq.settings import ServerSettings
from tests.support import apache
from tests.support.broker_cluster import Client, broker_options, connected, started_nameserver
from tests.support.processes import free_port
from tests.support.waiting import run, until


@pytest.fixture(scope="module")
def apache_nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    names = apache.start_nameserver(tmp_path_factory.mktemp("names"), jvm_flags=apache.SHORT_LIVED)
    try:
        yield names.address
    finally:
        names.stop()


@pytest.fixture(params=["metaq", "apache"])
def nameserver(request: pytest.FixtureRequest) -> str | None:
    """The address of Apache's name server; None stands for ours, which a test starts on its own loop."""
    return None if request.param == "metaq" else str(request.getfixturevalue("apache_nameserver"))


@asynccontextmanager
async def asked(nameserver: str | None) -> AsyncIterator[Client]:
    if nameserver is not None:
        async with connected(nameserver) as client:
            yield client
        return
    async with started_nameserver() as ours, connected(ours.address) as client:
        yield client


class Nodes:
    """The nodes of one group. They have no sockets: only their registrations are real."""

    def __init__(self, home: Path, ask: Client, name: str) -> None:
        self.ask = ask
        self.name = name
        options = broker_options(home, ask.connection.address)
        self._options = replace(options, broker=replace(options.broker, name=name))
        self._home = home

    async def role(
        self,
        address: str,
        broker_id: int,
        epoch: int,
        *,
        links: list[NameServerLink] | None = None,
        acts_as_master: bool = False,
    ) -> Registration:
        topics = Topics(self._options, Clock(), await open_journal(self._home), _nobody)
        topics.load()
        registration = Registration(
            self._options,
            broker_id,
            topics,
            address,
            lambda: 6,
            state_version=lambda: epoch,
            replication_address=f"127.0.0.1:{int(address.rpartition(':')[2]) - 1}",
            acts_as_master=acts_as_master,
            links=links,
        )
        await registration.start()
        return registration

    async def route(self) -> tuple[dict[int, str], int]:
        """Returns the addresses and the permission; nothing and 0 if the group is not there."""
        reply = await self.ask.connection.call(
            GetRouteInfoByTopic(topic=self.name, accept_standard_json_only=True)
        )
        if reply.code != 0:
            return {}, 0
        route = TopicRouteData.decode(reply.body)
        return dict(route.broker_datas[0].broker_addrs), route.queue_datas[0].perm & (READ | WRITE)

    async def addresses(self) -> dict[int, str]:
        return (await self.route())[0]

    async def members(self) -> dict[int, str]:
        command = GetBrokerMemberGroup(cluster_name="DefaultCluster", broker_name=self.name)
        reply = (await self.ask.connection.call(command)).check()
        return dict(BrokerMemberGroupBody.decode(reply.body).broker_member_group.broker_addrs)

    async def unregister(self, role: Registration, address: str, broker_id: int) -> None:
        """Lets the name server forget a role that does not know it: only its own connection can do that."""
        command = UnregisterBroker(
            broker_name=self.name, broker_addr=address, cluster_name="DefaultCluster", broker_id=broker_id
        )
        [link] = role._links
        await link.call(command, b"", 20)


async def _nobody(topics: object) -> None:
    return None


def test_the_route_follows_a_master_switch_and_refuses_the_zombie(
    tmp_path: Path, nameserver: str | None
) -> None:
    one, two = "127.0.0.1:10911", "127.0.0.1:20911"

    async def scenario() -> None:
        async with asked(nameserver) as ask:
            nodes = Nodes(tmp_path, ask, "switched")
            first = await nodes.role(one, 0, 1)
            second = await nodes.role(two, 2, 1)
            assert await nodes.route() == ({0: one, 2: two}, 6)

            # Node 2 is elected. Its address moves from id 2 to id 0, and the group is never missing.
            second = await nodes.role(two, 0, 2, links=await second.hand_over())
            assert await nodes.addresses() == {0: two}

            # The former master does not know yet, so it registers again and leaves.
            zombie = await nodes.role(one, 0, 1)
            assert await nodes.addresses() == {0: two}
            await nodes.unregister(zombie, one, 0)
            assert await nodes.addresses() == {0: two}
            await zombie.stop()
            assert await nodes.addresses() == {0: two}

            # It learns of the new epoch and follows.
            first = await nodes.role(one, 1, 2, links=await first.hand_over())
            assert await nodes.route() == ({0: two, 1: one}, 6)
            assert await nodes.members() == {0: two, 1: one}

            # A planned switch back: both change their roles.
            second, first = (
                await nodes.role(two, 2, 3, links=await second.hand_over()),
                await nodes.role(one, 0, 3, links=await first.hand_over()),
            )
            assert await nodes.route() == ({0: one, 2: two}, 6)
            await second.stop()
            await first.stop()
            await until(lambda: _is_empty(nodes))

    run(scenario)


async def _is_empty(nodes: Nodes) -> bool:
    return await nodes.addresses() == {}


def test_a_role_change_never_takes_the_group_out_of_the_route(tmp_path: Path, nameserver: str | None) -> None:
    one = "127.0.0.1:10911"

    async def scenario() -> None:
        async with asked(nameserver) as ask, connected(ask.connection.address) as other:
            nodes = Nodes(tmp_path, ask, "steady")
            watched = Nodes(tmp_path, other, "steady")
            role = await nodes.role(one, 0, 1)
            seen: list[dict[int, str]] = []

            async def watch() -> None:
                while True:
                    seen.append(await watched.addresses())

            watching = asyncio.create_task(watch())
            for epoch in range(2, 12):
                role = await nodes.role(one, epoch % 2, epoch, links=await role.hand_over())
            watching.cancel()
            await role.stop()
            assert len(seen) > 10
            assert {tuple(found.values()) for found in seen} == {(one,)}

    run(scenario)


def test_replicas_stay_in_the_route_without_their_master(tmp_path: Path, nameserver: str | None) -> None:
    one, two, three = "127.0.0.1:10911", "127.0.0.1:20911", "127.0.0.1:30911"

    async def scenario() -> None:
        async with asked(nameserver) as ask:
            nodes = Nodes(tmp_path, ask, "masterless")
            master = await nodes.role(one, 0, 1, acts_as_master=True)
            replicas = [
                await nodes.role(two, 2, 1, acts_as_master=True),
                await nodes.role(three, 3, 1, acts_as_master=True),
            ]
            assert await nodes.route() == ({0: one, 2: two, 3: three}, 6)
            await master.stop()
            await until(lambda: _has_left(nodes, one))
            addresses, permission = await nodes.route()
            # Apache's name server shows an acting master only with supportActingMaster=true; ours always.
            assert addresses in ({0: two, 3: three}, {2: two, 3: three})
            assert nameserver is not None or 0 in addresses
            assert permission == 4
            assert await nodes.members() == {2: two, 3: three}

            master = await nodes.role(one, 0, 2, acts_as_master=True)
            assert await nodes.route() == ({0: one, 2: two, 3: three}, 6)
            for role in (master, *replicas):
                await role.stop()

    run(scenario)


async def _has_left(nodes: Nodes, address: str) -> bool:
    addresses = await nodes.addresses()
    return bool(addresses) and address not in addresses.values()


def test_a_forgotten_node_registers_again_within_seconds(tmp_path: Path, nameserver: str | None) -> None:
    one = "127.0.0.1:10911"

    async def scenario() -> None:
        async with asked(nameserver) as ask:
            nodes = Nodes(tmp_path, ask, "forgotten")
            role = await nodes.role(one, 0, 1)
            await nodes.unregister(role, one, 0)
            await until(lambda: _is_empty(nodes))
            # A full registration comes only every 30 s.
            await until(lambda: _is_back(nodes, one), timeout_s=20)
            await role.stop()

    run(scenario)


async def _is_back(nodes: Nodes, address: str) -> bool:
    return await nodes.addresses() == {0: address}


def test_a_silent_node_leaves_and_one_that_asks_stays(tmp_path: Path) -> None:
    """With a clock that the test moves, so only with our name server."""
    clock = Clock.manual(1_750_000_000_000)

    async def scenario() -> None:
        ours = NameServer(ServerSettings(host="127.0.0.1", port=0), clock)
        await ours.start()
        try:
            async with connected(ours.address) as ask:
                nodes = Nodes(tmp_path, ask, "silent")
                one = f"127.0.0.1:{free_port()}"
                role = await nodes.role(one, 0, 1)
                for _ in range(3):
                    seen_ms = ours.routes._by_address[one].seen_ms
                    clock.advance_ms(9_000)
                    # It asks every second by its own clock.
                    await until(
                        lambda was=seen_ms: ours.routes._by_address[one].seen_ms > was,
                        timeout_s=20,
                    )
                    assert ours.routes.expire(clock.now_ms()) == []
                links = await role.hand_over()
                clock.advance_ms(10_001)
                assert [broker.address for broker in ours.routes.expire(clock.now_ms())] == [one]
                for link in links:
                    await link.close()
        finally:
            await ours.stop()

    run(scenario)
