"""The clients that are connected to brokers, on asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.groups.group_settings import config_pages
from metaq.admin.results import ClientKind, ConnectedClient
from metaq.admin.versions import version_text
from metaq.protocol.bodies import ConsumerConnection, ProducerTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import GetAllProducerInfo, GetConsumerConnectionList
from metaq.protocol.commands.health import ClientPage, ListClients

PAGES_MAX: Final = 1_000
_UNSUPPORTED: Final = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class BrokerClients:
    """The clients of one broker, and the parts that it cannot list."""

    clients: tuple[ConnectedClient, ...]
    notes: tuple[str, ...] = ()


async def clients_of(calls: Calls, broker: str, kind: ClientKind | None = None) -> BrokerClients:
    """Lists the clients of a broker, or those of one kind: page by page on MetaQ's. Apache's brokers list all
    producers at once, and consumers group by group."""
    found: list[ConnectedClient] = []
    for _ in range(PAGES_MAX):
        reply = await calls.ask(broker, ListClients(first=len(found)), accept=(_UNSUPPORTED,))
        if reply.code == _UNSUPPORTED:
            return await _clients_of_apache(calls, broker, kind)
        page = ClientPage.decode(reply.body)
        found += (
            ConnectedClient(
                client.kind,
                client.group,
                client.client_id,
                client.address,
                client.language,
                client.client_version or version_text(client.version),
                (broker,),
                client.heartbeat_ms,
            )
            for client in page.clients
        )
        if not page.clients or len(found) >= page.total:
            break
    return BrokerClients(tuple(client for client in found if kind in (None, client.kind)))


async def _clients_of_apache(calls: Calls, broker: str, kind: ClientKind | None) -> BrokerClients:
    found: list[ConnectedClient] = []
    if kind != "producer":
        groups = [name async for page in config_pages(calls, broker) for name in page]
        consumers = await in_parallel(groups, lambda group: _consumers(calls, broker, group))
        found = [client for group in sorted(consumers) for client in consumers[group]]
        if kind == "consumer":
            return BrokerClients(tuple(found))
    reply = await calls.ask(broker, GetAllProducerInfo(), accept=(_UNSUPPORTED,))
    if reply.code == _UNSUPPORTED:
        note = f"{broker} cannot list its producers; brokers from 5.0 on can"
        return BrokerClients(tuple(found), (note,))
    for group, producers in ProducerTable.decode(reply.body).data.items():
        found += (
            ConnectedClient(
                "producer",
                group,
                producer.client_id,
                producer.remote_ip.removeprefix("/"),
                producer.language,
                producer.client_version or version_text(producer.version),
                (broker,),
                producer.last_update_timestamp or None,
            )
            for producer in producers
        )
    return BrokerClients(tuple(found))


async def _consumers(calls: Calls, broker: str, group: str) -> list[ConnectedClient]:
    offline = ResponseCode.CONSUMER_NOT_ONLINE
    reply = await calls.ask(broker, GetConsumerConnectionList(consumer_group=group), accept=(offline,))
    if reply.code == offline:
        return []
    return [
        ConnectedClient(
            "consumer",
            group,
            client.client_id,
            client.client_addr,
            client.language,
            client.client_version or version_text(client.version),
            (broker,),
        )
        for client in ConsumerConnection.decode(reply.body).connection_set
    ]


def joined(clients: Iterable[ConnectedClient]) -> tuple[ConnectedClient, ...]:
    """Returns each client of a group once, with all its brokers, by group and client id."""
    found: dict[tuple[str, str, str], ConnectedClient] = {}
    for client in clients:
        key = (client.group, client.kind, client.client_id)
        known = found.get(key)
        if known is not None:
            brokers = tuple(sorted({*known.brokers, *client.brokers}))
            beats = [beat for beat in (known.heartbeat_ms, client.heartbeat_ms) if beat is not None]
            client = replace(client, brokers=brokers, heartbeat_ms=max(beats, default=None))
        found[key] = client
    return tuple(found[key] for key in sorted(found))
