//! Apache's replication protocol: both ends on stores of their own, and each end against a peer that lies.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_server::{ApacheFollower, ApacheMaster};
use metaq_store::{Clock, RetentionSettings, Store, StoreSettings, SystemDisk};
use metaq_wire::{NewRecord, body_crc};

const LONG: Duration = Duration::from_secs(60);
const FILE_BYTES: i64 = 64 << 10;

fn open_with(directory: &Path, commit_log_file_bytes: i64) -> Arc<Store> {
    let settings = StoreSettings {
        sync_flush: true,
        commit_log_file_bytes: commit_log_file_bytes as u64,
        consume_queue_file_entries: 64,
        index_slots: 50,
        index_entries: 40,
        allocation_step_bytes: 4096,
        retention: RetentionSettings {
            disk_clean_percent: 99,
            disk_force_clean_percent: 100,
            disk_refuse_percent: 100,
            ..RetentionSettings::default()
        },
        ..StoreSettings::new(directory)
    };
    Store::open(settings, Clock::system(), Arc::new(SystemDisk)).unwrap()
}

fn open(directory: &Path) -> Arc<Store> {
    open_with(directory, FILE_BYTES)
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

/// Fills more than two files with records of different sizes.
fn fill(store: &Store) -> i64 {
    (0..60).map(|number| append(store, &vec![number as u8; 200 + number * 97])).last().unwrap()
}

fn connect() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn log_of(store: &Store) -> Vec<u8> {
    let (mut at, mut log) = (store.start_offset(), Vec::new());
    while let Some(bytes) = store.log_bytes(at, usize::MAX) {
        log.extend_from_slice(&bytes);
        at += bytes.len() as i64;
    }
    log
}

fn serve(store: &Arc<Store>) -> (ApacheMaster, TcpStream) {
    let master = ApacheMaster::new(Arc::clone(store), LONG, 0).unwrap();
    let (ours, theirs) = connect();
    master.add_link(ours, "slave".to_owned()).unwrap();
    (master, theirs)
}

fn reason_of(master: &ApacheMaster) -> String {
    let mut reason = None;
    let deadline = Instant::now() + LONG;
    while reason.is_none() {
        assert!(Instant::now() < deadline, "the link is still open");
        std::thread::sleep(Duration::from_millis(2));
        reason = master.links().into_iter().find_map(|link| link.closed);
    }
    reason.unwrap()
}

fn closed(follower: &ApacheFollower) -> String {
    until("closed", || follower.figures().closed.is_some());
    follower.figures().closed.unwrap()
}

fn frame(physical_offset: i64, bytes: &[u8]) -> Vec<u8> {
    [&physical_offset.to_be_bytes()[..], &(bytes.len() as i32).to_be_bytes(), bytes].concat()
}

fn first_report(stream: &mut TcpStream) -> i64 {
    let mut report = [0; 8];
    stream.read_exact(&mut report).unwrap();
    i64::from_be_bytes(report)
}

#[test]
fn a_log_of_several_files_is_copied_and_copying_resumes() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, copy) = (open(source.path()), open(target.path()));
    let end = fill(&store);
    assert!(end > 2 * FILE_BYTES);
    let (master, theirs) = serve(&store);
    let follower = ApacheFollower::start(theirs, Arc::clone(&copy), LONG).unwrap();
    until("copied", || copy.end_offset() == end && copy.is_confirmed(end));
    until("reported", || master.links()[0].reported == end);
    follower.stop();
    let end = append(&store, b"while nobody listens");
    let (ours, theirs) = connect();
    master.add_link(ours, "again".to_owned()).unwrap();
    let follower = ApacheFollower::start(theirs, Arc::clone(&copy), LONG).unwrap();
    until("copied", || copy.is_confirmed(end));
    assert_eq!(log_of(&copy), log_of(&store));
    assert_eq!(copy.queue_entries("orders", 0, 0, 100), store.queue_entries("orders", 0, 0, 100));
    assert_eq!(copy.max_offset("orders", 0), 61);
    assert_eq!(follower.figures().received, end);
}

#[test]
fn records_are_put_together_however_they_were_cut() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, copy) = (open(source.path()), open(target.path()));
    let end = fill(&store);
    let log = log_of(&store);
    let (mut master, theirs) = connect();
    let _follower = ApacheFollower::start(theirs, Arc::clone(&copy), LONG).unwrap();
    assert_eq!(first_report(&mut master), 1, "0 would mean: begin with the newest file");
    let mut at = 1;
    for size in [1, 7, 1000, 3].into_iter().cycle() {
        let next = (at + size).min(log.len()).min((at / FILE_BYTES as usize + 1) * FILE_BYTES as usize);
        master.write_all(&frame(at as i64, &log[at..next])).unwrap();
        at = next;
        if at == log.len() {
            break;
        }
    }
    until("copied", || copy.is_confirmed(end));
    assert_eq!(log_of(&copy), log);
}

#[test]
fn a_slave_gets_only_what_is_confirmed_and_an_empty_one_gets_everything() {
    let source = tempfile::tempdir().unwrap();
    let store = open(source.path());
    let end = fill(&store);
    until("confirmed", || store.is_confirmed(end));
    store.gate_confirmation(end);
    append(&store, b"not on any replica yet");
    let (master, mut slave) = serve(&store);
    slave.write_all(&0_i64.to_be_bytes()).unwrap();
    let mut received = Vec::new();
    while (received.len() as i64) < end {
        let mut head = [0; 12];
        slave.read_exact(&mut head).unwrap();
        assert_eq!(head[..8], (received.len() as i64).to_be_bytes());
        let size = u32::from_be_bytes(head[8..].try_into().unwrap());
        let mut bytes = vec![0; size as usize];
        slave.read_exact(&mut bytes).unwrap();
        received.extend(bytes);
    }
    assert_eq!(received, log_of(&store)[..end as usize]);
    let mut beat = [0; 12];
    slave.read_exact(&mut beat).unwrap();
    assert_eq!(beat[..], frame(end, b"")[..], "then heartbeats");
    assert_eq!(master.links()[0].sent, end);
}

#[test]
fn a_master_that_lies_is_left_and_nothing_moves() {
    let target = tempfile::tempdir().unwrap();
    let copy = open(target.path());
    let record = {
        let other = tempfile::tempdir().unwrap();
        let store = open(other.path());
        append(&store, b"sound");
        log_of(&store)
    };
    let mut wrong_body = record.clone();
    wrong_body[90] ^= 1;
    let cases = [
        (frame(9, &record[1..]), "sent offset 9, this log continues at 1"),
        (frame(-1, b""), "sent offset -1"),
        ([&1_i64.to_be_bytes()[..], &(-1_i32).to_be_bytes()].concat(), "mappedFileSizeCommitLog"),
        ([&1_i64.to_be_bytes()[..], &i32::MAX.to_be_bytes()].concat(), "mappedFileSizeCommitLog"),
        (frame(1, &[0xFF; 64]), "no record begins at offset 0"),
        (frame(1, &[0; 64]), "no record begins at offset 0"),
        (frame(1, &wrong_body[1..]), "no sound record begins there"),
    ];
    for (bytes, reason) in cases {
        let (mut master, theirs) = connect();
        let follower = ApacheFollower::start(theirs, Arc::clone(&copy), LONG).unwrap();
        assert_eq!(first_report(&mut master), 1);
        master.write_all(&bytes).unwrap();
        let found = closed(&follower);
        assert!(found.contains(reason), "{found}");
        assert_eq!(copy.end_offset(), 0);
    }
}

#[test]
fn another_log_and_other_files_are_noticed() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [store, same, smaller] =
        [open(folders[0].path()), open(folders[1].path()), open_with(folders[2].path(), FILE_BYTES / 2)];
    let end = append(&same, b"written by someone else");
    assert_eq!(append(&store, b"written by its master  "), end);
    fill(&store);
    let (_master, theirs) = serve(&store);
    let follower = ApacheFollower::start(theirs, Arc::clone(&same), LONG).unwrap();
    let found = closed(&follower);
    assert!(found.contains("differs from this one at offset"), "{found}");
    assert_eq!(same.end_offset(), end);

    let (_master, theirs) = serve(&store);
    let follower = ApacheFollower::start(theirs, smaller, LONG).unwrap();
    let found = closed(&follower);
    assert!(found.contains("must equal mappedFileSizeCommitLog"), "{found}");
}

#[test]
fn a_slave_that_lies_is_left() {
    let source = tempfile::tempdir().unwrap();
    let store = open(source.path());
    let end = fill(&store);
    let cases = [
        (vec![-5], "reports offset -5"),
        (vec![end + 1], "empty the slave's store"),
        (vec![i64::MAX], "empty the slave's store"),
        (vec![end, end - 1], &format!("reports offset {} after {end}", end - 1)),
        (vec![end, end + 200], &format!("{end} was sent")),
    ];
    for (reports, reason) in cases {
        let (master, mut slave) = serve(&store);
        for report in reports {
            slave.write_all(&report.to_be_bytes()).unwrap();
        }
        let found = reason_of(&master);
        assert!(found.contains(reason), "{found}");
    }
}

#[test]
fn the_number_of_slaves_is_limited_and_silence_ends_a_link() {
    let source = tempfile::tempdir().unwrap();
    let store = open(source.path());
    let master = ApacheMaster::new(store, Duration::from_millis(300), 0).unwrap();
    let sockets: Vec<_> = (0..16)
        .map(|_| connect())
        .map(|(ours, theirs)| (master.add_link(ours, String::new()), theirs))
        .collect();
    assert!(sockets.iter().all(|(link, _)| link.is_ok()));
    let refusal = master.add_link(connect().0, String::new()).unwrap_err().to_string();
    assert!(refusal.contains("the limit"), "{refusal}");
    assert_eq!(reason_of(&master), "the peer was silent for 300 ms");
    until("room again", || master.add_link(connect().0, String::new()).is_ok());
}
