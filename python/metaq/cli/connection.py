"""The cluster that a command asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from metaq.admin import Admin
from metaq.config import load
from metaq.config.kinds import join_endpoint

if TYPE_CHECKING:
    from metaq.admin.broker_groups import BrokerGroups


def name_servers(namesrv: str | None) -> str:
    """Returns the name servers of the flag, or else of the environment or the configuration file, or else the
    one of a local `metaq serve`."""
    config = load({"namesrv": namesrv})
    addresses: tuple[str, ...] = config["namesrv"] or (join_endpoint(config["host"], config["namesrv_port"]),)
    return ";".join(addresses)


def connect(namesrv: str | None) -> Admin:
    """Returns an administration client; it is a context manager."""
    return Admin(name_servers(namesrv))


def cluster_name(cluster: str | None) -> str:
    """Returns the cluster of the flag, or else of the environment or the configuration file."""
    return str(load({"cluster": cluster})["cluster"])


def register_address(register: str | None) -> str | None:
    """Returns the register of the flag, or else of the environment or the configuration file."""
    address: str | None = load({"register": register})["register"]
    return address


@asynccontextmanager
async def broker_groups(
    register: str | None, namesrv: str | None, cluster: str | None
) -> AsyncIterator[BrokerGroups]:
    """Opens a connection to the broker groups of a cluster. With a register, name servers are asked only if
    the flag names them."""
    from metaq.admin.broker_groups import STATUS_TIMEOUT_S, BrokerGroups
    from metaq.admin.calls import Calls
    from metaq.ha.register import open_register

    address = register_address(register)
    opened = open_register(address) if address is not None else None
    calls = Calls(name_servers(namesrv), timeout_s=STATUS_TIMEOUT_S, retry_s=0.0, is_partial=True)
    try:
        asks = opened is None or namesrv is not None
        yield BrokerGroups(calls, cluster_name(cluster), register=opened, asks_nameservers=asks)
    finally:
        await calls.close()
        if opened is not None:
            await opened.close()
