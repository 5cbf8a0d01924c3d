//! A store whose log is kept elsewhere too: after any stop it shows only what was known to be confirmed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use metaq_store::faulty_disk::FaultyDisk;
use metaq_store::{Clock, Store, StoreSettings};

const WAIT: Duration = Duration::from_secs(60);
type Make = fn(&Path) -> StoreSettings;
const BOTH_FLUSHES: [Make; 2] = [small, synced];

fn replicated(make: Make, directory: &Path) -> StoreSettings {
    StoreSettings { replicated: true, ..make(directory) }
}

fn append(store: &Store, topic: &str, body: &str) -> i64 {
    let appended = store.append(&record(topic, 0, body.as_bytes(), "A\u{1}b\u{2}")).unwrap();
    store.dispatch();
    appended.end_offset
}

/// Appends `confirmed` records that replicas hold, and `more` that they do not. Returns where the first part ends.
fn fill(store: &Store, confirmed: usize, more: usize) -> i64 {
    for number in 0..confirmed {
        append(store, "t", &format!("{number}"));
    }
    let end = store.end_offset();
    store.confirm_replicated(end);
    assert!(store.wait_confirmed(end, WAIT));
    for number in confirmed..confirmed + more {
        append(store, "t", &format!("{number}"));
    }
    assert!(store.wait_flushed(store.end_offset(), WAIT));
    end
}

fn numbers(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| number.to_string().into_bytes()).collect()
}

/// Checks that only the first records show, that a new one follows the whole log, and that all show when confirmed.
fn check(store: &Store, shown: usize, total: usize) {
    assert_eq!(bodies(store, "t", 0), numbers(shown), "no more than was known to be confirmed");
    assert_eq!(store.max_offset("t", 0), shown as i64);
    let mut in_log_order = 0;
    store.each_record_from(0, |_| in_log_order += 1);
    assert_eq!(in_log_order, shown);
    let appended = store.append(&record("t", 0, total.to_string().as_bytes(), "")).unwrap();
    assert_eq!(appended.queue_offset, total as i64, "queue offsets continue from the whole log");
    store.dispatch();
    assert!(store.wait_flushed(appended.end_offset, WAIT));
    assert_eq!(store.max_offset("t", 0), shown as i64);
    store.confirm_replicated(appended.physical_offset);
    assert_eq!(bodies(store, "t", 0), numbers(total));
    store.confirm_replicated(appended.end_offset);
    assert_eq!(bodies(store, "t", 0), numbers(total + 1));
    assert_eq!(store.confirmed_offset(), appended.end_offset);
    assert_eq!(store.take_reports(), [""; 0]);
}

#[test]
fn a_new_store_confirms_nothing_by_itself() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&replicated(make, directory.path()));
        assert_eq!(store.confirmed_offset(), 0);
        check(&store, 0, 0);
    }
}

#[test]
fn an_orderly_stop_keeps_the_unconfirmed_tail_hidden() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let settings = replicated(make, directory.path());
        let store = open(&settings);
        let confirmed = fill(&store, 30, 20);
        store.close().unwrap();
        assert_eq!(store.confirmed_offset(), confirmed, "closing confirms nothing");
        drop(store);
        // Twice, because the second stop finds a tail that the first start has recovered.
        open(&settings).close().unwrap();
        let store = open(&settings);
        assert_eq!(store.confirmed_offset(), confirmed);
        check(&store, 30, 50);
    }
}

#[test]
fn a_kill_keeps_the_unconfirmed_tail_hidden() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let settings = replicated(make, &directory.path().join("run"));
        let store = open(&settings);
        let confirmed = fill(&store, 30, 20);
        eventually("the checkpoint", || figure(&store, "dispatched_offset") == confirmed);
        eventually("a kill after the checkpoint", || {
            let copy = tempfile::tempdir_in(directory.path()).unwrap();
            copy_store(&settings.directory, copy.path());
            let killed = open(&replicated(make, copy.path()));
            assert!(killed.confirmed_offset() <= confirmed);
            assert_eq!(killed.end_offset(), store.end_offset());
            if killed.confirmed_offset() < confirmed {
                return false;
            }
            check(&killed, 30, 50);
            true
        });
    }
}

#[test]
fn a_kill_before_a_checkpoint_hides_what_is_not_known_to_be_confirmed() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let settings = StoreSettings {
            queue_flush_interval_ms: 600_000,
            ..replicated(make, &directory.path().join("run"))
        };
        let store = open(&settings);
        fill(&store, 30, 20);
        let copy = directory.path().join("killed");
        copy_store(&settings.directory, &copy);
        check(&open(&replicated(make, &copy)), 0, 50);
    }
}

#[test]
fn a_power_loss_keeps_the_unconfirmed_tail_hidden() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let (run, survivor) = (directory.path().join("run"), directory.path().join("survivor"));
        let disk = Arc::new(FaultyDisk::new());
        disk.keep_synced(&run, &survivor);
        let store = Store::open(replicated(make, &run), Clock::system(), disk.clone()).unwrap();
        let confirmed = fill(&store, 30, 20);
        store.close().unwrap();
        drop(store);
        // The second run is cut off while it holds an unconfirmed tail.
        let store = Store::open(replicated(make, &run), Clock::system(), disk.clone()).unwrap();
        append(&store, "t", "50");
        assert!(store.wait_flushed(store.end_offset(), WAIT));
        disk.cut_power();
        drop(store);
        let restarted = Arc::new(FaultyDisk::new());
        restarted.set_boot_id([7; 16]);
        let store = Store::open(replicated(make, &survivor), Clock::system(), restarted).unwrap();
        assert_eq!(store.confirmed_offset(), confirmed);
        check(&store, 30, 51);
    }
}

#[test]
fn a_store_of_a_lone_broker_shows_all_that_it_had_confirmed() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&make(directory.path()));
        for number in 0..40 {
            send(&store, "t", 0, number.to_string().as_bytes());
        }
        store.close().unwrap();
        drop(store);
        check(&open(&replicated(make, directory.path())), 40, 40);
    }
}

#[test]
fn a_lone_broker_shows_the_tail_that_replicas_did_not_hold() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&replicated(synced, directory.path()));
    fill(&store, 30, 20);
    store.close().unwrap();
    drop(store);
    let store = open(&synced(directory.path()));
    assert_eq!(bodies(&store, "t", 0), numbers(50));
    assert_eq!(send(&store, "t", 0, b"50").queue_offset, 50);
}

#[test]
fn without_a_sound_checkpoint_nothing_shows_until_it_is_confirmed() {
    for make in BOTH_FLUSHES {
        let directory = tempfile::tempdir().unwrap();
        let settings = replicated(make, directory.path());
        let store = open(&settings);
        fill(&store, 30, 20);
        store.close().unwrap();
        drop(store);
        flip(&directory.path().join("checkpoint"), 60, 1);
        let store = open(&settings);
        assert_eq!(store.confirmed_offset(), 0);
        check(&store, 0, 50);
    }
}

#[test]
fn without_queue_files_they_are_rebuilt_up_to_what_was_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = replicated(synced, directory.path());
    let store = open(&settings);
    let confirmed = fill(&store, 30, 20);
    store.close().unwrap();
    drop(store);
    std::fs::remove_dir_all(directory.path().join("consumequeue")).unwrap();
    let store = open(&settings);
    assert_eq!(store.confirmed_offset(), confirmed);
    let reports = store.take_reports();
    assert!(reports.iter().all(|report| report.contains("queues are rebuilt")), "{reports:?}");
    check(&store, 30, 50);
}

#[test]
fn a_topic_that_was_created_again_in_the_tail_continues_from_its_new_start() {
    let directory = tempfile::tempdir().unwrap();
    let (master, copy) = (directory.path().join("a"), directory.path().join("b"));
    let source = open(&synced(&master));
    for number in 0..5 {
        send(&source, "t", 0, number.to_string().as_bytes());
    }
    source.delete_topic("t").unwrap();
    send(&source, "t", 0, b"0");
    send(&source, "t", 0, b"1");
    let store = open(&replicated(synced, &copy));
    let bytes = source.raw_bytes(0, 1 << 20).unwrap();
    store.append_raw(0, &bytes).unwrap();
    assert!(store.wait_flushed(store.end_offset(), WAIT));
    assert_eq!(store.append(&record("t", 0, b"2", "")).unwrap().queue_offset, 2);
    store.close().unwrap();
    drop(store);
    check(&open(&replicated(synced, &copy)), 0, 3);
}
