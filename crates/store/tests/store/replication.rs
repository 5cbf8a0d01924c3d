//! The gate that replicas hold, and the raw bytes that they are given.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{Clock, Store, StoreError, StoreEvents, StoreSettings, boot_time_ms};

use crate::support::*;

#[derive(Default)]
struct Seen {
    confirmed: AtomicI64,
    arrived: AtomicI64,
}

impl StoreEvents for Seen {
    fn arrived(&self, _topic: &str, _queue_id: i32, max_offset: i64, _tag_codes: &[i64]) {
        self.arrived.store(max_offset, Ordering::SeqCst);
    }

    fn confirmed(&self, physical_offset: i64, failed: bool) {
        assert!(!failed);
        self.confirmed.store(physical_offset, Ordering::SeqCst);
    }
}

fn append(store: &Store, body: &[u8]) -> i64 {
    let end_offset = store.append(&record("t", 0, body, "")).unwrap().end_offset;
    store.dispatch();
    end_offset
}

#[test]
fn nothing_is_confirmed_or_shown_before_the_replicas_hold_it() {
    for make in [small as fn(&std::path::Path) -> StoreSettings, synced] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&make(directory.path()));
        let seen = Arc::new(Seen::default());
        store.set_events(Arc::clone(&seen) as Arc<dyn StoreEvents>);
        send(&store, "t", 0, b"alone");
        let alone = store.confirmed_offset();
        store.gate_confirmation(store.end_offset());

        let first = append(&store, b"first");
        let second = append(&store, b"second");
        assert!(
            store.wait_flushed(second, Duration::from_secs(60)),
            "the own disk does not wait for replicas"
        );
        assert!(!store.wait_confirmed(first, Duration::from_millis(20)));
        assert_eq!((store.confirmed_offset(), store.max_offset("t", 0)), (alone, 1));
        assert!(store.record_at(alone).is_none());

        store.confirm_replicated(first);
        assert_eq!((store.confirmed_offset(), store.max_offset("t", 0)), (first, 2));
        assert_eq!(seen.confirmed.load(Ordering::SeqCst), first);
        assert_eq!(seen.arrived.load(Ordering::SeqCst), 2);
        store.confirm_replicated(alone);
        assert_eq!(store.confirmed_offset(), first, "the mark never goes back");

        store.ungate_confirmation();
        assert!(store.wait_confirmed(second, Duration::from_secs(60)));
        send(&store, "t", 0, b"alone again");
        assert_eq!(store.max_offset("t", 0), 4);
    }
}

#[test]
fn a_replica_that_is_ahead_does_not_confirm_what_this_disk_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&synced(directory.path()));
    store.gate_confirmation(0);
    store.confirm_replicated(i64::MAX - 1);
    let end = append(&store, b"x");
    assert!(store.wait_confirmed(end, Duration::from_secs(60)));
    assert!(store.flushed_offset() >= end);
}

#[test]
fn a_topic_is_deleted_only_when_replicas_have_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    store.gate_confirmation(0);
    append(&store, b"x");
    let records_end = store.end_offset();
    assert!(store.delete_topic("t").unwrap_err().to_string().contains("replicas"));
    assert_eq!(store.end_offset(), records_end);
    // Replicas hold the records, but not the deletion.
    store.confirm_replicated(records_end);
    assert!(store.delete_topic("t").unwrap_err().to_string().contains("replicas"));
    assert_eq!(store.max_offset("t", 0), 1, "it is not deleted yet");
    assert_eq!(append(&store, b"new").min(records_end), records_end);
    store.confirm_replicated(store.end_offset());
    assert_eq!((store.max_offset("t", 0), bodies(&store, "t", 0)), (1, vec![b"new".to_vec()]));
    store.confirm_replicated(i64::MAX - 1);
    store.delete_topic("t").unwrap();
    assert_eq!(store.max_offset("t", 0), 0);
}

#[test]
fn a_lease_lets_records_be_confirmed_until_it_is_over() {
    for make in [small as fn(&std::path::Path) -> StoreSettings, synced] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&make(directory.path()));
        store.acknowledge_until(Some(boot_time_ms() + 3_600_000));
        let first = append(&store, b"in time");
        assert!(store.wait_confirmed(first, Duration::from_secs(60)));
        assert_eq!(store.max_offset("t", 0), 1);

        store.acknowledge_until(Some(boot_time_ms()));
        match store.append(&record("t", 0, b"too late", "")) {
            Err(StoreError::Fenced { reason }) => assert!(reason.contains("still the master"), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(store.confirmed_offset(), first, "what is confirmed stays so");
        assert!(!store.is_confirmed(first), "but nobody hears of it any more");
        store.append_raw(first, &raw_record(first)).unwrap();

        store.acknowledge_until(None);
        store.dispatch();
        assert!(store.wait_confirmed(store.end_offset(), Duration::from_secs(60)));
        store.ungate_confirmation();
        send(&store, "t", 0, b"alone");
        assert_eq!(store.max_offset("t", 0), 3);
    }
}

/// A record for that place, from a store of its own.
fn raw_record(physical_offset: i64) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    append(&store, b"in time");
    append(&store, b"a copy");
    store.raw_bytes(physical_offset, 1).unwrap().to_vec()
}

#[test]
fn a_lease_that_ends_during_a_sync_confirms_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store = Store::open(synced(directory.path()), Clock::system(), disk.clone()).unwrap();
    store.acknowledge_until(Some(boot_time_ms() + 3_600_000));
    disk.stall(Call::SyncMapped, "commitlog");
    let end = append(&store, b"x");
    store.acknowledge_until(Some(boot_time_ms()));
    disk.heal();
    assert!(store.wait_flushed(end, Duration::from_secs(60)));
    assert!(!store.wait_confirmed(end, Duration::from_millis(20)));
    assert_eq!((store.confirmed_offset(), store.max_offset("t", 0)), (0, 0));
    store.close().unwrap();
    assert_eq!(store.confirmed_offset(), 0, "closing confirms nothing");
}

#[test]
fn a_lease_ends_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    store.acknowledge_until(Some(boot_time_ms() + 200));
    let end = append(&store, b"x");
    eventually("the end", || store.append(&record("t", 0, b"y", "")).is_err());
    assert!(!store.is_confirmed(end));
    store.acknowledge_until(Some(boot_time_ms() + 3_600_000));
    assert!(store.wait_confirmed(store.end_offset(), Duration::from_secs(60)), "a renewed lease goes on");
}

#[test]
fn an_open_gate_confirms_appends_at_once_with_asynchronous_flush() {
    let directory = tempfile::tempdir().unwrap();
    let never = StoreSettings {
        flush_interval_ms: 600_000,
        queue_flush_interval_ms: 600_000,
        ..small(directory.path())
    };
    let store = open(&never);
    store.gate_confirmation(0);
    store.confirm_replicated(i64::MAX - 1);
    let end = append(&store, b"x");
    assert!(store.is_confirmed(end), "no sync has to come first");
}

#[test]
fn raw_bytes_are_whole_records_up_to_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let ends: Vec<i64> = (0..100).map(|number| append(&store, &vec![b'x'; number * 13 % 700])).collect();
    for bytes_max in [1, 500, 3_000, 1 << 20] {
        let mut at = 0;
        while let Some(bytes) = store.raw_bytes(at, bytes_max) {
            at += bytes.len() as i64;
            let is_file_end = at % (16 * KIB as i64) == 0;
            assert!(ends.contains(&at) || is_file_end, "{at} is between two records");
        }
        assert_eq!(at, store.end_offset());
    }
    assert!(store.raw_bytes(-1, 100).is_none());
    assert!(store.raw_bytes(store.end_offset() + 1, 100).is_none());
}

#[test]
fn a_follower_wakes_when_something_is_appended() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let mut known = 0;
            let mut wakes = 0;
            let deadline = Instant::now() + Duration::from_secs(60);
            while known < 100 * 93 && Instant::now() < deadline {
                store.follow(Duration::from_secs(30), || store.end_offset() > known);
                known = store.end_offset();
                wakes += 1;
            }
            (known, wakes)
        });
        for _ in 0..100 {
            append(&store, b"xx");
            std::thread::yield_now();
        }
        let started = Instant::now();
        let (known, wakes) = follower.join().unwrap();
        assert!(known >= 100 * 93 && wakes >= 1);
        assert!(started.elapsed() < Duration::from_secs(30), "no wake-up was lost");
    });
}
