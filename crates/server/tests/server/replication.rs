//! A master's hub and its followers, each on a store of its own, over loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use metaq_server::{Follower, Hub, ReplicationSettings, StatePosition};
use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{Clock, Disk, Filter, RetentionSettings, Store, StoreSettings, SystemDisk};
use metaq_wire::{NewRecord, Record, body_crc};

use crate::support::eventually;

const KIB: u64 = 1024;
const LONG: Duration = Duration::from_secs(60);

fn settings(directory: &Path) -> StoreSettings {
    StoreSettings {
        sync_flush: true,
        commit_log_file_bytes: 64 * KIB,
        consume_queue_file_entries: 64,
        index_slots: 50,
        index_entries: 40,
        allocation_step_bytes: 4 * KIB,
        retention: RetentionSettings {
            disk_clean_percent: 99,
            disk_force_clean_percent: 100,
            disk_refuse_percent: 100,
            ..RetentionSettings::default()
        },
        ..StoreSettings::new(directory)
    }
}

fn open_on(directory: &Path, disk: Arc<dyn Disk>) -> Arc<Store> {
    Store::open(settings(directory), Clock::system(), disk).unwrap()
}

fn open(directory: &Path) -> Arc<Store> {
    open_on(directory, Arc::new(SystemDisk))
}

fn quick() -> ReplicationSettings {
    ReplicationSettings {
        beat_interval: Duration::from_millis(20),
        silence_max: LONG,
        followed_for: None,
        chunk_bytes: 32 << 10,
        catch_up_bytes_per_second: 0,
        state_bytes_max: 1 << 20,
    }
}

fn connect() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}

fn append(store: &Store, body: &[u8]) -> i64 {
    let host = ([127, 0, 0, 1], 10911).into();
    let record = NewRecord {
        topic: b"orders",
        queue_id: 0,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 7,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        body_crc: body_crc(body),
        properties: [b"", b"", b""],
    };
    let end_offset = store.append(&record).unwrap().end_offset;
    store.dispatch();
    end_offset
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The raw bytes of a log.
fn log(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(more) = store.raw_bytes(bytes.len() as i64, 1 << 20) {
        bytes.extend_from_slice(&more);
    }
    bytes
}

/// A master with epoch 1 that begins at the end of its log, and confirms nothing by itself.
fn master(store: &Arc<Store>, required: &[u32]) -> Hub {
    store.gate_confirmation(store.confirmed_offset());
    let hub = Hub::new(Arc::clone(store), quick(), vec![(1, store.start_offset())]).unwrap();
    hub.require(required);
    hub
}

fn follow(hub: &Hub, node_id: u32, store: &Arc<Store>) -> Follower {
    let (ours, theirs) = connect();
    store.gate_confirmation(store.confirmed_offset());
    let follower = Follower::start(theirs, Arc::clone(store), quick(), 1, StatePosition::default()).unwrap();
    hub.add_link(ours, node_id, store.end_offset()).unwrap();
    follower
}

fn closed(hub: &Hub) -> Option<String> {
    hub.links().into_iter().find_map(|link| link.closed)
}

#[test]
fn a_record_is_confirmed_when_master_and_replica_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    let hub = master(&source, &[2]);
    let alone = append(&source, b"first");
    assert!(source.wait_flushed(alone, LONG));
    assert!(!source.is_confirmed(alone), "no replica has it");
    let follower = follow(&hub, 2, &copy);
    assert!(source.wait_confirmed(alone, LONG));
    for number in 0..500_usize {
        append(&source, &vec![b'x'; number * 31 % 900]);
    }
    assert!(source.wait_confirmed(source.end_offset(), LONG));
    assert!(copy.flushed_offset() >= source.end_offset(), "it is on the replica's disk");
    until("the replica shows it", || copy.max_offset("orders", 0) == 501);
    assert_eq!(log(&copy), log(&source));
    let bodies = |store: &Store| store.get("orders", 0, 0, 1000, 1 << 20, &Filter::All).bytes;
    assert_eq!(bodies(&copy), bodies(&source));
    follower.stop();
    until("the hub notices", || closed(&hub).is_some());
    let end = append(&source, b"nobody holds it");
    assert!(source.wait_flushed(end, LONG));
    assert!(!source.is_confirmed(end));
}

#[test]
fn a_replica_shows_only_what_is_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    // Node 3 must hold every record too, and never comes.
    let hub = master(&source, &[2, 3]);
    let _follower = follow(&hub, 2, &copy);
    let end = append(&source, b"secret");
    until("the replica has it", || copy.flushed_offset() >= end);
    until("the master knows", || hub.held() == [(2, end)]);
    assert_eq!((copy.max_offset("orders", 0), copy.confirmed_offset()), (0, 0));
    assert_eq!(source.max_offset("orders", 0), 0);
    hub.require(&[2]);
    // A replica may be faster than the disk of its master.
    assert!(source.wait_confirmed(end, LONG));
    assert_eq!(source.max_offset("orders", 0), 1);
    until("the replica shows it", || copy.max_offset("orders", 0) == 1);
    hub.require(&[2, 3]);
    let held_back = append(&source, b"held back");
    until("the master knows", || hub.held() == [(2, held_back)]);
    assert!(source.is_confirmed(end) && !source.is_confirmed(held_back));
    hub.require(&[]);
    assert!(source.wait_confirmed(held_back, LONG), "the own disk is enough");
}

#[test]
fn a_broken_link_resumes_where_the_replica_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    let hub = master(&source, &[2]);
    for round in 0..20_usize {
        let follower = follow(&hub, 2, &copy);
        for number in 0..50_usize {
            append(&source, &vec![b'y'; (round * 50 + number) * 17 % 2_000]);
        }
        if round % 2 == 0 {
            follower.stop();
        } else {
            drop(follower);
        }
    }
    let _follower = follow(&hub, 2, &copy);
    assert!(source.wait_confirmed(source.end_offset(), LONG));
    assert_eq!(log(&copy), log(&source));
    until("all are shown", || copy.max_offset("orders", 0) == 1_000);
}

#[test]
fn an_unsynced_replica_confirms_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let source = open(&directory.path().join("a"));
    let copy = open_on(&directory.path().join("b"), Arc::clone(&disk) as Arc<dyn Disk>);
    let hub = master(&source, &[2]);
    let _follower = follow(&hub, 2, &copy);
    let first = append(&source, b"first");
    assert!(source.wait_confirmed(first, LONG));
    disk.stall(Call::SyncMapped, "");
    let second = append(&source, b"second");
    until("the replica has appended it", || copy.end_offset() == second);
    assert!(source.wait_flushed(second, LONG));
    assert!(!source.wait_confirmed(second, Duration::from_millis(100)));
    disk.heal();
    assert!(source.wait_confirmed(second, LONG));
}

#[test]
fn forged_acknowledgements_and_noise_close_the_link_and_confirm_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory.path().join("a"));
    let hub = master(&source, &[2]);
    let end = append(&source, b"precious");
    // An acknowledgement: kind 4, epoch, held, state version, 8 bytes of body, crc.
    let acknowledgement = |epoch: u64, held: i64| {
        let mut bytes = vec![4];
        bytes.extend(epoch.to_be_bytes());
        bytes.extend(held.to_be_bytes());
        bytes.extend(0_u64.to_be_bytes());
        bytes.extend(8_u32.to_be_bytes());
        let crc = crc32(&[&bytes[..], &[0; 8]].concat());
        bytes.extend(crc.to_be_bytes());
        bytes.extend([0; 8]);
        bytes
    };
    let attacks = [
        ("more than was sent", acknowledgement(1, end + 1)),
        ("an epoch that is not this one", acknowledgement(2, end)),
        ("the largest number", acknowledgement(1, i64::MAX)),
        ("noise", (0..200_u32).map(|byte| (byte * 37 % 251) as u8).collect()),
        ("a frame of the wrong kind", {
            let mut bytes = acknowledgement(1, end);
            bytes[0] = 3;
            let crc = crc32(&[&bytes[..29], &bytes[33..]].concat());
            bytes[29..33].copy_from_slice(&crc.to_be_bytes());
            bytes
        }),
    ];
    for (what, bytes) in attacks {
        let (ours, mut theirs) = connect();
        hub.add_link(ours, 2, 0).unwrap();
        theirs.write_all(&bytes).unwrap();
        until(what, || closed(&hub).is_some_and(|reason| reason.starts_with("the peer sent")));
        assert!(!source.is_confirmed(end), "{what}");
    }
    // The same bytes as an honest replica's are believed: the test above can fail.
    let (ours, mut theirs) = connect();
    hub.add_link(ours, 2, 0).unwrap();
    until("it is sent", || hub.links().iter().any(|link| link.sent == end));
    theirs.write_all(&acknowledgement(1, end)).unwrap();
    assert!(source.wait_confirmed(end, LONG));
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn a_master_that_sends_noise_or_another_log_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    let (mut ours, theirs) = connect();
    let follower = Follower::start(theirs, Arc::clone(&copy), quick(), 1, StatePosition::default()).unwrap();
    ours.write_all(&[9; 100]).unwrap();
    until("noise", || follower.figures().closed.is_some_and(|reason| reason.starts_with("the peer sent")));

    append(&copy, b"of its own");
    let hub = master(&source, &[]);
    append(&source, &[b'z'; 500]);
    append(&source, &[b'z'; 500]);
    let (ours, theirs) = connect();
    let follower = Follower::start(theirs, Arc::clone(&copy), quick(), 1, StatePosition::default()).unwrap();
    let before = log(&copy);
    hub.add_link(ours, 2, 0).unwrap();
    until("another log", || follower.figures().closed.is_some());
    assert_eq!(log(&copy), before, "nothing of it was taken");
}

#[test]
fn a_follower_names_the_damaged_record_that_its_master_sent() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    let hub = master(&source, &[]);
    let ends = [b'x', b'y', b'z'].map(|letter| append(&source, &[letter; 100]));
    let file = directory.path().join("a/commitlog/00000000000000000000");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    // Within the body of the second record.
    file.write_all_at(b"Y", ends[0] as u64 + 120).unwrap();
    let follower = follow(&hub, 2, &copy);
    until("the link is closed", || follower.figures().closed.is_some());
    assert_eq!(follower.figures().refused, Some(ends[0]));
    assert_eq!(copy.end_offset(), ends[0]);
}

#[test]
fn a_silent_peer_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory.path().join("a"));
    let silent = ReplicationSettings { silence_max: Duration::from_millis(100), ..quick() };
    let hub = Hub::new(Arc::clone(&source), silent.clone(), vec![(1, 0)]).unwrap();
    let (ours, theirs) = connect();
    hub.add_link(ours, 2, 0).unwrap();
    until("the replica", || closed(&hub).is_some_and(|reason| reason.contains("silent for 100 ms")));
    drop(theirs);
    let (_ours, theirs) = connect();
    let follower = Follower::start(theirs, source, silent, 1, StatePosition::default()).unwrap();
    until("the master", || follower.figures().closed.is_some_and(|reason| reason.contains("silent")));
}

#[test]
fn a_master_is_not_silent_while_its_replica_cannot_listen() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    let hub = master(&source, &[]);
    let small = ReplicationSettings { state_bytes_max: 100, ..quick() };
    let (ours, theirs) = connect();
    let follower = Follower::start(theirs, copy, small, 1, StatePosition::default()).unwrap();
    hub.add_link(ours, 2, 0).unwrap();
    let link = hub.links()[0].id;
    // Nobody takes the state, so the follower stops reading at the third one.
    for version in 1..=3 {
        assert!(hub.send_state(link, StatePosition { epoch: 1, version }, Bytes::from_static(&[b's'; 90])));
    }
    eventually("it cannot listen, and the master's silence does not grow", || {
        let is_busy = follower.figures().silent_ms == 0;
        std::thread::sleep(Duration::from_millis(250));
        is_busy && follower.figures().silent_ms == 0
    });
}

#[test]
fn control_state_arrives_in_order_and_is_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    let hub = master(&source, &[2]);
    let follower = follow(&hub, 2, &copy);
    let link = hub.links()[0].id;
    let position = |version| StatePosition { epoch: 1, version };
    for version in 1..=100 {
        append(&source, b"between");
        assert!(hub.send_state(link, position(version), Bytes::from(version.to_string())));
    }
    let mut arrived = Vec::new();
    until("all arrive", || hub.links()[0].sent == source.end_offset());
    let deadline = Instant::now() + LONG;
    while arrived.len() < 100 && Instant::now() < deadline {
        arrived.extend(follower.take_state());
    }
    let wanted: Vec<_> =
        (1..=100).map(|version| (position(version), Bytes::from(version.to_string()))).collect();
    assert_eq!(arrived, wanted);
    assert_eq!(hub.links()[0].state, StatePosition::default(), "not yet on the replica's disk");
    follower.acknowledge_state(position(100));
    until("the master knows", || hub.links()[0].state == position(100));
    assert!(!hub.send_state(link + 1, position(101), Bytes::new()), "there is no such link");
    assert_eq!((hub.state_waiting(link), hub.state_waiting(link + 1)), (Some(0), None));
}

/// How long a stop may take on a busy machine. A thread that waited for a peer would take as long as `silence_max`.
const PROMPT: Duration = Duration::from_secs(2);

#[test]
fn a_hub_stops_promptly_whatever_its_peers_do() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory.path().join("a"));
    for _ in 0..2_000 {
        append(&source, &[b'x'; 4_000]);
    }
    let slow = ReplicationSettings { catch_up_bytes_per_second: 1, ..quick() };
    for settings in [quick(), slow] {
        let hub = Hub::new(Arc::clone(&source), settings, vec![(1, 0)]).unwrap();
        let (ours, _peer_that_does_not_read) = connect();
        hub.add_link(ours, 2, 0).unwrap();
        until("the first bytes are sent", || hub.links()[0].sent > 0);
        until("nothing more fits the socket", || {
            let sent = hub.links()[0].sent;
            std::thread::sleep(Duration::from_millis(20));
            hub.links()[0].sent == sent
        });
        let started = Instant::now();
        hub.stop();
        assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    }
}

#[test]
fn after_a_hub_has_stopped_nothing_more_is_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let source = open_on(&directory.path().join("a"), Arc::clone(&disk) as Arc<dyn Disk>);
    let hub = master(&source, &[]);
    let first = append(&source, b"first");
    assert!(source.wait_confirmed(first, LONG));
    disk.stall(Call::SyncMapped, "");
    let second = append(&source, b"second");
    until("the sync hangs", || disk.hanging() > 0);
    let started = Instant::now();
    hub.stop();
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    disk.heal();
    assert!(source.wait_flushed(second, LONG));
    assert!(!source.wait_confirmed(second, Duration::from_millis(20)));
    assert_eq!(source.max_offset("orders", 0), 1);
    // A hub that is dropped later does not close the gate of the next one.
    let next = master(&source, &[]);
    drop(hub);
    assert!(source.wait_confirmed(second, LONG));
    drop(next);
}

#[test]
fn a_follower_stops_promptly_while_its_disk_hangs_and_acknowledges_nothing_later() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let source = open(&directory.path().join("a"));
    let copy = open_on(&directory.path().join("b"), Arc::clone(&disk) as Arc<dyn Disk>);
    let hub = master(&source, &[2]);
    let follower = follow(&hub, 2, &copy);
    let first = append(&source, b"first");
    assert!(source.wait_confirmed(first, LONG));
    disk.stall(Call::SyncMapped, "");
    let second = append(&source, b"second");
    until("the replica has appended it", || copy.end_offset() == second && disk.hanging() > 0);
    let started = Instant::now();
    follower.stop();
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    disk.heal();
    assert!(copy.wait_flushed(second, LONG));
    until("the hub notices", || closed(&hub).is_some());
    assert_eq!(hub.held(), [(2, first)]);
    assert!(!source.is_confirmed(second));
}

#[test]
fn a_follower_that_hangs_in_an_append_never_finishes_it() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let source = open(&directory.path().join("a"));
    let copy = open_on(&directory.path().join("b"), Arc::clone(&disk) as Arc<dyn Disk>);
    let hub = master(&source, &[]);
    let follower = follow(&hub, 2, &copy);
    disk.stall(Call::Allocate, "commitlog");
    for _ in 0..100 {
        append(&source, &[b'x'; 2_000]);
    }
    let mut known = -1;
    until("the replica waits for blocks", || disk.hanging() > 0);
    until("it appends nothing", || {
        std::thread::sleep(Duration::from_millis(20));
        std::mem::replace(&mut known, copy.end_offset()) == copy.end_offset()
    });
    let started = Instant::now();
    follower.stop();
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    let end = copy.end_offset();
    assert!(end < source.end_offset());
    disk.heal();
    until("the appender is free", || copy.append_raw(end, &[]).is_ok());
    assert_eq!(copy.end_offset(), end);
    let _follower = follow(&hub, 2, &copy);
    until("another one goes on", || copy.end_offset() == source.end_offset());
    assert_eq!(log(&copy), log(&source));
}

#[test]
fn frames_beyond_the_limits_close_the_link() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&directory.path().join("a"));
    let frame = |kind: u8, len: u32| {
        let mut bytes = vec![0; 33];
        bytes[0] = kind;
        bytes[25..29].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    // A master sends STATE beyond `state_bytes_max`, LOG beyond any record, and a beat with more than a number.
    for (kind, len) in [(2, (1 << 20) + 1), (1, 64 << 20), (3, 9)] {
        let (mut ours, theirs) = connect();
        let follower =
            Follower::start(theirs, Arc::clone(&source), quick(), 1, StatePosition::default()).unwrap();
        ours.write_all(&frame(kind, len)).unwrap();
        until("the limit", || {
            follower.figures().closed.is_some_and(|reason| reason.contains("the limit is"))
        });
    }
    // A replica sends anything but a short acknowledgement.
    let hub = master(&source, &[]);
    for (kind, len) in [(4, 9), (1, 1), (2, 1)] {
        let (ours, mut theirs) = connect();
        hub.add_link(ours, 2, 0).unwrap();
        theirs.write_all(&frame(kind, len)).unwrap();
        until("the limit", || closed(&hub).is_some_and(|reason| reason.contains("the limit is")));
    }
    let (ours, _theirs) = connect();
    let link = hub.add_link(ours, 2, 0).unwrap();
    assert!(!hub.send_state(link, StatePosition::default(), Bytes::from(vec![0; (1 << 20) + 1])));
    until("its own limit", || closed(&hub).is_some_and(|reason| reason.contains("state_bytes_max")));
}

/// A peer that reads the stream by hand sees control state before every record that was appended after it.
#[test]
fn control_state_arrives_before_the_records_that_follow_it() {
    const ROUNDS: u64 = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let source = Store::open(
        StoreSettings { sync_flush: false, ..settings(directory.path()) },
        Clock::system(),
        Arc::new(SystemDisk),
    )
    .unwrap();
    let hub = Hub::new(Arc::clone(&source), quick(), vec![(1, 0)]).unwrap();
    let (ours, mut theirs) = connect();
    let link = hub.add_link(ours, 2, 0).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut state, mut seen) = (0, 0);
            while seen < ROUNDS {
                let (kind, version, body) = read_frame(&mut theirs);
                match kind {
                    1 => {
                        for version in bodies(&body) {
                            assert!(
                                version <= state,
                                "record {version} came before its state, {state} was the last"
                            );
                            seen = version;
                        }
                    }
                    2 => state = version,
                    _ => {}
                }
            }
        });
        for version in 1..=ROUNDS {
            let position = StatePosition { epoch: 1, version };
            while !hub.send_state(link, position, Bytes::new()) {
                std::thread::yield_now();
            }
            append(&source, version.to_string().as_bytes());
        }
        reader.join().unwrap();
    });
}

/// The kind, the first number and the body of the next frame.
fn read_frame(stream: &mut TcpStream) -> (u8, u64, Vec<u8>) {
    let mut head = [0; 33];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_be_bytes(head[25..29].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    (head[0], u64::from_be_bytes(head[9..17].try_into().unwrap()), body)
}

/// The numbers in the bodies of whole records.
fn bodies(mut bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok(record) = Record::decode(bytes) {
        numbers.push(std::str::from_utf8(record.body).unwrap().parse().unwrap());
        bytes = &bytes[record.size..];
    }
    numbers
}

#[test]
fn a_replica_that_nobody_waits_for_is_throttled() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (open(&directory.path().join("a")), open(&directory.path().join("b")));
    for _ in 0..40 {
        append(&source, &[b'x'; 1_000]);
    }
    let slow = ReplicationSettings { catch_up_bytes_per_second: 200_000, chunk_bytes: 4_096, ..quick() };
    let hub = Hub::new(Arc::clone(&source), slow, vec![(1, 0)]).unwrap();
    let started = Instant::now();
    let _follower = follow(&hub, 2, &copy);
    until("it catches up", || copy.end_offset() == source.end_offset());
    let least = Duration::from_secs_f64((source.end_offset() - 8_192) as f64 / 200_000.0);
    assert!(started.elapsed() >= least, "{:?}", started.elapsed());
}

#[test]
fn a_replica_deletes_what_its_master_has_deleted_and_nothing_else() {
    const HOUR_MS: i64 = 3_600_000;
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(20_000 * 24 * HOUR_MS);
    let open = |name: &str| {
        Store::open(settings(&directory.path().join(name)), clock.clone(), Arc::new(SystemDisk)).unwrap()
    };
    let (source, copy) = (open("a"), open("b"));
    let hub = master(&source, &[2]);
    let follower = follow(&hub, 2, &copy);
    let fill = || {
        // More than a link's pin may be behind.
        for _ in 0..100 {
            append(&source, &[b'x'; 20_000]);
        }
        until("both have confirmed it", || copy.confirmed_offset() == source.end_offset());
    };
    fill();
    clock.advance_ms(100 * HOUR_MS);
    fill();
    assert_eq!(copy.clean(true).unwrap(), 0, "its files are old, but its master has them");
    assert!(source.clean(true).unwrap() > 0);
    until("the replica follows", || {
        copy.clean(false).unwrap();
        copy.start_offset() == source.start_offset()
    });
    assert_eq!(copy.min_offset("orders", 0), source.min_offset("orders", 0));
    drop(follower);
    clock.advance_ms(100 * HOUR_MS);
    assert_eq!(copy.clean(true).unwrap(), 0, "without a master nothing is deleted");
    copy.use_own_retention();
    assert!(copy.clean(true).unwrap() > 0, "a master deletes by its own rules");
}
