"""The health of the cluster that a command names, once or until it is good."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from metaq.cli.reading.connection import cluster_name, connect, context_in_use, register_address

if TYPE_CHECKING:
    from metaq.admin import Admin, Health

POLL_S: Final = 0.5


def check_health(*, register: str | None, namesrv: str | None, cluster: str | None) -> Health:
    """Checks once. With a register, name servers are asked only if a flag names them. Without one, all
    clusters of the name servers count, unless a flag or the context names one."""
    with connect(namesrv, timeout=3.0, partial=True) as admin:
        return _check(admin, register, namesrv, cluster)


def wait_until_healthy(
    seconds: float, *, register: str | None, namesrv: str | None, cluster: str | None
) -> Health:
    """Checks again and again, and shows the reason to wait on standard error. Returns the last health."""
    from metaq.cli.printing.output import note

    deadline = time.monotonic() + seconds
    reason = ""
    with connect(namesrv, timeout=3.0, partial=True) as admin:
        while True:
            health = _check(admin, register, namesrv, cluster)
            if health.healthy or time.monotonic() >= deadline:
                return health
            if health.summary != reason:
                reason = health.summary
                note(f"waiting: {reason}")
            time.sleep(min(POLL_S, max(deadline - time.monotonic(), 0)))


def _check(admin: Admin, register: str | None, namesrv: str | None, cluster: str | None) -> Health:
    address = register_address(register)
    if address is not None:
        asks = namesrv is not None
        return admin.health.check(cluster=cluster_name(cluster), register=address, ask_name_servers=asks)
    if cluster is None and (chosen := context_in_use()):
        cluster = chosen[1].cluster
    return admin.health.check(cluster=cluster)
