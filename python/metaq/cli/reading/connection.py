"""The cluster that a command asks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from metaq.cli.invocation import current
from metaq.cli.reading.contexts import Context, chosen_context
from metaq.errors import NoRoute, NoSuchGroup

if TYPE_CHECKING:
    from metaq.admin import Admin, BrokerFailure
    from metaq.admin.brokers.broker_groups import BrokerGroups
    from metaq.credentials import Credentials

DEFAULT = "127.0.0.1:9876"
"""The name server of a local `metaq serve`."""
CLIENT_VARIABLES = frozenset({"METAQ_CONTEXT", "METAQ_CONTEXTS", "METAQ_CLIENT_DIRECTORY"})
"""Variables that say nothing about name servers. Any other may be an option, or a misspelt one."""


def context_in_use(name: str | None = None) -> tuple[str, Context] | None:
    """Returns the context of the flag, the environment or the file; None if there is none. Raises
    ConfigError."""
    return chosen_context(name or current().context)


def name_servers(namesrv: str | None, *, context: str | None = None) -> str:
    """Returns the name servers of the flag, or else of the context, the environment or the configuration
    file, or else the one of a local `metaq serve`."""
    if given := namesrv or current().namesrv:
        return given
    if chosen := context_in_use(context):
        return chosen[1].namesrv
    if all(name in CLIENT_VARIABLES for name in os.environ if name.startswith("METAQ_")):
        return DEFAULT
    return _configured()


def credentials(servers: str) -> Credentials | None:
    """Returns the user of the context. A flag that names another cluster does not get it."""
    chosen = context_in_use()
    if chosen is None or chosen[1].namesrv != servers:
        return None
    return chosen[1].credentials


def _configured() -> str:
    from metaq.cli.printing.output import note
    from metaq.config import load
    from metaq.config.kinds import join_endpoint

    config = load()
    for text in config.notes:
        note(text)
    addresses: tuple[str, ...] = config["namesrv"] or (join_endpoint(config["host"], config["namesrv_port"]),)
    return ";".join(addresses)


@contextmanager
def connect(namesrv: str | None, *, timeout: float = 5.0, partial: bool = False) -> Iterator[Admin]:
    """Opens an administration client. If a topic or group is not found, the error suggests names that are
    like it."""
    from metaq.admin import Admin

    servers = name_servers(namesrv)
    with Admin(servers, timeout=timeout, partial=partial, credentials=credentials(servers)) as admin:
        try:
            yield admin
        except (NoRoute, NoSuchGroup) as error:
            from metaq.cli.suggestions import add_near_names

            add_near_names(error, admin)
            raise


def cluster_name(cluster: str | None) -> str:
    """Returns the cluster of the flag, or else of the context, the environment or the configuration file."""
    from metaq.config import load

    if cluster is None and (chosen := context_in_use()) and chosen[1].cluster:
        return chosen[1].cluster
    return str(load({"cluster": cluster})["cluster"])


def register_address(register: str | None) -> str | None:
    """Returns the register of the flag, or else of the context, the environment or the configuration file."""
    from metaq.config import load

    if register is None and (chosen := context_in_use()) and chosen[1].register:
        return chosen[1].register
    address: str | None = load({"register": register})["register"]
    return address


@asynccontextmanager
async def broker_groups(
    register: str | None, namesrv: str | None, cluster: str | None
) -> AsyncIterator[BrokerGroups]:
    """Opens a connection to the broker groups of a cluster. With a register, name servers are asked only if
    the flag names them."""
    from metaq.admin.brokers.broker_groups import STATUS_TIMEOUT_S, BrokerGroups
    from metaq.admin.calls import Calls
    from metaq.ha.register import open_register

    address = register_address(register)
    opened = open_register(address) if address is not None else None
    servers = name_servers(namesrv)
    calls = Calls(
        servers,
        timeout_s=STATUS_TIMEOUT_S,
        retry_s=0.0,
        is_partial=True,
        credentials=credentials(servers),
    )
    try:
        asks = opened is None or namesrv is not None
        yield BrokerGroups(calls, cluster_name(cluster), register=opened, asks_nameservers=asks)
    finally:
        await calls.close()
        if opened is not None:
            await opened.close()


def report_failures(failures: Sequence[BrokerFailure]) -> None:
    """Says on standard error which brokers did not answer, so that nobody takes a part for the whole."""
    from metaq.cli.printing.output import note

    for failure in failures:
        note(f"the result lacks {failure.broker}, which did not answer: {failure.reason}")
