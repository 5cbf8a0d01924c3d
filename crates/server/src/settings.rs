//! The settings of a listener and of a broker plane; Python hands them over once, when it builds them.

/// One listener: its address, and the limits of its peers.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub host: String,
    pub port: u16,
    /// Listen on port−2 too, where clients up to 4.4 send.
    pub also_old_port: bool,
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    /// Connections that have not sent a whole frame yet.
    pub connections_silent_max: usize,
    pub frame_bytes_max: usize,
    pub frame_deadline_ms: u64,
    /// A connection that has sent no whole frame after this time is closed.
    pub first_frame_deadline_ms: u64,
    pub idle_timeout_ms: u64,
    pub crossing_requests_max: usize,
    pub crossing_bytes_max: usize,
    pub crossing_requests_per_connection_max: usize,
    pub crossing_bytes_per_connection_max: usize,
    /// A request that waited longer for Python is answered as too late instead of being worked on.
    pub crossing_age_ms_max: u64,
    /// A peer with this many unsent bytes is not read from until it has read some.
    pub connection_output_bytes_max: usize,
    /// Memory that is kept for one peer: beyond it, it is refused or closed.
    pub connection_memory_bytes_max: usize,
    /// Memory that is kept for all peers: beyond it, the worst of them are closed.
    pub memory_bytes_max: usize,
    /// Memory that is kept for one group, over all its connections: beyond it, its pulls may not wait.
    pub group_memory_bytes_max: usize,
    pub worker_threads: usize,
    /// A request that a replica relays to its master waits at most this long for the answer.
    pub relay_timeout_ms: u64,
    /// Relayed requests without an answer, at one time.
    pub relay_requests_max: usize,
    pub relay_bytes_max: usize,
    /// Requests that are kept back while the role changes.
    pub held_requests_max: usize,
    pub held_bytes_max: usize,
}

/// A broker plane: its identity, and the settings of each room.
#[derive(Debug, Clone)]
pub struct BrokerSettings {
    pub cluster: String,
    pub name: String,
    /// `ip:port`; port 0 stands for the bound port.
    pub store_host: String,
    pub region: String,
    pub message_size_bytes_max: usize,
    /// Words in the KEYS of one message, each of which costs an entry of the key index. A long message may have more.
    pub message_keys_max: usize,
    /// Keys beyond one for 32 bytes that the messages of one address may have.
    pub message_keys_per_second: u64,
    /// An acknowledgement waits at most this long for the store to confirm its record.
    pub flush_timeout_ms: u64,
    /// Pairs of a topic and a group that are counted for the metrics.
    pub metrics_pairs_max: usize,
    /// Queues of these pairs of which is known how far they were handed out.
    pub metrics_queues_max: usize,
    /// A replica takes the place of its master for consumers while that is away: no other node will. It keeps committed
    /// offsets on its own disk.
    pub stands_in: bool,
    pub offsets: OffsetLimits,
    pub limits: LimitSettings,
    pub pull: PullSettings,
    pub transaction: TransactionSettings,
    pub timer: TimerSettings,
}

/// Committed offsets, which stay until somebody deletes them.
#[derive(Debug, Clone, Copy, Default)]
pub struct OffsetLimits {
    /// Pairs of a topic and a group. A pair takes about half a kilobyte.
    pub pairs_max: usize,
    /// The queues of all pairs together.
    pub places_max: usize,
}

/// Sends over their topic's limit.
#[derive(Debug, Clone)]
pub struct LimitSettings {
    /// An acknowledgement waits at most this long for its topic's limit; beyond that, the message is refused.
    pub send_hold_ms_max: u64,
    /// The refusal of such a message is kept back this long.
    pub send_refusal_hold_ms: u64,
    /// Acknowledgements that wait for a limit at one time.
    pub send_hold_max: usize,
}

#[derive(Debug, Clone)]
pub struct PullSettings {
    pub bytes_max: usize,
    pub messages_max: usize,
    /// Pulls that are held at one time.
    pub hold_max: usize,
    /// Pulls of one connection that are held at one time.
    pub connection_hold_max: usize,
    /// The longest expression that a pull may carry.
    pub filter_bytes_max: usize,
    /// A pull is held no longer than this, whatever it asks for.
    pub hold_ms_max: u64,
    pub long_polling: bool,
    pub short_polling_ms: u64,
    /// Bytes that a pull returns that does not say how many it takes.
    pub bytes_default: usize,
    /// A pull that asked for no wait is held this long for its group's limit: an empty answer would say that the queue
    /// is empty.
    pub limit_hold_ms: u64,
    /// Bytes of properties that the expression of one pull examines, or of all held pulls that one arrival wakes. Then
    /// the consumer has to ask again from there.
    pub examined_bytes_max: u64,
    /// Tags that a pull may name.
    pub tags_max: usize,
    /// A pull waits at most this long for a filter function, well below what clients wait for an answer.
    pub filter_hold_ms_max: u64,
    /// Consumers that are far behind read from a replica.
    pub slave_read: bool,
    /// The share of the machine's memory in which the newest records are expected.
    pub in_memory_percent: u64,
    /// The id under which a replica is known; None if it has none.
    pub own_broker_id: Option<i64>,
}

#[derive(Debug, Clone)]
pub struct TransactionSettings {
    /// The shortest time that a producer has to end a transaction before it is checked.
    pub timeout_ms: i64,
    /// The longest time for which a producer may ask not to be checked.
    pub immunity_ms_max: i64,
    pub open_max: usize,
    /// The same for one producer group.
    pub open_per_group_max: usize,
    /// The same for one address, whatever groups it names.
    pub open_per_address_max: usize,
    /// Ended transactions that are remembered, so that a repeated request gets a true answer.
    pub ended_kept: usize,
    /// Bytes of half messages of one address that a turn of checks stores again.
    pub renew_bytes_max: u64,
    /// Keys of one message inside a half message that holds many.
    pub message_keys_max: usize,
}

#[derive(Debug, Clone)]
pub struct TimerSettings {
    /// The waiting time of each delay level, level 1 first.
    pub delay_levels_ms: Vec<i64>,
    /// The longest that a message may wait for a moment that its sender names.
    pub delay_ms_max: i64,
    /// A message that waits longer than this is stored again before retention may meet it.
    pub roll_ms: i64,
    /// Whether waiting messages can be recalled.
    pub recall_messages: bool,
    /// Whether a message with a property recalls another one, without a handle.
    pub recall_by_property: bool,
}
