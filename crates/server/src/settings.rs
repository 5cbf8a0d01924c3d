//! What a server is told once, when it is made.

/// One listener: where it binds and what it lets a peer take from it.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub host: String,
    pub port: u16,
    /// Listen on port−2 too, where clients up to 4.4 send.
    pub also_old_port: bool,
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    pub frame_bytes_max: usize,
    pub frame_deadline_ms: u64,
    pub idle_timeout_ms: u64,
    pub crossing_requests_max: usize,
    pub crossing_bytes_max: usize,
    /// A request that waited longer for Python is answered as too late instead of being worked on.
    pub crossing_age_ms_max: u64,
    pub connection_output_bytes_max: usize,
    pub worker_threads: usize,
}

/// What the hot requests need to know of the broker they run in.
#[derive(Debug, Clone)]
pub struct BrokerSettings {
    pub cluster: String,
    pub name: String,
    /// `ip:port`; port 0 stands for the bound port.
    pub store_host: String,
    pub region: String,
    pub message_size_bytes_max: usize,
    pub flush_timeout_ms: u64,
    pub pull_bytes_max: usize,
    pub pull_messages_max: usize,
    pub hold_max: usize,
    /// How long an acknowledgement may wait for its topic's limit, before the message is refused instead.
    pub send_hold_ms_max: u64,
    /// How long the refusal of such a message is kept back.
    pub send_refusal_hold_ms: u64,
    /// Acknowledgements that wait for a limit at one time.
    pub send_hold_max: usize,
    pub long_polling: bool,
    pub short_polling_ms: u64,
    /// How long a message of each delay level waits, level 1 first.
    pub delay_levels_ms: Vec<i64>,
    /// The least time that a producer has to end a transaction before it is asked.
    pub transaction_timeout_ms: i64,
    pub transactions_open_max: usize,
    /// The longest that a message may wait for a moment that its sender names.
    pub timer_max_delay_ms: i64,
    /// A message that waits longer than this is stored again before retention may meet it.
    pub timer_roll_ms: i64,
    /// Whether waiting messages can be recalled.
    pub recall_messages: bool,
}
