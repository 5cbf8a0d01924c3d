//! With synchronous flush, no way of reading shows a record before it is on the disk.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{Appended, Clock, Filter, GetStatus, Store, StoreEvents, StoreSettings};
use metaq_wire::Record;

use crate::support::*;

const PROPERTIES: &str = "KEYS\u{1}key\u{2}TAGS\u{1}tag\u{2}";
const WAIT: Duration = Duration::from_secs(60);

fn open_on(disk: &Arc<FaultyDisk>, settings: &StoreSettings) -> Arc<Store> {
    Store::open(settings.clone(), Clock::system(), disk.clone()).unwrap()
}

/// Appends a record without waiting for its confirmation.
fn append(store: &Store, body: &[u8]) -> Appended {
    let appended = store.append(&record("t", 0, body, PROPERTIES)).unwrap();
    store.dispatch();
    appended
}

/// The result of each way of reading the one queue.
#[derive(Debug, PartialEq, Eq)]
struct Views {
    pulled: usize,
    max_offset: i64,
    queue_entries: usize,
    by_physical_offset: usize,
    in_log_order: usize,
    by_key: usize,
    measured_end: i64,
    found_by_time: i64,
}

impl Views {
    fn of(store: &Store, sent: &[Appended]) -> Self {
        let mut in_log_order = 0;
        store.each_record_from(0, |_| in_log_order += 1);
        Self {
            pulled: bodies(store, "t", 0).len(),
            max_offset: store.max_offset("t", 0),
            queue_entries: store.queue_entries("t", 0, 0, 100).len(),
            by_physical_offset: sent
                .iter()
                .filter(|sent| store.record_at(sent.physical_offset).is_some())
                .count(),
            in_log_order,
            by_key: store.query("t", "key", 100, 0, i64::MAX).records.len(),
            measured_end: store.measure("t", 0, 0, 100, i64::MAX).end_offset,
            found_by_time: store.search_offset("t", 0, i64::MAX, false),
        }
    }

    fn all(count: usize) -> Self {
        Self {
            pulled: count,
            max_offset: count as i64,
            queue_entries: count,
            by_physical_offset: count,
            in_log_order: count,
            by_key: count,
            measured_end: count as i64,
            found_by_time: count as i64,
        }
    }
}

#[derive(Default)]
struct Seen {
    arrivals: AtomicUsize,
    confirmed: AtomicI64,
    failed: AtomicBool,
    /// The store to check for readers when answers are released.
    store: Mutex<Option<Arc<Store>>>,
    is_late: AtomicBool,
}

impl StoreEvents for Seen {
    fn arrived(&self, _: &str, _: i32, _: i64, tag_codes: &[i64]) {
        self.arrivals.fetch_add(tag_codes.len(), Ordering::SeqCst);
    }
    fn confirmed(&self, physical_offset: i64, failed: bool) {
        self.failed.fetch_or(failed, Ordering::SeqCst);
        self.confirmed.store(physical_offset, Ordering::SeqCst);
        if let Some(store) = &*self.store.lock().unwrap() {
            let mut end = 0;
            store.each_record_from(0, |record| end = record.physical_offset + record.size as i64);
            let pulled = bodies(store, "t", 0).len();
            let is_late = end < physical_offset || pulled != self.arrivals.load(Ordering::SeqCst);
            self.is_late.fetch_or(is_late, Ordering::SeqCst);
        }
    }
}

#[test]
fn while_a_sync_hangs_nobody_sees_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store = open_on(&disk, &synced(directory.path()));
    let seen = Arc::new(Seen::default());
    store.set_events(seen.clone());
    let mut sent = vec![append(&store, b"first")];
    assert!(store.wait_confirmed(sent[0].end_offset, WAIT));
    *seen.store.lock().unwrap() = Some(store.clone());
    eventually("the index", || Views::of(&store, &sent) == Views::all(1));

    disk.stall(Call::SyncMapped, "commitlog");
    let syncs = disk.syncs();
    sent.extend((0..3).map(|_| append(&store, b"later")));
    eventually("the sync begins", || disk.syncs() > syncs);
    assert!(!store.wait_confirmed(sent[1].end_offset, Duration::from_millis(50)));
    assert_eq!(Views::of(&store, &sent), Views::all(1));
    assert_eq!(seen.arrivals.load(Ordering::SeqCst), 1, "no held pull wakes");
    assert_eq!(store.confirmed_offset(), sent[0].end_offset);
    assert!(!store.is_confirmed(sent[1].end_offset));
    assert!(store.appended_record_at(sent[1].physical_offset).is_some(), "the broker itself can read it");
    let got = store.get("t", 0, 1, 10, 1 << 20, &Filter::All);
    assert_eq!((got.status, got.max_offset), (GetStatus::AtEnd, 1));

    disk.heal();
    assert!(store.wait_confirmed(sent[3].end_offset, WAIT));
    assert_eq!(bodies(&store, "t", 0).len(), 4, "acknowledged records can be read");
    eventually("all of it", || Views::of(&store, &sent) == Views::all(4));
    assert_eq!(seen.arrivals.load(Ordering::SeqCst), 4);
    eventually("the event", || seen.confirmed.load(Ordering::SeqCst) == sent[3].end_offset);
    assert!(!seen.is_late.load(Ordering::SeqCst), "confirmed records could be read");
    *seen.store.lock().unwrap() = None;
}

#[test]
fn after_a_failed_sync_nobody_ever_sees_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = synced(directory.path());
    let store = open_on(&disk, &settings);
    let seen = Arc::new(Seen::default());
    store.set_events(seen.clone());
    let mut sent = vec![append(&store, b"good")];
    assert!(store.wait_confirmed(sent[0].end_offset, WAIT));
    eventually("the index", || Views::of(&store, &sent) == Views::all(1));

    disk.fail(Call::SyncMapped, "commitlog", ErrorKind::Other);
    sent.push(append(&store, b"bad"));
    assert!(!store.wait_confirmed(sent[1].end_offset, WAIT));
    // The disk works again, but the lost records stay lost.
    disk.heal();
    eventually("the event", || seen.failed.load(Ordering::SeqCst));
    store.dispatch();
    assert!(store.delete_topic("other").is_err());
    assert!(store.close().is_err());
    assert_eq!(Views::of(&store, &sent), Views::all(1));
    assert_eq!(seen.arrivals.load(Ordering::SeqCst), 1);
    drop(store);

    // A start reads the record from the page cache, and syncs it before anybody sees it.
    disk.fail(Call::SyncMapped, "commitlog", ErrorKind::Other);
    assert!(Store::open(settings.clone(), Clock::system(), disk.clone()).is_err());
    disk.heal();
    let store = open_on(&disk, &settings);
    assert_eq!(store.confirmed_offset(), sent[1].end_offset);
    eventually("all of it", || Views::of(&store, &sent) == Views::all(2));
}

#[test]
fn a_record_that_nobody_waits_for_becomes_visible_too() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&synced(directory.path()));
    append(&store, b"one-way");
    eventually("the record", || bodies(&store, "t", 0).len() == 1);
    // The thread that appended it ends before it dispatches it.
    store.append(&record("t", 0, b"left behind", "")).unwrap();
    eventually("the record that was left behind", || bodies(&store, "t", 0).len() == 2);
}

#[test]
fn a_recovered_tail_is_synced_before_it_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (run, survivor) = (directory.path().join("run"), directory.path().join("survivor"));
    let disk = Arc::new(FaultyDisk::new());
    let settings = synced(&run);
    let store = open_on(&disk, &settings);
    disk.stall(Call::SyncMapped, "commitlog");
    let appended = append(&store, b"only in the page cache");
    let copy = directory.path().join("killed");
    copy_store(&run, &copy);
    disk.heal();
    drop(store);

    let disk = Arc::new(FaultyDisk::new());
    disk.keep_synced(&copy, &survivor);
    let store = open_on(&disk, &synced(&copy));
    assert_eq!(store.confirmed_offset(), appended.end_offset);
    assert_eq!(bodies(&store, "t", 0), [b"only in the page cache"]);
    disk.cut_power();
    drop(store);
    assert_eq!(bodies(&open(&synced(&survivor)), "t", 0), [b"only in the page cache"]);
}

#[test]
fn a_deleted_topic_takes_what_was_not_confirmed_yet_along() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&synced(directory.path()));
    for _ in 0..20 {
        store.append(&record("t", 0, b"old", "")).unwrap();
    }
    store.delete_topic("t").unwrap();
    assert_eq!(send(&store, "t", 0, b"new").queue_offset, 0);
    assert_eq!(bodies(&store, "t", 0), [b"new"]);
}

#[test]
fn closing_confirms_what_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&synced(directory.path()));
    let appended = store.append(&record("t", 0, b"last", "")).unwrap();
    store.close().unwrap();
    assert_eq!(store.confirmed_offset(), appended.end_offset);
    assert_eq!(bodies(&store, "t", 0), [b"last"]);
}

/// Runs senders and all kinds of readers, and cuts the power during a sync, several times.
#[test]
fn a_power_cut_takes_nothing_that_anybody_saw() {
    for round in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        lose_power(&directory.path().join("run"), &directory.path().join("survivor"), round);
    }
}

fn lose_power(run: &Path, survivor: &Path, round: i64) {
    let disk = Arc::new(FaultyDisk::new());
    disk.keep_synced(run, survivor);
    let store = open_on(&disk, &synced(run));
    let is_over = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    let seen: Mutex<Vec<(i64, Vec<u8>)>> = Mutex::default();
    let note = |bytes: &[u8]| {
        let record = Record::decode(bytes).unwrap();
        let mut seen = seen.lock().unwrap();
        // A record that was read during the power loss may have been synced after it.
        if !is_over.load(Ordering::SeqCst) {
            seen.push((record.queue_offset, record.body.to_vec()));
        }
    };
    let by_pull = || {
        let newest = store.max_offset("t", 0) - 1;
        store
            .get("t", 0, newest.max(0), 8, 1 << 20, &Filter::All)
            .slices
            .iter()
            .for_each(|slice| note(slice));
    };
    let by_physical_offset = || {
        let mut newest = None;
        store.each_record_from(0, |record| newest = Some(record.physical_offset));
        newest.and_then(|offset| store.record_at(offset)).iter().for_each(|record| note(record));
    };
    let by_key = || store.query("t", "key", 4, 0, i64::MAX).records.iter().for_each(|record| note(record));
    let readers: [&(dyn Fn() + Sync); 3] = [&by_pull, &by_physical_offset, &by_key];
    std::thread::scope(|scope| {
        for sender in 0..3 {
            let (store, is_over) = (&store, &is_over);
            scope.spawn(move || {
                let mut number = 0;
                while !is_over.load(Ordering::SeqCst) {
                    append(store, format!("{sender} {number}").as_bytes());
                    number += 1;
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
        for reader in readers {
            let (is_over, looks) = (&is_over, &looks);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    reader();
                    looks.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        eventually("enough is read", || store.max_offset("t", 0) > 50 * (round + 1));
        // The power is cut while a sync runs and more records are appended.
        disk.stall(Call::SyncMapped, "commitlog");
        let (appended, looked) = (store.end_offset(), looks.load(Ordering::SeqCst));
        eventually("more appends and looks", || {
            store.end_offset() > appended + 10_000 && looks.load(Ordering::SeqCst) > looked + 100
        });
        {
            let _nobody_notes = seen.lock().unwrap();
            is_over.store(true, Ordering::SeqCst);
            disk.cut_power();
        }
        disk.heal();
    });
    drop(store);

    let restarted = Arc::new(FaultyDisk::new());
    restarted.set_boot_id([7; 16]);
    let after: HashMap<i64, Vec<u8>> =
        read_all(&open_on(&restarted, &synced(survivor)), "t", 0).into_iter().collect();
    for (queue_offset, body) in seen.into_inner().unwrap() {
        let kept = after.get(&queue_offset).map(|body| String::from_utf8_lossy(body));
        assert_eq!(kept, Some(String::from_utf8_lossy(&body)), "queue offset {queue_offset}");
    }
}
