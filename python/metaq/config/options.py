"""Every option there is: its name, its kind, its default and what it does.

Flags, the TOML file, `METAQ_…` variables, `--set`, `metaq config show` and docs/configuration.md all read
this table. An option that carries the name of a field of StoreSettings, ServerSettings or BrokerSettings sets
that field and takes its default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from metaq.config.kinds import Bytes, Choice, Endpoints, Flag, Kind, Listen, Number, Seconds, Sources, Text
from metaq.settings import GIB, KIB, MIB, BrokerSettings, ServerSettings, StoreSettings

SECTIONS: dict[str, str] = {
    "address": "Where the roles listen and what they tell others",
    "broker": "What the broker is called and what it lets clients do",
    "store": "Where messages lie, how large the files are and how long they stay",
    "server": "What one listener lets its peers take",
    "log": "What the operator is told",
}
SETTINGS: dict[str, type] = {"store": StoreSettings, "server": ServerSettings, "broker": BrokerSettings}

PORT = Number(0, 65_535)
NAME = Text(r"[A-Za-z0-9_.%|-]{1,127}", "up to 127 letters, digits or any of _ - . % |")


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be set."""

    name: str
    section: str
    kind: Kind
    default: Any
    help: str

    @property
    def variable(self) -> str:
        return f"METAQ_{self.name.upper()}"


def _section(section: str, *rows: tuple[str, Kind, Any, str] | tuple[str, Kind, str]) -> list[Option]:
    """Rows of four give a default; rows of three take it from the settings class of the section."""
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
        ("namesrv_port", PORT, 9876, "Port of the name server; 0 takes a free one."),
        ("broker_port", PORT, 10911, "Port of the broker; 0 takes a free one."),
        (
            "listen",
            Listen(),
            None,
            "Where a name server or broker of its own listens; instead of host and the role's port.",
        ),
        (
            "kv_file",
            Text(says="a file"),
            None,
            "Where a name server keeps values that tools set; else in memory, or with serve under data.",
        ),
        (
            "broker_expiry_s",
            Seconds(1, 86_400),
            120.0,
            "Silence after which a name server counts a broker as gone.",
        ),
        ("namesrv", Endpoints(), (), "Name servers that the broker registers with and that commands ask."),
        (
            "advertised_host",
            Text(r"\S+", "an address"),
            None,
            "Address that clients are told to reach the broker at; without it, the one it listens on.",
        ),
        (
            "insecure_listen",
            Flag(),
            False,
            "Allow listening beyond this machine although there is no access control.",
        ),
    ),
    *_section(
        "broker",
        ("name", NAME, "broker-a", "Name of the broker; unique in the cluster, kept for good."),
        ("cluster", NAME, "DefaultCluster", "Cluster that the broker belongs to."),
        ("id", Number(0), 0, "Number of the broker in its group; 0 is the master, the only role so far."),
        ("region", NAME, "Region that goes into answers and traces."),
        ("permission", Number(0, 7), 6, "Bits over every topic: 4 read, 2 write."),
        ("auto_create_topic", Flag(), True, "Create a topic when the first message is sent to it."),
        ("auto_create_group", Flag(), True, "Create a consumer group when its first consumer appears."),
        ("enable_property_filter", Flag(), True, "Let consumers filter messages by SQL92."),
        (
            "filter_functions",
            Sources(),
            (),
            "Folders and modules with Python functions that consumers may filter messages by.",
        ),
        (
            "filter_timeout_ms",
            Number(10, 10_000),
            2_000,
            "Longest that such a function may take for a batch.",
        ),
        (
            "filter_memory_bytes",
            Bytes(64 * MIB, 64 * GIB),
            512 * MIB,
            "Memory of one process that runs them.",
        ),
        (
            "filter_batch_messages_max",
            Number(1, 4_096),
            256,
            "Most messages that such a function is given at a time.",
        ),
        (
            "filter_batch_bytes_max",
            Bytes(1, 64 * MIB),
            MIB,
            "Most bytes of such a batch; its first message goes whatever its size.",
        ),
        ("filter_workers", Number(1, 64), 2, "Most processes that run one function at a time."),
        ("filter_idle_s", Seconds(1, 86_400), 60.0, "Time without work after which such a process ends."),
        ("default_topic_queues", Number(1, 1024), 8, "Most queues that an auto-created topic gets."),
        ("flush_timeout_ms", Number(1), "How long a sender waits for the disk before it is told code 10."),
        ("pull_bytes_max", Bytes(1, 16 * MIB), "Most bytes that one pull returns."),
        ("pull_messages_max", Number(1, 1024), "Most messages that one pull returns."),
        ("pull_bytes_default", Bytes(1, 16 * MIB), "Bytes that a pull returns that names no size."),
        ("hold_max", Number(0), "Most pulls that wait for messages at one time."),
        ("pull_hold_ms_max", Number(1, 3_600_000), "Longest wait of one pull, whatever it asks for."),
        (
            "pull_limit_hold_ms",
            Number(0, 60_000),
            "Wait of a pull for its group's limit, if it asks for no wait itself.",
        ),
        (
            "filter_hold_ms_max",
            Number(100, 60_000),
            "Longest wait of a pull for a filter function; past it, the client asks again.",
        ),
        (
            "send_hold_ms_max",
            Number(0, 60_000),
            "Longest wait of a send for its topic's limit; past it, code 2.",
        ),
        (
            "send_refusal_hold_ms",
            Number(0, 60_000),
            "How long such a code 2 is kept back, since clients try again at once.",
        ),
        ("send_hold_max", Number(0, 10_000_000), "Most sends that wait for a limit at one time."),
        ("topic_messages_per_second", Number(0, 10**9), 0, "Messages that a topic takes per second; 0: any."),
        ("topic_bytes_per_second", Bytes(0, 2**40), 0, "Bytes that a topic takes per second; 0: any."),
        ("group_messages_per_second", Number(0, 10**9), 0, "Messages that a group gets per second; 0: any."),
        ("group_bytes_per_second", Bytes(0, 2**40), 0, "Bytes that a group gets per second; 0: any."),
        ("long_polling", Flag(), "Hold a pull that finds nothing until messages arrive."),
        ("short_polling_ms", Number(1), "How long such a pull waits when long polling is off."),
        (
            "delay_levels",
            Text(r"(\s*\d+[smhd])+\s*", "delays such as 1s 5s 10s 1m 2h, level 1 first"),
            "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
            "How long a message of each delay level waits.",
        ),
        ("transaction_timeout_ms", Number(0), "Age at which the producer of an open transaction is asked."),
        (
            "transaction_check_interval_s",
            Seconds(0.1, 86_400),
            30.0,
            "How often the broker looks for such transactions.",
        ),
        (
            "transaction_check_max",
            Number(1, 1_000),
            15,
            "Checks after which the message goes to TRANS_CHECK_MAX_TIME_TOPIC.",
        ),
        (
            "transaction_renew_s",
            Seconds(1, 86_400),
            120.0,
            "Age at which an open half message is stored again, so that a restart reads little.",
        ),
        ("transactions_open_max", Number(1, 100_000_000), "Most transactions that are open at one time."),
        (
            "transactions_ended_kept",
            Number(1, 100_000_000),
            "Ended transactions that are remembered, so that a repeated request gets a true answer.",
        ),
        (
            "timer_max_delay_s",
            Number(1, 10 * 366 * 86_400),
            "Most that a message may wait for a given moment.",
        ),
        (
            "timer_roll_s",
            Number(60, 366 * 86_400),
            "Wait after which such a message is stored again, at most half of file_reserved_hours.",
        ),
        ("recall_messages", Flag(), "Let a sender take back a message that waits for a given moment."),
        ("register_interval_s", Seconds(10, 60), 30.0, "How often the broker renews its registration."),
        ("offsets_persist_interval_s", Seconds(0.1, 3600), 5.0, "How often committed offsets are written."),
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
        ("client_expiry_s", Seconds(1, 3600), 120.0, "Silence after which a client counts as gone."),
    ),
    *_section(
        "store",
        ("data", Text(says="a directory"), "data", "Directory of the store."),
        ("flush", Choice(("sync", "async")), "sync: acknowledge what is on the disk; async: in its cache."),
        ("commit_log_file_bytes", Bytes(4 * KIB, 2 * GIB - 1), "Size of one commit-log file."),
        ("consume_queue_file_entries", Number(2, 100_000_000), "Entries of one consume-queue file."),
        ("index_slots", Number(1), "Hash slots of one key-index file."),
        ("index_entries", Number(2), "Entries of one key-index file."),
        ("allocation_step_bytes", Bytes(4 * KIB, GIB), "Disk space taken ahead of the writer."),
        ("flush_interval_ms", Number(1, 60_000), "How often async flush writes the commit log to disk."),
        ("queue_flush_interval_ms", Number(1, 60_000), "How often consume queues are written to disk."),
        ("message_size_bytes_max", Bytes(1, 64 * MIB), "Largest body of a message."),
        ("file_reserved_hours", Number(1), "Age at which a commit-log file may be deleted."),
        (
            "delete_when",
            Text(r"([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*", "hours of the day such as 04 or 04;16"),
            "Hours of the day (UTC) at which old files are deleted.",
        ),
        ("disk_clean_percent", Number(10, 95), "Disk use from which old files go at any hour."),
        ("disk_force_clean_percent", Number(30, 98), "Disk use from which consumed files go at any age."),
        ("disk_refuse_percent", Number(35, 99), "Disk use from which messages are refused."),
        ("append_wait_ms_max", Number(1, 600_000), "How long a send waits for a stuck append before code 2."),
        ("delete_unconsumed", Flag(), "Let retention delete to make room what nobody consumed yet."),
    ),
    *_section(
        "server",
        ("connections_max", Number(1, 1_000_000), "Most connections of one listener."),
        ("connections_per_address_max", Number(1, 1_000_000), "Most connections from one address."),
        ("frame_bytes_max", Bytes(64 * KIB, GIB), "Largest frame accepted."),
        ("frame_deadline_ms", Number(100), "How long a begun frame may take to arrive."),
        ("idle_timeout_ms", Number(1_000), "Silence after which a connection is closed."),
        ("crossing_requests_max", Number(1), "Most requests that wait for the control plane."),
        ("crossing_bytes_max", Bytes(MIB, 16 * GIB), "Most bytes of such requests."),
        ("crossing_age_ms_max", Number(1), "Age at which such a request is answered code 2 instead."),
        ("connection_output_bytes_max", Bytes(64 * KIB, GIB), "Most bytes that wait for one peer."),
        ("worker_threads", Number(1, 256), "Threads that serve connections."),
    ),
    *_section(
        "log",
        ("log_level", Choice(("debug", "info", "warning", "error")), "info", "Least weight of what is told."),
    ),
]

OPTIONS: dict[str, Option] = {option.name: option for option in _ALL}
