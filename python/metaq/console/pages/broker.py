"""One broker: its traffic over time, its own measurements, its clients and its configuration.

A replica has the address of its master with `?node=ID`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.health.redaction import without_secrets
from metaq.admin.results import BrokerFigures, ConnectedClients
from metaq.console.console import console_of
from metaq.console.live.latest import latest_of
from metaq.console.live.parts import Part
from metaq.console.live.tables import BrokerRow
from metaq.console.pages.lists import list_query
from metaq.console.rendering import render

TABS: Final = ("traffic", "figures", "connections", "configuration")
APACHE_GROUPS_MAX: Final = 100
"""An Apache broker needs a request for each group to list its clients."""
CLIENTS_AGE_MS_MAX: Final = 9_000

T = TypeVar("T")


async def traffic(request: Request) -> Response:
    """Facts about the broker, and its traffic over an hour or a day."""
    key, row = _find(request)
    range = "24h" if request.query_params.get("range") == "24h" else "1h"
    return _render(request, "broker/traffic.html", key, row, tab="traffic", range=range)


async def figures(request: Request) -> Response:
    """Everything that the broker measures of itself, under its own names."""
    key, row = _find(request)
    admin = console_of(request).admin

    async def ask(_: BrokerFigures | None) -> BrokerFigures:
        return await admin.brokers.figures(row.health.address)

    found = await latest_of(request).ask(("broker-figures", row.health.address), ask)
    values = dict(found.value.values) if found.value else {}
    return _render(request, "broker/values.html", key, row, tab="figures", **_pairs(request, found, values))


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of a broker, without secrets."""

    values: Mapping[str, str | None]
    """None for a value that may be a secret."""
    changeable: frozenset[str] | None
    """None if the broker does not say what can be changed."""


async def configuration(request: Request) -> Response:
    """All settings of the broker; those that can be changed have a button."""
    key, row = _find(request)
    admin = console_of(request).admin

    async def ask(_: Configuration | None) -> Configuration:
        address = row.health.address
        shown = without_secrets((await admin.brokers.configuration(address)).values)
        return Configuration(shown, await admin.brokers.changeable_settings(address))

    found = await latest_of(request).ask(("broker-configuration", row.health.address), ask)
    values = dict(found.value.values) if found.value else {}
    changeable = found.value.changeable if found.value else frozenset()
    only = request.query_params.get("only") == "changeable" and bool(changeable)
    if only:
        values = {name: value for name, value in values.items() if name in (changeable or ())}
    return _render(
        request,
        "broker/values.html",
        key,
        row,
        tab="configuration",
        changeable=changeable,
        only=only,
        **_pairs(request, found, values),
    )


async def connections(request: Request) -> Response:
    """The producers and consumers that are connected to the broker."""
    key, row = _find(request)
    console = console_of(request)
    query = list_query(request, ("group",), "group", descending=False)
    table = console.live.groups.value
    is_costly = row.health.kind == "rocketmq" and (table is None or len(table.rows) > APACHE_GROUPS_MAX)

    async def ask(_: ConnectedClients | None) -> ConnectedClients:
        return await console.admin.brokers.clients(row.health.address)

    found: Part[ConnectedClients] = Part()
    if not is_costly:
        address = row.health.address
        found = await latest_of(request).ask(("broker-clients", address), ask, age_ms_max=CLIENTS_AGE_MS_MAX)
    clients = found.value.clients if found.value else ()
    words = query.search.lower().split()
    matching = [
        one
        for one in clients
        if all(word in f"{one.group} {one.client_id} {one.address} {one.kind}".lower() for word in words)
    ]
    return _render(
        request,
        "broker/connections.html",
        key,
        row,
        tab="connections",
        query=query,
        found=found,
        is_costly=is_costly,
        shown=matching[query.offset : query.offset + query.limit],
        matching=len(matching),
        total=len(clients),
    )


def _pairs(request: Request, found: Part[T], values: Mapping[str, str | None]) -> dict[str, object]:
    query = list_query(request, ("name",), "name", descending=False)
    wanted = query.search.lower()
    matching = [
        (name, value) for name, value in sorted(values.items()) if wanted in f"{name} {value or ''}".lower()
    ]
    return {
        "query": query,
        "found": found,
        "shown": matching[query.offset : query.offset + query.limit],
        "matching": len(matching),
        "total": len(values),
    }


def _find(request: Request) -> tuple[str, BrokerRow]:
    name, node = request.path_params["broker"], request.query_params.get("node", "")
    key = f"{name}/{node}" if node else name
    rows = console_of(request).live.brokers.value or {}
    if key not in rows:
        raise HTTPException(404, f"There is no broker {key}.")
    return key, rows[key]


def _render(request: Request, template: str, key: str, row: BrokerRow, **context: object) -> Response:
    health = console_of(request).live.health.value
    groups = () if health is None else health.groups
    group = next((one for one in groups if one.name == row.health.name), None)
    node = request.query_params.get("node") or None
    return render(request, template, 200, key=key, row=row, node=node, group=group, tabs=TABS, **context)


ROUTES = [
    Route("/cluster/{broker}", traffic),
    Route("/cluster/{broker}/figures", figures),
    Route("/cluster/{broker}/connections", connections),
    Route("/cluster/{broker}/configuration", configuration),
]
