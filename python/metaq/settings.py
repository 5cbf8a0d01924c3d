"""Settings and policy that cross into the data plane: plain, frozen values with their units in the name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from metaq.protocol.ranges import Bits, Count, Int32, Int64

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECOND = 1000
MINUTE = 60 * SECOND
DELAY_LEVELS_MS = (
    *(seconds * SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""The 18 levels that every client knows: 1s 5s 10s 30s, 1m to 10m, 20m 30m 1h 2h."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The store: its directory, the size of its files, flushing and retention."""

    directory: str
    flush: Literal["sync", "async"] = "sync"
    commit_log_file_bytes: int = GIB
    consume_queue_file_entries: int = 300_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    allocation_step_bytes: int = 16 * MIB
    flush_interval_ms: int = 500
    queue_flush_interval_ms: int = 1_000
    message_size_bytes_max: int = 4 * MIB
    record_checksums: bool = True
    """Each appended record ends with a checksum of all its bytes. Replicas copy the records of their master,
    with or without it."""
    file_reserved_hours: int = 72
    delete_when: str = "04"
    disk_clean_percent: int = 75
    disk_force_clean_percent: int = 85
    disk_refuse_percent: int = 90
    delete_unconsumed: bool = False
    damaged_messages: Literal["skip", "stop"] = "skip"
    """Whether readers leave a damaged message out, or wait in front of it. In a group they always wait,
    because the other nodes have it."""
    query_entries_max: int = 1_000_000
    """Entries of the key index that one query examines; an entry whose message has to be read counts as
    64."""
    query_bytes_max: int = 8 * MIB
    """Bytes of messages that one query returns; the first one comes whatever its size. Well below the frame
    size of clients."""
    append_wait_ms_max: int = 1_000
    """How long an append waits for the appends before it. After that, others are refused until it moves
    again."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """How long a message of each delay level waits, level 1 first. Empty: no message is delayed."""
    replicated: bool = False
    """Other nodes hold the log too. After opening, nothing is confirmed or shown beyond what was known to be
    confirmed, until a hub or a follower says how far the others hold the log."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One listener: its address, and its limits for peers."""

    host: str
    port: int
    also_old_port: bool = False
    """Also listen on port−2, to which clients up to 4.4 send (a second free port if `port` is 0)."""
    connections_max: int = 10_000
    connections_per_address_max: int = 5_000
    connections_silent_max: int = 1_000
    """Connections that have not sent a whole frame yet. When one more comes, the oldest one of the address
    that has most of them is closed."""
    frame_bytes_max: int = 16 * MIB
    frame_deadline_ms: int = 30_000
    first_frame_deadline_ms: int = 30_000
    """A connection that has sent no whole frame after this time is closed."""
    idle_timeout_ms: int = 120_000
    crossing_requests_max: int = 10_000
    crossing_bytes_max: int = 64 * MIB
    crossing_requests_per_connection_max: int = 4_000
    crossing_bytes_per_connection_max: int = 16 * MIB
    """The same for one connection, which may always have one request waiting."""
    crossing_age_ms_max: int = 10_000
    questions_max: int = 10_000
    questions_bytes_max: int = 64 * MIB
    """Requests that may wait for an answer of another client at the same time, and their bytes."""
    questions_per_connection_max: int = 256
    questions_bytes_per_connection_max: int = 16 * MIB
    """The same for the requests of one connection."""
    questions_per_client_max: int = 2_000
    """Requests that may wait for the answer of one client, whoever sent them."""
    connection_output_bytes_max: int = 8 * MIB
    """A connection with this many unsent bytes is not read until its peer has read some."""
    connection_memory_bytes_max: int = 64 * MIB
    """Memory that the listener keeps for one connection: unsent answers, pulls and requests that wait."""
    memory_bytes_max: int = 256 * MIB
    """The same for all connections together; suits a machine with 1 GB."""
    group_memory_bytes_max: int = 96 * MIB
    """Memory that is kept for one group over all its connections: pulls that wait, clients, subscriptions.
    Beyond it, pulls of the group may not wait."""
    memory_trim_interval_s: float = 10.0
    freed_memory_ms: int = 1_000
    """The data plane keeps freed memory this long for its own use before the system gets it back."""
    slow_request_ms: int = 1_000
    """Requests that take at least this long are logged with the parts of their time; 0 means none. A third of
    the time that clients wait for a send, so that the log names a cause before they give up."""
    worker_threads: int = 2
    relay_timeout_ms: int = 3_000
    """How long a replica waits for the answer of its master to a request that it relays; as long as a Java
    client waits for a send."""
    relay_requests_max: int = 10_000
    relay_bytes_max: int = 64 * MIB
    held_requests_max: int = 10_000
    held_bytes_max: int = 64 * MIB
    """Limits of the requests that are kept back while a planned switch moves the master."""


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """Limits of a name server's tables. Everybody may register, so everything that grows has a limit."""

    nameserver_brokers_max: int = 2_000
    nameserver_brokers_per_address_max: int = 500
    """Brokers that register from one address; of IPv6, from one /64 subnet."""
    nameserver_members_max: int = 64
    """Brokers under one name: the addresses of all of them are in every route of their topics."""
    nameserver_broker_topics_max: int = 100_000
    nameserver_topics_max: int = 1_000_000
    """Topics, summed over all brokers."""
    nameserver_topics_per_address_percent: int = 50
    """The part of them that brokers from one address may have."""
    nameserver_operator_requests: Literal["local", "any", "none"] = "local"
    """The machines from which operators may change values, switches and the write permission of brokers."""
    nameserver_values_bytes_max: int = 8 * MIB
    """The values that tools set, as JSON. Brokers get some of them in one answer."""
    answer_bytes_max: int = 16 * MIB - 64 * KIB
    """Follows from `frame_bytes_max`, less room for a header: peers do not read a larger frame."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Both ends of the link between a master and a replica."""

    beat_interval_ms: int = 200
    """An end that has nothing else to send sends a beat this often."""
    silence_ms_max: int = 3_000
    """A peer that was silent for this long is gone."""
    chunk_bytes: int = MIB
    """The most bytes of the log in one frame, unless a single record is larger."""
    followed_ms: int | None = None
    """A node that must hold records counts as a follower for this long after it was heard. None if no other
    node can become master."""
    catch_up_bytes_per_second: int = 0
    """A limit for replicas that nobody waits for; 0 means none."""
    state_bytes_max: int = 64 * MIB
    """Control state that may wait for a slow peer."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of the hot requests of a broker; the same in every role."""

    cluster: str
    name: str
    store_host: str
    """The `ip:port` in every record and message id; port 0 stands for the listener's port."""
    region: str = "DefaultRegion"
    message_keys_max: int = 64
    """Words in the KEYS of a message, each of which costs an entry of the key index, in memory and on disk.
    A message may have one more for every 32 bytes of its body and properties."""
    message_keys_per_second: int = 200_000
    """Keys beyond one for 32 bytes that the messages of one address may have; 0 means no limit. Short
    messages with many keys make the index grow faster than the log."""
    flush_timeout_ms: int = 5_000
    metrics_series_max: int = 200_000
    metrics_queues_max: int = 1_000_000
    """Queues of which the broker keeps how far each group was handed out, about 40 bytes each. The messages
    of further ones count as ready instead of in flight."""
    committed_offsets_max: int = 5_000_000
    """Queues of all groups with a committed offset. Resets and copies fill half of it at most, and an eighth
    of it with the offsets of one group."""
    committed_pairs_max: int = 500_000
    """The same for pairs of a topic and a group, each of which takes about half a kilobyte."""
    pull_bytes_max: int = 2 * MIB
    pull_messages_max: int = 1024
    """The most that one pull returns, whatever it asks for. Java's consumers ask for 32 messages and
    256 KiB."""
    pull_bytes_default: int = 256 * KIB
    """A pull that names no size gets as much as from an Apache broker."""
    hold_max: int = 100_000
    connection_hold_max: int = 4_096
    """A consumer holds one pull for each queue that it reads."""
    pull_filter_bytes_max: int = 64 * KIB
    pull_hold_ms_max: int = 300_000
    pull_limit_hold_ms: int = 1_000
    """How long a pull that asks for no wait is held for its group's limit: an empty answer would say that the
    queue is empty."""
    filter_hold_ms_max: int = 5_000
    """How long a pull waits for a filter function before its client must ask again. Clients wait longer than
    this for an answer."""
    pull_examined_bytes_max: int = 4 * MIB
    """Bytes of properties that the SQL92 filter of one pull examines, a few milliseconds of work. Then the
    pull is answered with what it has found, and the consumer continues from there."""
    subscription_tags_max: int = 10_000
    send_hold_ms_max: int = 1_500
    """How long an acknowledgement waits for its topic's limit; half of the time-out of a Java client's
    send."""
    send_refusal_hold_ms: int = 500
    """How long a refusal is delayed if that wait would be too long: clients repeat a refused send at once,
    and three tries of a Java client still fit into its time-out."""
    send_hold_max: int = 100_000
    long_polling: bool = True
    short_polling_ms: int = 1_000
    id: int = 0
    """The id under which this broker is known while it is a replica."""
    slave_read: bool = True
    """Whether consumers that are far behind are sent to a replica, if the group has one."""
    stands_in: bool = False
    """Whether a replica answers commits with success while its master is away, because no other node becomes
    master. It keeps the offsets on its disk."""
    in_memory_percent: int = 40
    """The share of the machine's memory in which the newest messages are expected. A consumer that reads
    older ones is far behind."""
    transaction_timeout_ms: int = 6_000
    """The age at which the producer of an open transaction may be asked about it."""
    transaction_immunity_s_max: int = 24 * 3600
    """The longest time for which a producer may ask not to be asked about its transaction."""
    transactions_open_max: int = 500_000
    transactions_open_per_group_max: int = 100_000
    """The same for one producer group. An address has an eighth of it in any case, whatever others have open
    in the group's name."""
    transactions_open_per_address_max: int = 250_000
    """The same for one address, whatever groups it names: half of all, so that others are still taken."""
    transaction_renew_bytes_max: int = 32 * MIB
    """Bytes of half messages of one address that a turn of checks stores again; the others wait for the next
    turn. One counts as 4 KiB at least."""
    transactions_ended_kept: int = 64 * 1024
    """Ended transactions that are remembered, 8 bytes each, so that a repeated request gets a true answer."""
    timer_max_delay_s: int = 40 * 24 * 3600
    """The longest delay that a sender may ask for."""
    timer_roll_s: int = 24 * 3600
    """A message that waits longer than this is stored again, at the latest after half of the retention time.
    Otherwise retention, which deletes whole files by age, would delete it."""
    recall_messages: bool = True
    """Whether a sender may recall a waiting message; off by default on Apache's brokers."""
    recall_by_property: bool = False
    """Whether a message with the property TIMER_DEL_UNIQKEY recalls another one, as on Apache's brokers. It
    needs no handle, so anybody who knows the key and the time of a message can recall it."""


PEER_SILENCE_MS_MAX = 20_000
"""A connection ends when the peer's system acknowledges nothing for this long. Without a limit, the system
would keep trying to reach a host that vanished for a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How the client's data plane opens connections, and when it gives a peer up."""

    connect_timeout_ms: int = 3_000
    silence_ms_max: int = PEER_SILENCE_MS_MAX
    frame_bytes_max: int = 16 * MIB
    """A connection ends when its peer sends a longer frame."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """A pull stream of the client."""

    group: str
    hold_ms: int
    """How long a broker holds a pull that finds nothing."""
    count_max: int
    bytes_max: int
    """Limits for the prefetched messages of each queue, in bytes as stored."""
    refill_percent: int = 50
    """A queue is pulled again when this much of its limits is free. Lower values pull more often and bring
    less each time."""
    pull_count_max: int = 1024
    pull_bytes_max: int = 1 * MIB
    """The size of one pull. A broker may return less; Apache's returns at most 32 messages and 256 KiB."""
    answer_timeout_ms: int = 15_000
    """How long an answer may take beyond `hold_ms`."""
    idle_pause_ms: int = 100
    """The pause after a broker answered at once and with nothing, although it was asked to hold the pull."""


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """A scan, which reads a range of a queue into columns."""

    group: str
    columns: tuple[str, ...]
    """Named as in `metaq.spark.schema`."""
    hidden_names: frozenset[str]
    """Properties that the column `properties` leaves out."""
    rows_max: int = 16_384
    bytes_max: int = 16 * MIB
    """Limits of one batch, with bodies decompressed; the last row may exceed them."""
    held_bytes_max: int = 32 * MIB
    """The limit for bytes that are read ahead, as stored."""
    pulls_in_flight_max: int = 6
    """Pulls that wait for their answer at the same time."""
    pull_count_max: int = 1024
    pull_bytes_max: int = 1 * MIB
    """The size of one pull. A broker may return less; Apache's returns at most 32 messages and 256 KiB."""
    pull_timeout_ms: int = 20_000
    """How long one pull may take; brokers do not hold the pulls of a scan."""
    inflated_bytes_max: int = 64 * MIB
    """The largest size of one decompressed body."""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The rules for one topic."""

    name: str
    read_queues: Int32
    write_queues: Int32
    permission: Bits
    """Bits: 4 read, 2 write, 1 inherit."""
    client_writable: bool = True
    """False for system topics to which no client may send."""
    client_readable: bool = True
    """False for topics that only the broker itself reads, such as that of half messages."""
    is_system: bool = False
    send_messages_per_second: Count = 0
    send_bytes_per_second: Count = 0
    """0 means no limit."""


Operation: TypeAlias = tuple[str, int | float | str | tuple[str, ...] | None]
"""The name of an operation in crates/python/src/server/expression.rs, and its operand."""
Program: TypeAlias = tuple[Operation, ...]
"""A compiled filter in postfix order."""


@dataclass(frozen=True, slots=True)
class SubscriptionPolicy:
    """A group's standing subscription to one topic, from its heartbeats."""

    topic: str
    version: Int64
    expression_type: str = "TAG"
    tag_codes: tuple[Int64, ...] = ()
    """Hash codes of the wanted tags; empty means every message."""
    program: Program | None = None
    """The filter of a SQL92 subscription, which replaces the tags."""
    function: tuple[str, str] | None = None
    """The filter function that replaces the tags, and the text of the call."""
    refusal: tuple[int, str] | None = None
    """Code and remark of the answer to every pull, if the subscription cannot be served."""


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The rules for one consumer group."""

    name: str
    client_usable: bool = True
    """False for groups whose offsets the broker itself relies on: no client pulls or commits in them."""
    is_system: bool = False
    consume_enabled: bool = True
    broadcast_enabled: bool = True
    broadcasting: bool = False
    """True while the group's live consumers are in broadcast mode."""
    broker_id: Int64 = 0
    """The broker that consumers should read from; 0 is the master."""
    slow_broker_id: Int64 = 1
    """The same for consumers that are far behind."""
    retry_times_max: Int32 = 16
    """After this many tries, a message that is sent to the group's retry topic goes to its dead letters."""
    forbidden_topics: tuple[str, ...] = ()
    """The topics that the group may not read for now."""
    subscriptions: tuple[SubscriptionPolicy, ...] = ()
    consume_messages_per_second: Count = 0
    consume_bytes_per_second: Count = 0
    """0 means no limit."""
