//! Shared by the store's tests: small settings, records, reading everything back, and a simulated kill.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metaq_store::{Appended, Clock, Filter, GetStatus, RetentionSettings, Store, StoreSettings, SystemDisk};
use metaq_wire::{NewRecord, Record, body_crc};

pub const KIB: u64 = 1024;

/// Files so small that everything rolls, wraps and fills up within a test. Asynchronous flush, so that records can be
/// read at once.
pub fn small(directory: &Path) -> StoreSettings {
    StoreSettings {
        sync_flush: false,
        commit_log_file_bytes: 16 * KIB,
        consume_queue_file_entries: 16,
        index_slots: 50,
        index_entries: 40,
        allocation_step_bytes: 4 * KIB,
        flush_interval_ms: 20,
        queue_flush_interval_ms: 20,
        retention: RetentionSettings {
            disk_clean_percent: 99,
            disk_force_clean_percent: 100,
            disk_refuse_percent: 100,
            ..RetentionSettings::default()
        },
        ..StoreSettings::new(directory)
    }
}

/// The same with synchronous flush.
pub fn synced(directory: &Path) -> StoreSettings {
    StoreSettings { sync_flush: true, ..small(directory) }
}

pub fn open(settings: &StoreSettings) -> Arc<Store> {
    Store::open(settings.clone(), Clock::system(), Arc::new(SystemDisk)).expect("the store opens")
}

pub fn record<'a>(topic: &'a str, queue_id: i32, body: &'a [u8], properties: &'a str) -> NewRecord<'a> {
    let host = ([127, 0, 0, 1], 10911).into();
    NewRecord {
        topic: topic.as_bytes(),
        queue_id,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 7,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        body_crc: body_crc(body),
        properties: [properties.as_bytes(), b"", b""],
    }
}

pub fn send(store: &Store, topic: &str, queue_id: i32, body: &[u8]) -> Appended {
    // The last byte is not zero, so that a test notices when it is cut off.
    let appended = store.append(&record(topic, queue_id, body, "A\u{1}b\u{2}")).expect("the record is taken");
    confirm(store, appended.end_offset);
    appended
}

/// Waits until the records up to `end_offset` can be read.
pub fn confirm(store: &Store, end_offset: i64) {
    store.dispatch();
    assert!(store.wait_confirmed(end_offset, Duration::from_secs(60)), "the records are confirmed");
    // With asynchronous flush another thread may be about to dispatch them.
    eventually("the records are dispatched", || figure(store, "dispatched_offset") >= end_offset);
}

/// Reads all records of a queue as (queue offset, body), and checks the guarantees that clients rely on.
pub fn read_all(store: &Store, topic: &str, queue_id: i32) -> Vec<(i64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = store.min_offset(topic, queue_id);
    loop {
        let got = store.get(topic, queue_id, at, 7, 1 << 20, &Filter::All);
        match got.status {
            GetStatus::Found | GetStatus::NoMatch => {
                for slice in &got.slices {
                    let mut rest = &slice[..];
                    while !rest.is_empty() {
                        let record = Record::decode(rest).expect("a served record decodes");
                        assert!(record.crc_matches(), "a served record has its checksum");
                        assert_eq!(record.topic, topic.as_bytes());
                        assert_eq!(record.queue_id, queue_id);
                        found.push((record.queue_offset, record.body.to_vec()));
                        rest = &rest[record.size..];
                    }
                }
                assert!(got.next_offset > at, "a pull always moves on");
                at = got.next_offset;
            }
            GetStatus::AtEnd | GetStatus::EmptyQueue | GetStatus::NoQueue => return found,
            other => panic!("unexpected {other:?} at {at}"),
        }
    }
}

pub fn bodies(store: &Store, topic: &str, queue_id: i32) -> Vec<Vec<u8>> {
    read_all(store, topic, queue_id).into_iter().map(|(_, body)| body).collect()
}

pub fn figure(store: &Store, name: &str) -> i64 {
    store.figures().named().into_iter().find(|(known, _)| *known == name).expect("a known figure").1
}

/// Waits until a background thread makes the condition true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Copies the directory while the store runs, as a kill would leave it. A file that describes others is copied before
/// them, so that a kill could really have left this state.
pub fn copy_store(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in ["checkpoint", "abort", "index", "consumequeue", "commitlog"] {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            copy_directory(&from, &to);
        } else if from.exists() {
            fs::copy(from, to).unwrap();
        }
    }
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// The file of the commit log that contains the offset, and the position in that file.
pub fn locate(settings: &StoreSettings, physical_offset: i64) -> (std::path::PathBuf, u64) {
    let file_bytes = settings.commit_log_file_bytes as i64;
    let start = physical_offset / file_bytes * file_bytes;
    (settings.directory.join("commitlog").join(format!("{start:020}")), (physical_offset - start) as u64)
}

/// Changes one byte in place. Rewriting the file would truncate it for a moment, which kills a process that has it
/// mapped.
pub fn flip(path: &Path, position: u64, mask: u8) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ mask], position).unwrap();
}
