"""Computes the settings of the roles from the options, and checks limits between options.

Nobody configures anything here: each value follows from the options, and each error names the options that
contradict each other.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaq.config.kinds import join_endpoint, split_endpoint, write_bytes
from metaq.config.replication import apache_ha_listen, replication_options
from metaq.config.sources import Config
from metaq.errors import ConfigError
from metaq.settings import KIB, BrokerSettings, NameServerSettings, ServerSettings, StoreSettings

if TYPE_CHECKING:
    from metaq.broker import BrokerOptions
    from metaq.broker.functions import WorkerSettings

FRAME_OVERHEAD_BYTES = 64 * KIB
"""The bytes that a send may need besides its body: the header, with the longest properties."""

OLD_PORT_DISTANCE = 2
"""Clients up to 4.4 connect to the broker's port minus this."""


def nameserver_settings(config: Config, *, alone: bool = False) -> ServerSettings:
    """Returns the settings of a name server. `alone` means a process of its own, which may use `listen`."""
    return _server_settings(config, "namesrv_port", alone)


def nameserver_limits(config: Config) -> NameServerSettings:
    """Returns the limits of a name server's tables. Raises ConfigError if an answer cannot hold them."""
    limits = NameServerSettings(
        answer_bytes_max=config["frame_bytes_max"] - FRAME_OVERHEAD_BYTES,
        **_fields(config, NameServerSettings, without={"answer_bytes_max"}),
    )
    if limits.nameserver_values_bytes_max > limits.answer_bytes_max:
        raise ConfigError(
            f"nameserver_values_bytes_max={limits.nameserver_values_bytes_max} does not fit "
            f"frame_bytes_max={config['frame_bytes_max']}",
            hint=f"an answer needs {write_bytes(FRAME_OVERHEAD_BYTES)} beyond the values",
        )
    return limits


def key_values_file(config: Config, *, alone: bool = False) -> Path | None:
    """Returns the file in which a name server keeps values that tools set, or None for memory only."""
    if config["kv_file"] is not None:
        return Path(config["kv_file"])
    return None if alone else Path(config["data"]) / "namesrv" / "kvConfig.json"


def broker_options(config: Config, nameservers: tuple[str, ...], *, alone: bool = False) -> BrokerOptions:
    """Returns everything that a broker starts with. Raises ConfigError if options contradict each other."""
    from metaq.broker import BrokerOptions
    from metaq.broker.scrubbing.pace import ScrubSettings
    from metaq.broker.state.client_limits import ClientLimits, LockLimits
    from metaq.broker.state.limits import Rates

    server = dataclasses.replace(_server_settings(config, "broker_port", alone), also_old_port=True)
    if server.port and server.port <= OLD_PORT_DISTANCE:
        raise ConfigError(
            f"broker_port={server.port} is too low: old clients use the port {OLD_PORT_DISTANCE} below it"
        )
    return BrokerOptions(
        broker=BrokerSettings(
            store_host=join_endpoint(_advertised_host(config, server.host), server.port),
            **_fields(config, BrokerSettings, without={"store_host", "stands_in"}),
        ),
        server=server,
        store=store_settings(config),
        scrub=ScrubSettings(config["scrub_interval_s"], config["scrub_bytes_per_second"]),
        nameservers=nameservers,
        auto_create_topic=config["auto_create_topic"],
        auto_create_group=config["auto_create_group"],
        default_topic_queues=config["default_topic_queues"],
        permission=config["permission"],
        enable_property_filter=config["enable_property_filter"],
        filters=worker_settings(config),
        register_interval_s=config["register_interval_s"],
        offsets_persist_interval_s=config["offsets_persist_interval_s"],
        register_timeout_s=config["register_timeout_s"],
        register_wait_s=config["register_wait_s"],
        announce_timeout_s=config["announce_timeout_s"],
        topics_max=config["topics_max"],
        topics_reserved_percent=config["topics_reserved_percent"],
        groups_max=config["groups_max"],
        clients=ClientLimits(
            clients_per_group_max=config["clients_per_group_max"],
            subscriptions_per_client_max=config["subscriptions_per_client_max"],
            bytes_per_client_max=config["client_bytes_max"],
            bytes_per_group_max=config["group_clients_bytes_max"],
            bytes_max=config["clients_bytes_max"],
            bytes_per_address_max=config["clients_bytes_per_address_max"],
        ),
        locks=LockLimits(
            total_max=config["queue_locks_max"], per_connection_max=config["queue_locks_per_connection_max"]
        ),
        client_expiry_s=config["client_expiry_s"],
        client_answer_timeout_s=config["client_answer_timeout_s"],
        client_status_timeout_s=config["client_status_timeout_s"],
        reply_timeout_s=config["reply_timeout_s"],
        queue_lease_s=config["queue_lease_s"],
        transaction_check_interval_s=config["transaction_check_interval_s"],
        transaction_check_max=config["transaction_check_max"],
        transaction_renew_s=config["transaction_renew_s"],
        operator_requests=config["operator_requests"],
        send_default=Rates(config["topic_messages_per_second"], config["topic_bytes_per_second"]),
        reset_notices_bytes_max=config["reset_notices_bytes_max"],
        send_back_bytes_per_second=config["send_back_bytes_per_second"],
        consume_default=Rates(config["group_messages_per_second"], config["group_bytes_per_second"]),
        replication=replication_options(
            config, server.host, server.port, _advertised_host(config, server.host)
        ),
        apache_master=config["apache_master"],
        apache_ha_listen=apache_ha_listen(config, server.host),
        server_side_reset=config["server_side_reset"],
        store_replies=config["store_replies"],
        settings=config.settings,
    )


def worker_settings(config: Config) -> WorkerSettings:
    from metaq.broker.functions import WorkerSettings

    return WorkerSettings(
        sources=tuple(_function_source(source) for source in config["filter_functions"]),
        timeout_ms=config["filter_timeout_ms"],
        memory_bytes=config["filter_memory_bytes"],
        batch_messages_max=config["filter_batch_messages_max"],
        batch_bytes_max=config["filter_batch_bytes_max"],
        workers_max=config["filter_workers"],
        idle_s=config["filter_idle_s"],
        readable=tuple(str(Path(path).expanduser().absolute()) for path in config["filter_read_paths"]),
        private=tuple(
            str(Path(config[option]).expanduser().absolute())
            for option in ("data", "cluster_key", "kv_file")
            if config[option] is not None
        ),
        network=config["filter_network"],
    )


def _function_source(source: str) -> str:
    """Returns the absolute path of a folder, or the name of a module. Raises ConfigError otherwise."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return str(folder.absolute())
    if not all(part.isidentifier() for part in source.split(".")):
        raise ConfigError(f"filter_functions: {source} is neither a folder nor the name of a module")
    return source


def _delay_levels(text: str) -> tuple[int, ...]:
    from metaq.broker.state.delay_progress import parse_levels

    try:
        return parse_levels(text)
    except ValueError as error:
        raise ConfigError(f"delay_levels: {error}") from None


def store_settings(config: Config) -> StoreSettings:
    check_disk_levels(
        config["disk_clean_percent"], config["disk_force_clean_percent"], config["disk_refuse_percent"]
    )
    body_max, frame_max = config["message_size_bytes_max"], config["frame_bytes_max"]
    if body_max + FRAME_OVERHEAD_BYTES > frame_max:
        raise ConfigError(
            f"message_size_bytes_max={body_max} does not fit frame_bytes_max={frame_max}",
            hint=f"a frame needs {write_bytes(FRAME_OVERHEAD_BYTES)} beyond the body",
        )
    directory = str(Path(config["data"]).expanduser())
    return StoreSettings(
        directory=directory,
        delay_levels_ms=_delay_levels(config["delay_levels"]),
        **_fields(config, StoreSettings, without={"delay_levels_ms", "directory", "replicated"}),
    )


def check_disk_levels(clean: int, force: int, refuse: int) -> None:
    """Raises ConfigError unless the levels rise."""
    if not clean <= force <= refuse:
        raise ConfigError(
            f"disk_clean_percent={clean}, disk_force_clean_percent={force} and disk_refuse_percent={refuse} "
            "must rise in this order",
            hint="set those that are in the way with the same command",
        )


def metrics_address(config: Config) -> tuple[str, int] | None:
    """Returns host and port of the pages for monitoring, or None without such pages. Raises ConfigError."""
    if not config["metrics"]:
        return None
    host, port = split_endpoint(config["metrics_listen"])
    address = resolve_host(host or config["host"])
    require_private(address, port, is_open=config["insecure_listen"])
    return address, port


def console_folder(config: Config) -> Path:
    """Returns the folder in which the console of `metaq serve` keeps sessions, links and its audit log."""
    return Path(config["data"]).expanduser().absolute() / "console"


def require_private(address: str, port: int, *, is_open: bool) -> None:
    """Raises ConfigError if other machines can connect to the address, unless that is wanted."""
    if not ipaddress.ip_address(address).is_loopback and not is_open:
        raise ConfigError(
            f"{join_endpoint(address, port)} is open to other machines, but MetaQ has no access control yet",
            hint="listen on 127.0.0.1, or use --insecure-listen if you trust the network",
        )


def _server_settings(config: Config, port_option: str, alone: bool) -> ServerSettings:
    host, port = config["host"], config[port_option]
    if config["listen"] is not None:
        if not alone:
            raise ConfigError(
                f"listen={config['listen']} is only for a name server or a broker in a process of its own",
                hint="use host, namesrv_port and broker_port with metaq serve",
            )
        listen_host, port = split_endpoint(config["listen"])
        host = listen_host or host
    address = resolve_host(host)
    require_private(address, port, is_open=config["insecure_listen"])
    return ServerSettings(
        host=address,
        port=port,
        **_fields(config, ServerSettings, without={"host", "port", "also_old_port"}),
    )


def _fields(config: Config, settings: type[Any], without: set[str]) -> dict[str, Any]:
    """Returns the fields that have the same names as their options."""
    return {
        field.name: config[field.name] for field in dataclasses.fields(settings) if field.name not in without
    }


def resolve_host(host: str) -> str:
    """Returns the address of a host, because records and message ids hold addresses. Raises ConfigError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        raise ConfigError(f"the host {host} cannot be resolved") from None
    # IPv4 first, because it fits the shorter form of message ids, which all clients can read.
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _advertised_host(config: Config, bound: str) -> str:
    if config["advertised_host"] is not None:
        return resolve_host(config["advertised_host"])
    if ipaddress.ip_address(bound).is_unspecified:
        return outward_address()
    return bound


def outward_address() -> str:
    """Returns the address that this machine uses towards others. A datagram connect sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
