"""The table of options: name, kind, default and help.

Three sections have files of their own: `broker_options.py` and `store_options.py`.

Flags, the TOML file, `METAQ_…` variables, `--set`, `metaq config show` and docs/configuration.md all use this
table. An option with the name of a field of StoreSettings, ServerSettings or BrokerSettings sets that field
and takes its default.
"""

from __future__ import annotations

from metaq.config.broker_options import BROKER
from metaq.config.kinds import Bytes, Choice, Endpoints, Flag, Levels, Listen, Number, Seconds, Text
from metaq.config.option import PORT, RUN_TIME, Option, section
from metaq.config.store_options import REPLICATION, STORE
from metaq.settings import GIB, KIB, MIB

_ALL: list[Option] = [
    *section(
        "address",
        ("host", Text(r"[^\s:]+|[0-9a-fA-F:]+", "an address"), "127.0.0.1", "Address to listen on."),
        ("namesrv_port", PORT, 9876, "Port of the name server; 0 selects a free one."),
        ("broker_port", PORT, 10911, "Port of the broker; 0 selects a free one."),
        (
            "listen",
            Listen(),
            None,
            "Address of a single name server or broker, instead of host and the role's port.",
        ),
        (
            "kv_file",
            Text(says="a file"),
            None,
            "File for values that tools set with a name server; default: memory, or with serve under data.",
        ),
        (
            "broker_expiry_s",
            Seconds(1, 86_400),
            120.0,
            "A broker that sends nothing for this time counts as gone with a name server.",
        ),
        ("namesrv", Endpoints(), (), "Name servers with which the broker registers and which commands ask."),
        (
            "advertised_host",
            Text(r"\S+", "an address"),
            None,
            "Address at which clients reach the broker; default: the address it listens on.",
        ),
        (
            "insecure_listen",
            Flag(),
            False,
            "Allow other machines to connect, although there is no access control.",
        ),
    ),
    *section(
        "nameserver",
        ("nameserver_brokers_max", Number(1, 100_000), "Brokers that may be registered."),
        (
            "nameserver_brokers_per_address_max",
            Number(1, 100_000),
            "Brokers that may be registered from one address.",
        ),
        ("nameserver_members_max", Number(1, 1_000), "Brokers that may be registered under one name."),
        ("nameserver_broker_topics_max", Number(1, 1_000_000), "Topics of one broker."),
        ("nameserver_topics_max", Number(1, 100_000_000), "Topics, summed over all brokers."),
        (
            "nameserver_topics_per_address_percent",
            Number(1, 100),
            "Part of nameserver_topics_max that the brokers of one address may have.",
        ),
        (
            "nameserver_operator_requests",
            Choice(("local", "any", "none")),
            "Where requests may come from that change values, switches or the write permission of brokers.",
        ),
        (
            "nameserver_values_bytes_max",
            Bytes(KIB, GIB),
            "Size of all values that tools set, as JSON; less than frame_bytes_max.",
        ),
    ),
    *BROKER,
    *REPLICATION,
    *STORE,
    *section(
        "server",
        ("connections_max", Number(1, 1_000_000), "Connections of one listener at most."),
        ("connections_per_address_max", Number(1, 1_000_000), "Connections from one address at most."),
        (
            "connections_silent_max",
            Number(1, 1_000_000),
            "Connections that have not sent a whole frame yet; the oldest ones make way for others.",
        ),
        (
            "frame_bytes_max",
            Bytes(64 * KIB, GIB),
            "Largest frame accepted; at most half of memory_bytes_max.",
        ),
        ("frame_deadline_ms", Number(100), "How long a frame may take to arrive completely."),
        (
            "first_frame_deadline_ms",
            Number(100),
            "A connection that has sent no whole frame after this time is closed.",
        ),
        ("idle_timeout_ms", Number(1_000), "A connection without traffic for this time is closed."),
        ("crossing_requests_max", Number(1), "Requests that may wait for the control plane."),
        (
            "crossing_bytes_max",
            Bytes(MIB, 16 * GIB),
            "Bytes of requests that may wait for the control plane.",
        ),
        (
            "crossing_requests_per_connection_max",
            Number(1),
            "Requests of one connection that may wait for the control plane.",
        ),
        (
            "crossing_bytes_per_connection_max",
            Bytes(64 * KIB, 16 * GIB),
            "Bytes of requests of one connection that may wait for the control plane.",
        ),
        (
            "questions_max",
            Number(1),
            "Requests that may wait for another client, such as replies; one address may have half of them.",
        ),
        (
            "questions_bytes_max",
            Bytes(MIB, 16 * GIB),
            "Bytes of requests that may wait for another client; one address may have half of them.",
        ),
        (
            "questions_per_connection_max",
            Number(1),
            "Requests of one connection that may wait for the answer of another client.",
        ),
        (
            "questions_bytes_per_connection_max",
            Bytes(64 * KIB, 16 * GIB),
            "Bytes of requests of one connection that may wait for the answer of another client.",
        ),
        (
            "questions_per_client_max",
            Number(1),
            "Requests that may wait for the answer of one client, whoever sent them.",
        ),
        ("crossing_age_ms_max", Number(1), "Age at which a waiting request is answered with code 2."),
        (
            "connection_output_bytes_max",
            Bytes(64 * KIB, GIB),
            "Unsent bytes at which a connection is not read until its peer has read some.",
        ),
        (
            "connection_memory_bytes_max",
            Bytes(MIB, 16 * GIB),
            "Memory kept for one connection, unsent answers and waiting requests; beyond it, it is closed.",
        ),
        (
            "group_memory_bytes_max",
            Bytes(MIB, 256 * GIB),
            "Memory kept for one group: waiting pulls, clients, subscriptions; beyond it, pulls are refused.",
        ),
        (
            "memory_bytes_max",
            Bytes(16 * MIB, 256 * GIB),
            "Memory kept for all connections; near it, those that do not read are closed first.",
        ),
        (
            "memory_trim_interval_s",
            Seconds(0, 86_400),
            "How often memory that the control plane has freed is given back to the system; 0: never.",
        ),
        (
            "freed_memory_ms",
            Number(0, 3_600_000),
            "How long the data plane keeps memory that it has freed before the system gets it back.",
        ),
        (
            "slow_request_ms",
            Number(),
            "Log requests that take longer, with the parts of their time; 0: none.",
            RUN_TIME,
        ),
        ("worker_threads", Number(1, 256), "Threads that serve connections."),
        (
            "relay_timeout_ms",
            Number(1, 600_000),
            "How long a replica waits for its master to answer a request that it relays, before code 14.",
        ),
        ("relay_requests_max", Number(1), "Relayed requests that may wait for the master."),
        ("relay_bytes_max", Bytes(MIB, 16 * GIB), "Bytes of relayed requests that may wait for the master."),
        ("held_requests_max", Number(1), "Requests that may wait while a switch moves the master."),
        (
            "held_bytes_max",
            Bytes(MIB, 16 * GIB),
            "Bytes of requests that may wait while a switch moves the master.",
        ),
    ),
    *section(
        "monitoring",
        ("metrics", Flag(), True, "Serve /metrics, /livez and /readyz over HTTP."),
        (
            "metrics_listen",
            Listen(),
            "127.0.0.1:5557",
            "Address of these pages. If the port is taken, a free one is selected.",
        ),
        (
            "metrics_detail",
            Choice(("topics", "broker")),
            "topics",
            "With broker, nothing is shown by topic, group or client.",
        ),
    ),
    *section(
        "console",
        ("console", Flag(), True, "Serve the console on this machine, in a process of its own."),
        (
            "console_port",
            PORT,
            8080,
            "Port of the console; 0 selects a free one, and so does the default if it is taken.",
        ),
        (
            "console_poll_interval_s",
            Seconds(0.5, 3600),
            10.0,
            "Time between two looks of the console at the cluster; longer if a look takes long.",
        ),
    ),
    *section(
        "log",
        ("log_level", Levels(), "info", "Minimum log level, also of single loggers.", RUN_TIME),
        (
            "log_format",
            Choice(("auto", "text", "json")),
            "auto",
            "Format of log lines on standard error; auto: text on a terminal, JSON lines otherwise.",
        ),
    ),
]

OPTIONS: dict[str, Option] = {option.name: option for option in _ALL}
