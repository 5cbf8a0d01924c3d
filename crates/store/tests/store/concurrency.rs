//! Many threads at once: dispatch misses nothing, group commit shares its syncs, and the order is kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metaq_store::faulty_disk::FaultyDisk;
use metaq_store::{Clock, Filter, Store, StoreEvents, StoreSettings};
use metaq_wire::Record;

use crate::support::*;

const THREADS: usize = 8;
const EACH: usize = 2_000;

#[derive(Default)]
struct Arrivals {
    /// For each queue: its end by the last report, and the number of reported entries.
    queues: Mutex<HashMap<i32, (i64, usize)>>,
    disorder: AtomicBool,
}

impl StoreEvents for Arrivals {
    fn arrived(&self, _: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) {
        let mut queues = self.queues.lock().unwrap();
        let (end, count) = queues.entry(queue_id).or_default();
        *count += tag_codes.len();
        if max_offset <= *end || *count as i64 != max_offset {
            self.disorder.store(true, Ordering::Relaxed);
        }
        *end = max_offset;
    }
    fn confirmed(&self, _: i64, _: bool) {}
}

#[test]
fn dispatch_leaves_no_record_behind() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { commit_log_file_bytes: 256 * KIB, ..small(directory.path()) };
    let store = open(&settings);
    let arrivals = Arc::new(Arrivals::default());
    store.set_events(arrivals.clone());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for number in 0..EACH {
                    let body = format!("{thread} {number}");
                    if number % 5 == 0 {
                        let records = vec![record("t", (thread % 3) as i32, body.as_bytes(), ""); 3];
                        store.append_batch(&records).unwrap();
                    } else {
                        store.append(&record("t", (thread % 3) as i32, body.as_bytes(), "")).unwrap();
                    }
                    store.dispatch();
                }
            });
        }
    });
    // Every thread has returned from its last dispatch, so everything must be dispatched without another call.
    assert_eq!(figure(&store, "dispatched_offset"), figure(&store, "commit_log_max_offset"));
    assert!(!arrivals.disorder.load(Ordering::Relaxed));
    let mut total = 0;
    for queue_id in 0..3 {
        let read = read_all(&store, "t", queue_id);
        assert!(read.iter().enumerate().all(|(place, (at, _))| place as i64 == *at));
        assert_eq!(arrivals.queues.lock().unwrap()[&queue_id], (read.len() as i64, read.len()));
        // Each thread's records in its own order.
        let mut last: HashMap<usize, usize> = HashMap::new();
        for (_, body) in &read {
            let text = String::from_utf8(body.clone()).unwrap();
            let (thread, number) = text.split_once(' ').unwrap();
            let number: usize = number.parse().unwrap();
            let before = last.insert(thread.parse().unwrap(), number).unwrap_or(0);
            assert!(before <= number);
        }
        total += read.len();
    }
    assert_eq!(total, THREADS * (EACH + 2 * EACH / 5));
    store.close().unwrap();
}

#[test]
fn waiting_senders_share_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = StoreSettings { commit_log_file_bytes: 1 << 20, ..synced(directory.path()) };
    let store = Store::open(settings, Clock::system(), disk.clone()).unwrap();
    let safe = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let (store, safe) = (&store, &safe);
            scope.spawn(move || {
                for _ in 0..20 {
                    let appended = send(store, "t", thread, b"x");
                    assert!(store.confirmed_offset() >= appended.end_offset);
                    safe.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (safe, syncs) = (safe.load(Ordering::Relaxed), figure(&store, "syncs") as u64);
    assert_eq!(safe, 640);
    assert!(syncs * 2 < safe, "{syncs} syncs for {safe} records");
}

#[test]
fn readers_see_whole_records_while_writers_and_retention_run() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_000_000);
    let disk = Arc::new(FaultyDisk::new());
    let settings = small(directory.path());
    let store = Store::open(settings, clock.clone(), disk).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, done, clock) = (&store, &done, &clock);
        scope.spawn(move || {
            for number in 0..6_000 {
                send(store, "t", number % 2, format!("{number:0>200}").as_bytes());
                if number % 100 == 0 {
                    clock.advance_ms(20 * 3_600_000);
                }
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                store.clean(true).unwrap();
            }
        });
        for queue_id in 0..2 {
            scope.spawn(move || {
                let mut at = 0;
                while !done.load(Ordering::Acquire) || at < store.max_offset("t", queue_id) {
                    let got = store.get("t", queue_id, at, 16, 1 << 16, &Filter::All);
                    for slice in &got.slices {
                        let mut rest = &slice[..];
                        while !rest.is_empty() {
                            let record = Record::decode(rest).unwrap();
                            assert!(record.crc_matches());
                            assert!(record.queue_offset >= at);
                            rest = &rest[record.size..];
                        }
                    }
                    assert!(got.next_offset >= at || got.max_offset == 0);
                    at = got.next_offset.max(at);
                }
            });
        }
    });
    assert_eq!(figure(&store, "damaged_records"), 0, "{:?}", store.take_reports());
    assert_eq!(store.max_offset("t", 0), 3_000);
}

#[test]
fn topics_are_deleted_under_load_without_confusion() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..1_500 {
                    send(store, "t", 0, b"x");
                }
            });
        }
        for _ in 0..20 {
            store.delete_topic("t").unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let read = read_all(&store, "t", 0);
    assert!(read.iter().enumerate().all(|(place, (at, _))| place as i64 == *at));
    assert_eq!(figure(&store, "damaged_records"), 0, "{:?}", store.take_reports());
    let count = read.len();
    drop(store);
    assert_eq!(read_all(&open(&settings), "t", 0).len(), count);
}

#[test]
fn many_queues_need_few_files_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { commit_log_file_bytes: 1 << 20, ..small(directory.path()) };
    let store = open(&settings);
    for round in 0..3 {
        for topic in 0..200 {
            for queue_id in 0..4 {
                send(&store, &format!("topic-{topic}"), queue_id, format!("{round}").as_bytes());
            }
        }
    }
    store.close().unwrap();
    let open_files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open_files < 600, "{open_files} files are open");
    drop(store);
    let store = open(&settings);
    assert_eq!(figure(&store, "queues_loaded"), 0, "nothing is loaded before it is touched");
    for topic in 0..200 {
        assert_eq!(bodies(&store, &format!("topic-{topic}"), 3).len(), 3);
    }
    assert_eq!(figure(&store, "queues_loaded"), 200);
}
