"""Computes the settings of a broker's group from the options, and checks that they fit together."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from metaq.config.kinds import join_endpoint, split_endpoint
from metaq.config.sources import Config
from metaq.errors import ConfigError
from metaq.ha.register import parse_register
from metaq.settings import ReplicationSettings

if TYPE_CHECKING:
    from metaq.broker.replication.options import ReplicationOptions
    from metaq.ha.settings import HaSettings

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 4096
BEAT_INTERVAL_S_MAX = 1.0


def replication_options(
    config: Config, host: str, port: int, advertised_host: str
) -> ReplicationOptions | None:
    """Returns the group of a broker that listens on this host and port, or None for a lone broker.

    Raises ConfigError if options contradict each other.
    """
    from metaq.broker.replication.options import FixedRoles, ReplicationOptions
    from metaq.config.derive import resolve_host

    register, master, replica_ids = config["register"], config["master"], config["replica_ids"]
    _check_role(config)
    if register is None and master is None and not replica_ids:
        if not config.is_default("replicas") and config["replicas"] == "sync":
            raise ConfigError(
                "replicas=sync (brokerRole=SYNC_MASTER) needs replicas, but none are configured",
                hint="name them with --replica-ids, give the group a --register, or leave replicas out",
            )
        return None
    link_host, link_port = host, port + 1 if port else 0
    if config["replication_listen"] is not None:
        given_host, link_port = split_endpoint(config["replication_listen"])
        link_host = resolve_host(given_host) if given_host else host
    key = _key(config["cluster_key"])
    if not key and not ipaddress.ip_address(link_host).is_loopback:
        raise ConfigError(
            f"the replication port on {link_host} is open to other machines, but there is no cluster_key",
            hint="write a long random text to a file and give it to every node with --cluster-key FILE",
        )
    return ReplicationOptions(
        broker_id=config["id"],
        host=link_host,
        port=link_port,
        advertised_host=advertised_host,
        register=register,
        fixed=None if register is not None else FixedRoles(master, replica_ids),
        key=key,
        ha=_ha_settings(config),
        link=ReplicationSettings(
            catch_up_bytes_per_second=config["catch_up_bytes_per_second"],
            # By then, a master that lives has removed a silent replica from the set or refuses messages.
            followed_ms=None if register is None else int(config["behind_limit_s"] * 2000),
        ),
        state_timeout_s=config["state_timeout_s"],
        relay_s=config["relay_s"],
    )


def apache_ha_listen(config: Config, host: str) -> str | None:
    """Returns the `host:port` for Apache slaves of a broker that listens on this host, or None.

    Raises ConfigError for a port that other machines could reach by mistake.
    """
    from metaq.config.derive import resolve_host

    if config["apache_ha_listen"] is None:
        return None
    given_host, port = split_endpoint(config["apache_ha_listen"])
    address = resolve_host(given_host) if given_host else host
    if not ipaddress.ip_address(address).is_loopback and not config["insecure_listen"]:
        raise ConfigError(
            f"apache_ha_listen={config['apache_ha_listen']} lets other machines copy all messages, because "
            "Apache's protocol has no access control",
            hint="listen on 127.0.0.1, or use --insecure-listen if you trust the network",
        )
    return join_endpoint(address, port)


def _check_role(config: Config) -> None:
    """Raises ConfigError unless id, register, master and replica_ids describe one role."""
    register, master, replica_ids = config["register"], config["master"], config["replica_ids"]
    broker_id = config["id"]
    if config["apache_master"] is not None:
        _check_alone(config)
        return
    if register is not None:
        parse_register(register)
        if master is not None or replica_ids:
            raise ConfigError(
                "register and fixed roles (master, replica_ids) cannot be used together",
                hint="with a register, the nodes choose their master: leave master and replica_ids out",
            )
        if broker_id == 0:
            raise ConfigError(
                "a node of a group with a register needs an id of its own",
                hint="give every node of the group another --id, from 1 on",
            )
        return
    if master is not None and (broker_id == 0 or replica_ids):
        raise ConfigError(
            f"master={master} makes this broker a replica, but id=0 and replica_ids belong to a master",
            hint="give the replica an --id from 1 on, and no --replica-ids",
        )
    if replica_ids and broker_id != 0:
        raise ConfigError(
            f"replica_ids makes this broker a fixed master, but its id is {broker_id}",
            hint="a fixed master has --id 0",
        )
    if broker_id != 0 and master is None:
        raise ConfigError(
            f"id={broker_id} asks for a replica, but nothing says which broker is its master",
            hint="give it --master HOST:PORT, the replication address of its master, or a --register",
        )


def _check_alone(config: Config) -> None:
    """Raises ConfigError unless this broker, which copies an Apache master, has no other role."""
    others = [name for name in ("register", "master", "replica_ids") if config[name]]
    if others:
        raise ConfigError(
            f"apache_master={config['apache_master']} and {', '.join(others)} cannot be used together",
            hint="take over from the Apache master first, then restart the broker as a node of a group",
        )
    if config["id"] != 0:
        raise ConfigError(
            f"apache_master={config['apache_master']} makes this broker the next master, but its id is "
            f"{config['id']}",
            hint="leave --id out; a master has the id 0",
        )


def _key(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        key = Path(path).expanduser().read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cluster_key={path} cannot be read: {error.strerror}") from None
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ConfigError(
            f"cluster_key={path} has {len(key)} bytes; it needs {KEY_BYTES_MIN} to {KEY_BYTES_MAX}",
            hint="for example: openssl rand -hex 32 > FILE",
        )
    return key


def _ha_settings(config: Config) -> HaSettings:
    from metaq.ha.settings import HaSettings, ReplicaMode

    election_after_s, hung_after_s = config["election_after_s"], config["hung_after_s"]
    if config.is_default("hung_after_s"):
        hung_after_s = min(hung_after_s, election_after_s)
    try:
        return HaSettings(
            replicas=ReplicaMode(config["replicas"]),
            min_in_sync=config["min_in_sync"],
            # A shorter time needs more beats, or a late one would replace the master.
            beat_interval_s=min(BEAT_INTERVAL_S_MAX, election_after_s / 3, hung_after_s / 2),
            behind_limit_s=config["behind_limit_s"],
            hung_after_s=hung_after_s,
            election_after_s=election_after_s,
            resign_after_s=max(3.0, 2 * config["behind_limit_s"]),
            async_lease_s=election_after_s * 2 / 3,
        )
    except ValueError as error:
        raise ConfigError(f"the settings of the group do not fit together: {error}") from None
