"""The cluster that a command asks."""

from __future__ import annotations

from metaq.admin import Admin
from metaq.config import load
from metaq.config.kinds import join_endpoint


def name_servers(namesrv: str | None) -> str:
    """Returns the name servers of the flag, or else of the environment or the configuration file, or else the
    one of a local `metaq serve`."""
    config = load({"namesrv": namesrv})
    addresses: tuple[str, ...] = config["namesrv"] or (join_endpoint(config["host"], config["namesrv_port"]),)
    return ";".join(addresses)


def connect(namesrv: str | None) -> Admin:
    """Returns an administration client; it is a context manager."""
    return Admin(name_servers(namesrv))
