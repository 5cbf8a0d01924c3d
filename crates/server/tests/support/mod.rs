//! A whole data plane in the test's own process: a store on a temporary directory, a disk that can be made to fail, a
//! clock that the test moves, a listener on a free loopback port, and clients that speak the protocol.
//!
//! Nothing here sleeps for a fixed time. To prove that a request got no answer, ask something else on the same
//! connection: [`Client::ask`] fails if an unexpected answer comes first.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_server::{
    Broker, BrokerPlane, BrokerSettings, Crossed, Event, Group, HotRequests, Limit, LimitSettings, Listener,
    ListenerFigures, OffsetLimits, PlaneFigures, PullSettings, Rates, ServerSettings, Subscription,
    TimerSettings, Topic, TransactionSettings,
};
use metaq_store::faulty_disk::FaultyDisk;
use metaq_store::{Clock, Filter, RetentionSettings, Store, StoreSettings};
use metaq_wire::{BatchRecord, Encoding};
use tempfile::TempDir;

/// The time at which every test's clock begins.
pub const START_MS: i64 = 1_800_000_000_000;
/// No answer takes this long unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const TOPIC: &str = "orders";
pub const GROUP: &str = "readers";
pub const PRODUCER_GROUP: &str = "writers";
pub const READ_WRITE: u8 = 6;

#[allow(unused_imports)]
pub use metaq_server::{request_code, response_code};

mod client;

#[allow(unused_imports)]
pub use client::{Answer, Client, Message, messages};

/// Everything that a test can change before the server starts.
pub struct Setup {
    pub store: StoreSettings,
    pub server: ServerSettings,
    pub broker: BrokerSettings,
    pub topics: Vec<Topic>,
    pub groups: Vec<Group>,
    pub clock: Clock,
    pub is_replica: bool,
}

/// A running data plane, with the topic [`TOPIC`] and the group [`GROUP`] unless the set-up says otherwise.
pub struct Plane {
    pub listener: Listener,
    pub broker_plane: BrokerPlane,
    pub store: Arc<Store>,
    pub clock: Clock,
    pub disk: Arc<FaultyDisk>,
    directory: Arc<TempDir>,
}

impl Plane {
    pub fn start() -> Self {
        Plane::with(|_| ())
    }

    /// Starts with a set-up that `change` has altered.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        Plane::start_in(Arc::new(TempDir::new().unwrap()), change)
    }

    /// Starts a replica, which shows nothing until [`Store::confirm_replicated`] allows it.
    pub fn replica() -> Self {
        let plane = Plane::with(|setup| setup.is_replica = true);
        plane.store.gate_confirmation(0);
        plane
    }

    /// Copies the log of a master as far as it goes, without confirming it.
    pub fn copy_log(&self, master: &Plane) {
        while let Some(bytes) = master.store.raw_bytes(self.store.end_offset(), 1 << 20) {
            self.store.append_raw(self.store.end_offset(), &bytes).unwrap();
        }
        self.store.dispatch();
        assert!(self.store.wait_flushed(self.store.end_offset(), PATIENCE));
    }

    /// Ends this role and starts another one on the same listener and store.
    pub fn change_role(&mut self, is_replica: bool) {
        self.broker_plane.stop(true);
        let setup = setup(self.directory.path());
        let plane = BrokerPlane::new(&self.listener, Arc::clone(&self.store), setup.broker, is_replica);
        self.broker_plane = plane.unwrap();
        self.broker().policy.put_topics(setup.topics);
        self.broker().policy.put_groups(setup.groups);
        if !is_replica {
            self.broker().transactions.load();
        }
        self.broker_plane.start().unwrap();
    }

    /// Stops this one and starts another on the same directory, with the same clock.
    pub fn restart(self, change: impl FnOnce(&mut Setup)) -> Self {
        let (directory, clock) = (Arc::clone(&self.directory), self.clock.clone());
        drop(self);
        Plane::start_in(directory, |setup| {
            setup.clock = clock;
            change(setup);
        })
    }

    fn start_in(directory: Arc<TempDir>, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = setup(directory.path());
        change(&mut setup);
        let disk = Arc::new(FaultyDisk::new());
        let store = Store::open(setup.store, setup.clock.clone(), Arc::<FaultyDisk>::clone(&disk)).unwrap();
        let listener = Listener::bind(setup.server, HotRequests::Plane).unwrap();
        let broker_plane =
            BrokerPlane::new(&listener, Arc::clone(&store), setup.broker, setup.is_replica).unwrap();
        let plane = Plane { listener, broker_plane, store, clock: setup.clock, disk, directory };
        plane.broker().policy.put_topics(setup.topics);
        plane.broker().policy.put_groups(setup.groups);
        if !setup.is_replica {
            plane.broker().transactions.load();
        }
        plane.broker_plane.start().unwrap();
        plane.listener.start().unwrap();
        plane
    }

    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker_plane.broker
    }

    pub fn connect(&self) -> Client {
        self.connect_with(Encoding::Json)
    }

    pub fn connect_with(&self, encoding: Encoding) -> Client {
        Client::connect(self.listener.port(), encoding)
    }

    /// Moves the clock and waits until everything that is due by then has been delivered.
    pub fn advance_ms(&self, by_ms: i64) {
        assert!(self.clock.advance_ms(by_ms));
        assert!(self.broker().catch_up(PATIENCE), "delivery after a clock jump");
    }

    /// The next request that crossed to Python.
    pub fn crossed(&self) -> Crossed {
        match self.event() {
            Event::Request(crossed) => crossed,
            Event::Closed(peer) => {
                panic!("expected a request, but a connection ended: {:?}", peer.end_reason())
            }
            Event::Answer(_) => panic!("expected a request, but an answer came"),
        }
    }

    pub fn event(&self) -> Event {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.listener.shared.crossing.drain(1).pop() {
                return event;
            }
            assert!(Instant::now() < deadline, "nothing crossed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The traffic of all connections.
    pub fn counts(&self) -> ListenerFigures {
        self.listener.figures()
    }

    pub fn figures(&self) -> PlaneFigures {
        self.broker_plane.figures()
    }

    /// Answers everything that waits and closes every connection.
    pub fn stop(&self) {
        self.broker_plane.stop(true);
        self.listener.stop(PATIENCE);
    }

    /// Changes a byte of the commit log, as a bad disk would.
    pub fn flip(&self, physical_offset: i64) {
        let log = std::fs::read_dir(self.directory.path().join("commitlog")).unwrap();
        let mut files: Vec<_> = log.map(|file| file.unwrap().path()).collect();
        files.retain(|file| start_of(file) <= physical_offset);
        let path = files.into_iter().max_by_key(|file| start_of(file)).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (mut byte, position) = ([0], (physical_offset - start_of(&path)) as u64);
        file.read_exact_at(&mut byte, position).unwrap();
        file.write_all_at(&[byte[0] ^ 1], position).unwrap();
    }

    /// Bodies and properties of everything that a consumer can read from a queue.
    pub fn read(&self, topic: &str, queue_id: i32) -> Vec<Message> {
        let from = self.store.min_offset(topic, queue_id);
        let got = self.store.get(topic, queue_id, from, 1_000, 1 << 24, &Filter::All);
        got.slices.iter().flat_map(|slice| messages(slice)).collect()
    }

    pub fn bodies(&self, topic: &str, queue_id: i32) -> Vec<String> {
        self.read(topic, queue_id).into_iter().map(|message| message.body).collect()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.disk.heal();
        self.stop();
        let _reported_by_the_test_itself = self.store.close();
    }
}

fn setup(directory: &Path) -> Setup {
    let store = StoreSettings {
        commit_log_file_bytes: 1 << 20,
        consume_queue_file_entries: 1_000,
        index_slots: 100,
        index_entries: 400,
        allocation_step_bytes: 1 << 16,
        flush_interval_ms: 20,
        queue_flush_interval_ms: 20,
        message_size_bytes_max: 64 * 1024,
        retention: RetentionSettings {
            disk_clean_percent: 99,
            disk_force_clean_percent: 100,
            disk_refuse_percent: 100,
            ..RetentionSettings::default()
        },
        delay_levels_ms: vec![1_000, 5_000],
        ..StoreSettings::new(directory)
    };
    let server = ServerSettings {
        host: "127.0.0.1".to_owned(),
        port: 0,
        also_old_port: false,
        connections_max: 100,
        connections_per_address_max: 100,
        connections_silent_max: 100,
        frame_bytes_max: 1 << 20,
        frame_deadline_ms: 60_000,
        first_frame_deadline_ms: 60_000,
        idle_timeout_ms: 120_000,
        crossing_requests_max: 100,
        crossing_bytes_max: 1 << 20,
        crossing_requests_per_connection_max: 100,
        crossing_bytes_per_connection_max: 1 << 20,
        crossing_age_ms_max: 60_000,
        connection_output_bytes_max: 1 << 24,
        connection_memory_bytes_max: 1 << 26,
        memory_bytes_max: 1 << 28,
        group_memory_bytes_max: 1 << 28,
        worker_threads: 1,
        relay_timeout_ms: 60_000,
        relay_requests_max: 200,
        relay_bytes_max: 1 << 20,
        held_requests_max: 100,
        held_bytes_max: 1 << 20,
    };
    let broker = BrokerSettings {
        cluster: "c1".to_owned(),
        name: "b1".to_owned(),
        store_host: "127.0.0.1:10911".to_owned(),
        region: "r1".to_owned(),
        message_size_bytes_max: store.message_size_bytes_max,
        message_keys_max: 64,
        message_keys_per_second: 1_000,
        flush_timeout_ms: 60_000,
        metrics_pairs_max: 1_000,
        metrics_queues_max: 1_000,
        stands_in: false,
        offsets: OffsetLimits { pairs_max: 1_000, places_max: 10_000 },
        limits: LimitSettings { send_hold_ms_max: 1_000, send_refusal_hold_ms: 500, send_hold_max: 100 },
        pull: PullSettings {
            bytes_max: 1 << 20,
            messages_max: 32,
            hold_max: 100,
            connection_hold_max: 100,
            filter_bytes_max: 64 * 1024,
            long_polling: true,
            short_polling_ms: 20,
            hold_ms_max: 300_000,
            bytes_default: 256 * 1024,
            limit_hold_ms: 1_000,
            filter_hold_ms_max: 5_000,
            examined_bytes_max: 4 << 20,
            tags_max: 10_000,
            slave_read: false,
            in_memory_percent: 40,
            own_broker_id: None,
        },
        transaction: TransactionSettings {
            timeout_ms: 6_000,
            immunity_ms_max: 86_400_000,
            open_max: 10,
            open_per_group_max: 10,
            open_per_address_max: 10,
            ended_kept: 1_024,
            renew_bytes_max: 1 << 20,
            message_keys_max: 64,
        },
        timer: TimerSettings {
            delay_levels_ms: store.delay_levels_ms.clone(),
            delay_ms_max: 3_600_000,
            roll_ms: 3_600_000,
            recall_messages: true,
            recall_by_property: true,
        },
    };
    Setup {
        store,
        server,
        broker,
        topics: vec![topic(TOPIC)],
        groups: vec![group(GROUP)],
        clock: Clock::manual(START_MS),
        is_replica: false,
    }
}

/// The physical offset at which a file of the commit log begins.
fn start_of(file: &Path) -> i64 {
    file.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap()
}

/// A topic with four queues that anybody may read and write.
pub fn topic(name: &str) -> Topic {
    Topic {
        name: name.to_owned(),
        read_queues: 4,
        write_queues: 4,
        permission: READ_WRITE,
        client_writable: true,
        client_readable: true,
        send_limit: None,
        is_system: false,
        traffic: Arc::default(),
    }
}

/// A group that reads everything of [`TOPIC`].
pub fn group(name: &str) -> Group {
    Group {
        name: name.to_owned(),
        client_usable: true,
        consume_enabled: true,
        broadcast_enabled: true,
        broadcasting: false,
        broker_id: 0,
        slow_broker_id: 1,
        retry_times_max: 16,
        forbidden_topics: Vec::new(),
        subscriptions: vec![subscription(TOPIC)],
        members: Arc::default(),
        consume_limit: None,
        is_system: false,
        traffic: Arc::default(),
    }
}

pub fn subscription(topic: &str) -> Subscription {
    Subscription {
        topic: topic.to_owned(),
        version: 1,
        expression_type: "TAG".to_owned(),
        filter: Filter::All,
        refusal: None,
    }
}

pub fn messages_per_second(messages: u64) -> Option<Arc<Limit>> {
    Limit::new(Rates { messages, bytes: 0 })
}

/// Names and values of the fields of a request.
pub type Fields<'a> = Vec<(&'a str, String)>;

/// The fields of SEND_MESSAGE_V2 to queue 0 of [`TOPIC`].
pub fn send_fields(properties: &str) -> Fields<'static> {
    vec![
        ("a", PRODUCER_GROUP.to_owned()),
        ("b", TOPIC.to_owned()),
        ("c", "TBW102".to_owned()),
        ("d", "4".to_owned()),
        ("e", "0".to_owned()),
        ("f", "0".to_owned()),
        ("g", START_MS.to_string()),
        ("h", "0".to_owned()),
        ("i", properties.to_owned()),
        ("j", "0".to_owned()),
        ("k", "false".to_owned()),
        ("m", "false".to_owned()),
    ]
}

/// The fields of PULL_MESSAGE for [`GROUP`], from an offset of queue 0 of [`TOPIC`].
pub fn pull_fields(queue_offset: i64) -> Fields<'static> {
    vec![
        ("consumerGroup", GROUP.to_owned()),
        ("topic", TOPIC.to_owned()),
        ("queueId", "0".to_owned()),
        ("queueOffset", queue_offset.to_string()),
        ("maxMsgNums", "32".to_owned()),
        ("sysFlag", "0".to_owned()),
        ("commitOffset", "0".to_owned()),
        ("suspendTimeoutMillis", "0".to_owned()),
        ("subVersion", "1".to_owned()),
        ("expressionType", "TAG".to_owned()),
    ]
}

/// The fields of a request about queue 0 of [`TOPIC`].
pub fn queue_fields() -> Fields<'static> {
    vec![("topic", TOPIC.to_owned()), ("queueId", "0".to_owned())]
}

/// The same fields with some replaced or added.
pub fn but<'a>(mut fields: Fields<'a>, changes: &[(&'a str, &str)]) -> Fields<'a> {
    for (name, value) in changes {
        fields.retain(|(known, _)| known != name);
        fields.push((name, (*value).to_owned()));
    }
    fields
}

/// Encodes names and values as a property string.
pub fn properties(pairs: &[(&str, &str)]) -> String {
    pairs.iter().flat_map(|(name, value)| [*name, "\u{1}", *value, "\u{2}"]).collect()
}

/// Encodes bodies and properties as the body of SEND_BATCH_MESSAGE.
pub fn batch(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (part, properties) in parts {
        let record = BatchRecord { flag: 0, body: part.as_bytes(), properties: properties.as_bytes() };
        record.encode(&mut body).unwrap();
    }
    body
}

/// Waits until another thread makes the condition true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}
