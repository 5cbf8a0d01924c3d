"""The table of options: name, kind, default and help.

Flags, the TOML file, `METAQ_…` variables, `--set`, `metaq config show` and docs/configuration.md all use this
table. An option with the name of a field of StoreSettings, ServerSettings or BrokerSettings sets that field
and takes its default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from metaq.config.kinds import (
    Bytes,
    Choice,
    Endpoint,
    Endpoints,
    Flag,
    Ids,
    Kind,
    Levels,
    Listen,
    Number,
    Paths,
    Seconds,
    Sources,
    Text,
)
from metaq.settings import GIB, KIB, MIB, BrokerSettings, NameServerSettings, ServerSettings, StoreSettings

SECTIONS: dict[str, str] = {
    "address": "The addresses that the roles listen on and advertise",
    "nameserver": "Limits of a name server's tables",
    "broker": "The broker's identity, and what it allows clients to do",
    "replication": "The group of a broker: its replicas, and who becomes master",
    "store": "Where messages are stored, the sizes of files, and retention",
    "server": "Limits of one listener",
    "monitoring": "Metrics and health over HTTP",
    "log": "Logging",
}
SETTINGS: dict[str, type] = {
    "nameserver": NameServerSettings,
    "store": StoreSettings,
    "server": ServerSettings,
    "broker": BrokerSettings,
}

PORT = Number(0, 65_535)
NAME = Text(r"[A-Za-z0-9_.%|-]{1,127}", "up to 127 letters, digits or any of _ - . % |")


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    section: str
    kind: Kind
    default: Any
    help: str

    @property
    def variable(self) -> str:
        return f"METAQ_{self.name.upper()}"


def _section(section: str, *rows: tuple[str, Kind, Any, str] | tuple[str, Kind, str]) -> list[Option]:
    """Makes options from rows. A row without a default takes it from the section's settings class."""
    options = []
    for row in rows:
        if len(row) == 4:
            name, kind, default, text = row
        else:
            (name, kind, text), default = row, _default(SETTINGS[section], row[0])
        options.append(Option(name, section, kind, default, text))
    return options


def _default(settings: type, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(settings) if field.name == name)


_ALL: list[Option] = [
    *_section(
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
    *_section(
        "nameserver",
        ("nameserver_brokers_max", Number(1, 100_000), "Brokers that may be registered."),
        ("nameserver_members_max", Number(1, 1_000), "Brokers that may be registered under one name."),
        ("nameserver_broker_topics_max", Number(1, 1_000_000), "Topics of one broker."),
        ("nameserver_topics_max", Number(1, 100_000_000), "Topics, summed over all brokers."),
        (
            "nameserver_values_bytes_max",
            Bytes(KIB, GIB),
            "Size of all values that tools set, as JSON; less than frame_bytes_max.",
        ),
    ),
    *_section(
        "broker",
        ("name", NAME, "broker-a", "Name of the broker, unique in the cluster; do not change it later."),
        ("cluster", NAME, "DefaultCluster", "Cluster of the broker."),
        (
            "id",
            Number(0, 2**31 - 2),
            0,
            "Id of the broker in its group: 0 for a lone broker or a fixed master, otherwise 1 or more.",
        ),
        ("region", NAME, "Region name in answers and traces."),
        ("permission", Number(0, 7), 6, "Permissions on all topics, as bits: 4 read, 2 write."),
        ("auto_create_topic", Flag(), True, "Create a topic when the first message is sent to it."),
        ("auto_create_group", Flag(), True, "Create a consumer group when its first consumer appears."),
        ("enable_property_filter", Flag(), True, "Allow consumers to filter messages with SQL92."),
        (
            "filter_functions",
            Sources(),
            (),
            "Folders and modules with Python filter functions for consumers.",
        ),
        (
            "filter_read_paths",
            Paths(),
            (),
            "Folders and files that filter functions may read besides their own and Python.",
        ),
        ("filter_network", Flag(), False, "Let filter functions open network connections."),
        (
            "filter_timeout_ms",
            Number(10, 10_000),
            2_000,
            "How long a filter function may take for one batch.",
        ),
        (
            "filter_memory_bytes",
            Bytes(64 * MIB, 64 * GIB),
            512 * MIB,
            "Memory of one process that runs filter functions.",
        ),
        (
            "filter_batch_messages_max",
            Number(1, 4_096),
            256,
            "Messages in one batch for a filter function.",
        ),
        (
            "filter_batch_bytes_max",
            Bytes(1, 64 * MIB),
            MIB,
            "Bytes in one batch for a filter function; the first message may be larger.",
        ),
        ("filter_workers", Number(1, 64), 2, "Processes that run one filter function at the same time."),
        ("filter_idle_s", Seconds(1, 86_400), 60.0, "Idle time after which such a process ends."),
        ("default_topic_queues", Number(1, 1024), 8, "Queues that an auto-created topic gets at most."),
        (
            "flush_timeout_ms",
            Number(1),
            "How long a send waits for the disk before it is answered with code 10.",
        ),
        (
            "metrics_series_max",
            Number(1_000, 10_000_000),
            "Series on one page of metrics, and pairs of topic and group that are counted.",
        ),
        ("pull_bytes_max", Bytes(1, 16 * MIB), "Bytes that one pull returns at most."),
        ("pull_messages_max", Number(1, 1024), "Messages that one pull returns at most."),
        ("pull_bytes_default", Bytes(1, 16 * MIB), "Bytes that a pull returns at most if it names no size."),
        ("hold_max", Number(0), "Pulls that may wait for messages at the same time."),
        ("connection_hold_max", Number(0), "The same for one connection."),
        ("pull_filter_bytes_max", Bytes(1, 16 * MIB), "Longest filter that a pull may carry."),
        ("pull_hold_ms_max", Number(1, 3_600_000), "How long one pull may wait for messages."),
        (
            "pull_limit_hold_ms",
            Number(0, 60_000),
            "How long a pull that asks for no wait waits for the rate limit of its group.",
        ),
        (
            "filter_hold_ms_max",
            Number(100, 60_000),
            "How long a pull waits for a filter function before the client is asked to pull again.",
        ),
        (
            "pull_examined_bytes_max",
            Bytes(64 * KIB, GIB),
            "Bytes of properties that the SQL92 filter of one pull examines before the pull is answered.",
        ),
        ("subscription_tags_max", Number(1, 1_000_000), "Tags of one subscription."),
        (
            "send_hold_ms_max",
            Number(0, 60_000),
            "How long a send waits for the rate limit of its topic before code 2.",
        ),
        (
            "send_refusal_hold_ms",
            Number(0, 60_000),
            "How long that code 2 is delayed, because clients try again at once.",
        ),
        ("send_hold_max", Number(0, 10_000_000), "Sends that may wait for a rate limit at the same time."),
        (
            "topic_messages_per_second",
            Number(0, 10**9),
            0,
            "Messages that a topic accepts per second; 0: no limit.",
        ),
        ("topic_bytes_per_second", Bytes(0, 2**40), 0, "Bytes that a topic accepts per second; 0: no limit."),
        (
            "group_messages_per_second",
            Number(0, 10**9),
            0,
            "Messages that a group gets per second; 0: no limit.",
        ),
        ("group_bytes_per_second", Bytes(0, 2**40), 0, "Bytes that a group gets per second; 0: no limit."),
        ("long_polling", Flag(), "Hold a pull that finds nothing until messages arrive."),
        (
            "slave_read",
            Flag(),
            "Send consumers that are far behind to a replica, if the broker has one.",
        ),
        (
            "in_memory_percent",
            Number(0, 100),
            "Share of the memory in which new messages are expected; consumers of older ones are far behind.",
        ),
        ("short_polling_ms", Number(1), "How long a pull that finds nothing waits if long polling is off."),
        (
            "delay_levels",
            Text(r"(\s*\d+[smhd])+\s*", "delays such as 1s 5s 10s 1m 2h, level 1 first"),
            "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
            "The delay of each delay level.",
        ),
        (
            "transaction_timeout_ms",
            Number(0),
            "Age at which the broker asks the producer about an open transaction.",
        ),
        (
            "transaction_check_interval_s",
            Seconds(0.1, 86_400),
            30.0,
            "How often the broker looks for open transactions.",
        ),
        (
            "transaction_check_max",
            Number(1, 1_000),
            15,
            "Checks before the message goes to TRANS_CHECK_MAX_TIME_TOPIC.",
        ),
        (
            "transaction_renew_s",
            Seconds(1, 86_400),
            120.0,
            "Age at which an open half message is stored again, so that a restart reads little.",
        ),
        (
            "transaction_immunity_s_max",
            Number(0, 366 * 86_400),
            "The longest time for which a producer may ask not to be asked about its transaction.",
        ),
        ("transactions_open_max", Number(1, 100_000_000), "Transactions that may be open at the same time."),
        (
            "transactions_open_per_group_max",
            Number(1, 100_000_000),
            "Transactions of one producer group that may be open at the same time.",
        ),
        (
            "transactions_ended_kept",
            Number(1, 100_000_000),
            "Ended transactions that are remembered, so that a repeated request gets a true answer.",
        ),
        (
            "timer_max_delay_s",
            Number(1, 10 * 366 * 86_400),
            "The longest delay of a message with a delivery time.",
        ),
        (
            "timer_roll_s",
            Number(60, 366 * 86_400),
            "Delay after which such a message is stored again; at most half of file_reserved_hours.",
        ),
        ("recall_messages", Flag(), "Allow producers to recall a message that waits for its delivery time."),
        (
            "recall_by_property",
            Flag(),
            "Let a message with TIMER_DEL_UNIQKEY recall another one; anybody who knows its key may then.",
        ),
        ("topics_max", Number(1, 1_000_000), 100_000, "Topics of the broker at most."),
        ("groups_max", Number(1, 1_000_000), 100_000, "Consumer groups of the broker at most."),
        ("clients_per_group_max", Number(1), 5_000, "Clients that are connected in one group at most."),
        (
            "subscriptions_per_client_max",
            Number(1),
            2_000,
            "Subscriptions of one client at most, in all its groups.",
        ),
        (
            "client_bytes_max",
            Bytes(64 * KIB, GIB),
            MIB,
            "Memory for the groups and subscriptions of one client.",
        ),
        (
            "group_clients_bytes_max",
            Bytes(64 * KIB, 16 * GIB),
            32 * MIB,
            "Memory for the subscriptions of all clients of one group.",
        ),
        (
            "clients_bytes_max",
            Bytes(MIB, 64 * GIB),
            128 * MIB,
            "Memory for the groups and subscriptions of all clients.",
        ),
        ("register_interval_s", Seconds(10, 60), 30.0, "How often the broker renews its registration."),
        (
            "offsets_persist_interval_s",
            Seconds(0.1, 3600),
            5.0,
            "How often committed offsets are written to disk.",
        ),
        ("register_timeout_s", Seconds(0.1, 60), 3.0, "How long a name server may take to answer."),
        (
            "register_wait_s",
            Seconds(0.1, 600),
            2.0,
            "How long the start of a broker waits for name servers that do not answer.",
        ),
        (
            "announce_timeout_s",
            Seconds(0.1, 600),
            1.0,
            "How long a new topic waits until the name servers know it.",
        ),
        (
            "queue_lease_s",
            Seconds(31, 3600),
            60.0,
            "Time without renewal after which a consumer loses its lock on a queue.",
        ),
        (
            "client_expiry_s",
            Seconds(1, 3600),
            120.0,
            "A client that sends nothing for this time counts as gone.",
        ),
        (
            "client_answer_timeout_s",
            Seconds(0.1, 600),
            10.0,
            "How long a consumer may take to answer what a tool asks it through the broker.",
        ),
        (
            "client_status_timeout_s",
            Seconds(0.1, 600),
            5.0,
            "How long the consumers of a group may take to report their offsets; silent ones are left out.",
        ),
        (
            "reply_timeout_s",
            Seconds(0.1, 600),
            10.0,
            "How long a client may take to confirm the reply to its request.",
        ),
    ),
    *_section(
        "replication",
        (
            "register",
            Text(says="etcd://HOST:PORT,… or etcds://HOST:PORT,…"),
            None,
            "The register that decides who is master of the group.",
        ),
        (
            "master",
            Listen(),
            None,
            "Replication address of the fixed master that this replica copies; instead of a register.",
        ),
        (
            "replica_ids",
            Ids(),
            (),
            "Ids of the replicas of this fixed master; instead of a register.",
        ),
        (
            "replication_listen",
            Listen(),
            None,
            "Address of the replication port; default: the broker's host, and its port plus 1.",
        ),
        (
            "apache_master",
            Endpoint(),
            None,
            "Apache master, at its address for clients, that this broker copies until it takes over.",
        ),
        (
            "apache_ha_listen",
            Listen(),
            None,
            "Address at which Apache slaves copy the log of this master; it has no access control.",
        ),
        (
            "cluster_key",
            Text(says="a file"),
            None,
            "File with the secret that all nodes of a group hold; required beyond loopback.",
        ),
        (
            "replicas",
            Choice(("sync", "async")),
            "sync",
            "sync: acknowledge after every replica in sync has the message; async: after the master has it.",
        ),
        (
            "min_in_sync",
            Number(1, 64),
            2,
            "Nodes, with the master, that must be in sync, or messages are refused; sync only.",
        ),
        (
            "behind_limit_s",
            Seconds(0.2, 60),
            1.0,
            "A replica that is behind for this time leaves the set of nodes in sync.",
        ),
        (
            "election_after_s",
            Seconds(0.5, 300),
            3.0,
            "A master that shows no sign of life for this time is replaced.",
        ),
        (
            "catch_up_bytes_per_second",
            Bytes(0, 2**40),
            0,
            "Rate at which a replica that nobody waits for is sent the log; 0: no limit.",
        ),
        (
            "state_timeout_s",
            Seconds(0.1, 60),
            5.0,
            "How long a changed topic waits for the replicas to have it.",
        ),
        (
            "relay_s",
            Seconds(0, 3600),
            35.0,
            "How long a drained broker relays requests before it stops.",
        ),
    ),
    *_section(
        "store",
        ("data", Text(says="a directory"), "data", "Directory of the store."),
        (
            "flush",
            Choice(("sync", "async")),
            "sync: acknowledge after the disk has it; async: after the page cache has it.",
        ),
        ("commit_log_file_bytes", Bytes(4 * KIB, 2 * GIB - 1), "Size of one commit-log file."),
        ("consume_queue_file_entries", Number(2, 100_000_000), "Entries of one consume-queue file."),
        ("index_slots", Number(1), "Hash slots of one key-index file."),
        ("index_entries", Number(2), "Entries of one key-index file."),
        ("allocation_step_bytes", Bytes(4 * KIB, GIB), "Disk space allocated ahead of the writer."),
        ("flush_interval_ms", Number(1, 60_000), "How often async flush writes the commit log to disk."),
        ("queue_flush_interval_ms", Number(1, 60_000), "How often consume queues are written to disk."),
        ("message_size_bytes_max", Bytes(1, 64 * MIB), "Largest body of a message."),
        ("file_reserved_hours", Number(1), "Age at which a commit-log file may be deleted."),
        (
            "delete_when",
            Text(r"([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*", "hours of the day such as 04 or 04;16"),
            "Hours of the day (UTC) at which old files are deleted.",
        ),
        ("disk_clean_percent", Number(10, 95), "Disk use at which old files are deleted at any hour."),
        (
            "disk_force_clean_percent",
            Number(30, 98),
            "Disk use at which consumed files are deleted at any age.",
        ),
        ("disk_refuse_percent", Number(35, 99), "Disk use at which messages are refused."),
        (
            "query_entries_max",
            Number(1_000, 2**40),
            "Entries of the key index that one query examines; a message that it reads counts as 64.",
        ),
        (
            "query_bytes_max",
            Bytes(64 * KIB, 15 * MIB),
            "Bytes of messages that one query by key returns; the first one comes whatever its size.",
        ),
        ("append_wait_ms_max", Number(1, 600_000), "How long a send waits for a slow append before code 2."),
        ("delete_unconsumed", Flag(), "Allow retention to delete messages that nobody has consumed yet."),
    ),
    *_section(
        "server",
        ("connections_max", Number(1, 1_000_000), "Connections of one listener at most."),
        ("connections_per_address_max", Number(1, 1_000_000), "Connections from one address at most."),
        ("frame_bytes_max", Bytes(64 * KIB, GIB), "Largest frame accepted."),
        ("frame_deadline_ms", Number(100), "How long a frame may take to arrive completely."),
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
            "Requests that may wait for the answer of another client, such as replies and relays of tools.",
        ),
        (
            "questions_bytes_max",
            Bytes(MIB, 16 * GIB),
            "Bytes of requests that may wait for the answer of another client.",
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
            "Memory kept for all connections; beyond it, those that do not read are closed first.",
        ),
        (
            "memory_trim_interval_s",
            Seconds(0, 86_400),
            "How often memory that was freed is given back to the system; 0: never.",
        ),
        (
            "slow_request_ms",
            Number(),
            "Log requests that take longer, with the parts of their time; 0: none. Can change at run time.",
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
    *_section(
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
    *_section(
        "log",
        ("log_level", Levels(), "info", "Minimum log level, also of single loggers; can change at run time."),
        (
            "log_format",
            Choice(("auto", "text", "json")),
            "auto",
            "Format of log lines on standard error; auto: text on a terminal, JSON lines otherwise.",
        ),
    ),
]

OPTIONS: dict[str, Option] = {option.name: option for option in _ALL}
