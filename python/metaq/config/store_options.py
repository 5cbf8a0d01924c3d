"""The options of the sections `replication` and `store`."""

from __future__ import annotations

from metaq.config.kinds import Bytes, Choice, Endpoint, Flag, Ids, Listen, Number, Seconds, Text
from metaq.config.option import RUN_TIME, section
from metaq.settings import GIB, KIB, MIB

REPLICATION = section(
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
        "A master whose beat in the register stopped for this time is replaced, whatever else it does.",
    ),
    (
        "hung_after_s",
        Seconds(0.5, 300),
        2.0,
        "A master is replaced after this time without a beat and without a byte to its replicas; sync only.",
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
)


STORE = section(
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
    (
        "record_checksums",
        Flag(),
        "Store each message with a checksum of all its bytes, not of the body alone; 21 bytes more.",
    ),
    ("file_reserved_hours", Number(1), "Age at which a commit-log file may be deleted.", RUN_TIME),
    (
        "delete_when",
        Text(r"([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*", "hours of the day such as 04 or 04;16"),
        "Hours of the day (UTC) at which old files are deleted.",
        RUN_TIME,
    ),
    ("disk_clean_percent", Number(10, 95), "Disk use at which old files are deleted at any hour.", RUN_TIME),
    (
        "disk_force_clean_percent",
        Number(30, 98),
        "Disk use at which consumed files are deleted at any age.",
        RUN_TIME,
    ),
    ("disk_refuse_percent", Number(35, 99), "Disk use at which messages are refused.", RUN_TIME),
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
    (
        "scrub_interval_s",
        Seconds(0, 31_536_000),
        172_800.0,
        "Time in which the whole log is read once and verified; 0: never.",
    ),
    (
        "scrub_bytes_per_second",
        Bytes(64 * KIB, 2**40),
        8 * MIB,
        "Rate at which the log is read for that, at most.",
    ),
    (
        "damaged_messages",
        Choice(("skip", "stop")),
        "Whether consumers of a lone broker leave out a damaged message or wait; in a group they wait.",
    ),
    (
        "delete_unconsumed",
        Flag(),
        "Allow retention to delete messages that nobody has consumed yet.",
        RUN_TIME,
    ),
)
