//! A deleted topic: the log records the deletion, so master, replica, replay and rebuild agree about its queues.

use std::path::Path;
use std::time::Duration;

use crate::support::*;
use metaq_store::{Store, StoreError, StoreSettings};

const WAIT: Duration = Duration::from_secs(60);

fn replicated(directory: &Path) -> StoreSettings {
    StoreSettings { replicated: true, ..synced(directory) }
}

fn send_some(store: &Store, topic: &str, count: usize) {
    for number in 0..count {
        for queue_id in 0..3 {
            send(store, topic, queue_id, format!("{topic} {number}").as_bytes());
        }
    }
}

/// Copies what the replica lacks up to `end_offset`, without confirming it.
fn copy(source: &Store, replica: &Store, end_offset: i64) {
    while replica.end_offset() < end_offset {
        let at = replica.end_offset();
        let bytes = source.raw_bytes(at, 1 << 20).unwrap();
        let wanted = bytes.len().min((end_offset - at) as usize);
        replica.append_raw(at, &bytes[..wanted]).unwrap();
        replica.dispatch();
    }
    assert!(replica.wait_flushed(end_offset, WAIT));
}

/// Topic, queue, both ends, and the bodies.
type QueueContent = (String, i32, i64, i64, Vec<Vec<u8>>);

/// Everything that shows of the queues of these topics.
fn queues(store: &Store, topics: &[&str]) -> Vec<QueueContent> {
    let mut found = Vec::new();
    for topic in topics {
        for queue_id in store.queue_ids(topic) {
            let (min, max) = (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id));
            found.push(((*topic).to_owned(), queue_id, min, max, bodies(store, topic, queue_id)));
        }
    }
    found
}

const TOPICS: [&str; 4] = ["kept", "gone", "again", "twice"];

/// A history with every kind of deletion.
fn live(store: &Store) {
    for topic in TOPICS {
        send_some(store, topic, 20);
    }
    store.delete_topic("gone").unwrap();
    store.delete_topic("again").unwrap();
    send_some(store, "again", 5);
    for _ in 0..2 {
        store.delete_topic("twice").unwrap();
        send(store, "twice", 1, b"one");
    }
    send_some(store, "kept", 5);
}

fn check_history(store: &Store) {
    assert_eq!(store.queue_ids("gone"), [0; 0]);
    assert_eq!(store.queue_ids("again"), [0, 1, 2]);
    assert_eq!((store.min_offset("again", 2), store.max_offset("again", 2)), (0, 5));
    assert_eq!(store.queue_ids("twice"), [1]);
    assert_eq!(bodies(store, "twice", 1), [b"one"]);
    assert_eq!(store.max_offset("kept", 0), 25);
    assert!(!store.topics().unwrap().contains("gone"));
    assert_eq!(store.take_reports(), [""; 0]);
}

#[test]
fn a_replica_has_the_same_queues_as_its_master_however_far_it_confirmed_between() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&synced(&directory.path().join("a")));
    live(&source);
    check_history(&source);
    let wanted = queues(&source, &TOPICS);
    let end = source.end_offset();
    let mut ends = Vec::new();
    source.each_record_from(0, |record| ends.push(record.physical_offset + record.size as i64));
    // Records are shown at once, some later, or all together at the end.
    for (name, step) in [("one", 1), ("some", 17), ("all", ends.len())] {
        let settings = replicated(&directory.path().join(name));
        let replica = open(&settings);
        for end_offset in ends.iter().step_by(step).chain(ends.last()) {
            copy(&source, &replica, *end_offset);
            replica.confirm_replicated(*end_offset);
        }
        assert_eq!(queues(&replica, &TOPICS), wanted, "{name}");
        check_history(&replica);
        replica.close().unwrap();
        drop(replica);
        let replica = open(&settings);
        assert_eq!(queues(&replica, &TOPICS), wanted, "{name}, after a stop");
        // A replica that becomes master goes on as its master would have done.
        replica.confirm_replicated(i64::MAX - 1);
        for (topic, queue_offset) in [("gone", 0), ("again", 5), ("twice", 0), ("kept", 25)] {
            assert_eq!(send(&replica, topic, 0, b"next").queue_offset, queue_offset, "{topic}");
        }
        assert!(replica.end_offset() > end);
    }
}

#[test]
fn a_replica_that_is_killed_at_any_time_ends_up_with_the_same_queues() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(&synced(&directory.path().join("a")));
    live(&source);
    let wanted = queues(&source, &TOPICS);
    let mut ends = Vec::new();
    source.each_record_from(0, |record| ends.push(record.physical_offset + record.size as i64));
    let mut run = directory.path().join("run 0");
    let mut confirmed = 0;
    for (round, end_offset) in ends.iter().step_by(23).chain(ends.last()).enumerate() {
        let replica = open(&replicated(&run));
        assert!(replica.confirmed_offset() <= confirmed);
        copy(&source, &replica, *end_offset);
        // The confirmed offset lags behind, and sometimes a checkpoint comes between.
        replica.confirm_replicated(confirmed);
        if round % 3 == 0 {
            replica.accept_flushed_mark().unwrap();
        }
        confirmed = *end_offset;
        let next = directory.path().join(format!("run {}", round + 1));
        copy_store(&run, &next);
        run = next;
    }
    let replica = open(&replicated(&run));
    assert_eq!(replica.end_offset(), source.end_offset());
    replica.confirm_replicated(replica.end_offset());
    assert_eq!(queues(&replica, &TOPICS), wanted);
    check_history(&replica);
}

#[test]
fn a_deleted_topic_stays_deleted_when_all_queues_are_rebuilt() {
    for make in [small as fn(&Path) -> StoreSettings, synced] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&make(directory.path()));
        live(&store);
        let wanted = queues(&store, &TOPICS);
        store.close().unwrap();
        drop(store);
        std::fs::remove_dir_all(directory.path().join("consumequeue")).unwrap();
        let store = open(&make(directory.path()));
        store.take_reports();
        assert_eq!(queues(&store, &TOPICS), wanted);
        check_history(&store);
        assert_eq!(send(&store, "gone", 0, b"new").queue_offset, 0);
    }
}

#[test]
fn a_kill_after_a_deletion_rebuilds_only_the_tail() {
    let directory = tempfile::tempdir().unwrap();
    let settings =
        StoreSettings { queue_flush_interval_ms: 600_000, ..synced(&directory.path().join("run")) };
    let store = open(&settings);
    send_some(&store, "kept", 20);
    send_some(&store, "gone", 20);
    let before = store.end_offset();
    store.delete_topic("gone").unwrap();
    send_some(&store, "gone", 2);
    let killed = directory.path().join("killed");
    copy_store(&settings.directory, &killed);
    let killed = open(&synced(&killed));
    assert_eq!(figure(&killed, "recovered_from_offset"), before);
    assert_eq!((killed.max_offset("gone", 0), killed.max_offset("kept", 0)), (2, 20));
}

#[test]
fn a_topic_without_queues_needs_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&synced(directory.path()));
    send(&store, "kept", 0, b"x");
    let end = store.end_offset();
    store.delete_topic("never used").unwrap();
    assert_eq!(store.end_offset(), end);
}

#[test]
fn nobody_else_can_write_a_deletion() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&synced(directory.path()));
    send(&store, "kept", 0, b"x");
    let mut forged = record("METAQ_SYS_TOPIC_DELETED", 0, b"kept", "");
    forged.system_flag = 12;
    assert!(matches!(store.append(&forged), Err(StoreError::BadTopic(_))));
    store.fence("not the master");
    assert!(matches!(store.delete_topic("kept"), Err(StoreError::Fenced { .. })));
    assert_eq!(bodies(&store, "kept", 0), [b"x"]);
}
