//! How a store was found, and how its disk does: the facts by which a node of a group judges itself.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{Clock, Disk, Store, StoreError, StoreSettings, Truncation, truncate};

fn replicated(directory: &Path) -> StoreSettings {
    StoreSettings { replicated: true, ..synced(directory) }
}

/// Opens the store on a disk that works.
fn open_on(disk: &Arc<FaultyDisk>, settings: &StoreSettings) -> Arc<Store> {
    Store::open(settings.clone(), Clock::system(), disk.clone()).unwrap()
}

fn fill(store: &Store, count: usize) -> i64 {
    for _ in 0..count {
        store.append(&record("t", 0, b"body", "")).unwrap();
    }
    store.sync().unwrap();
    store.confirm_replicated(store.end_offset());
    store.end_offset()
}

/// Takes everything from `end_offset` on out of the log's file, as a disk does that forgot what it had acknowledged.
fn lose_tail(settings: &StoreSettings, end_offset: i64) {
    let (path, position) = locate(settings, end_offset);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; (settings.commit_log_file_bytes - position) as usize], position).unwrap();
}

#[test]
fn a_store_tells_how_it_was_left() {
    let directory = tempfile::tempdir().unwrap();
    let settings = replicated(directory.path());
    let disk = Arc::new(FaultyDisk::new());
    disk.set_boot_id([0xab; 16]);
    let store = open_on(&disk, &settings);
    let opened = store.opened();
    assert_eq!((opened.log_end, opened.flushed_mark, opened.stopped_cleanly), (0, 0, true));
    assert_eq!(opened.boot_id, "ab".repeat(16));
    let end = fill(&store, 20);
    store.close().unwrap();
    drop(store);
    let store = open_on(&disk, &settings);
    let opened = store.opened();
    assert_eq!((opened.log_end, opened.flushed_mark, opened.stopped_cleanly), (end, end, true));
    drop(store);
    let opened = open_on(&disk, &settings).opened();
    assert_eq!((opened.log_end, opened.flushed_mark, opened.stopped_cleanly), (end, end, false));
}

#[test]
fn a_loss_shows_at_every_start_until_it_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let settings = replicated(directory.path());
    let store = open(&settings);
    let kept = fill(&store, 20);
    let lost = fill(&store, 20);
    store.close().unwrap();
    drop(store);
    lose_tail(&settings, kept);
    for is_killed in [true, true, false, true, false] {
        let store = open(&settings);
        let opened = store.opened();
        assert_eq!((opened.log_end, opened.flushed_mark), (kept, lost));
        assert_eq!(store.confirmed_offset(), 0, "the checkpoint does not fit the log any more");
        if !is_killed {
            store.close().unwrap();
        }
    }
    let store = open(&settings);
    store.accept_flushed_mark().unwrap();
    drop(store);
    let store = open(&settings);
    assert_eq!((store.opened().log_end, store.opened().flushed_mark), (kept, kept));
    assert!(matches!(store.close().and_then(|()| store.accept_flushed_mark()), Err(StoreError::Closed)));
}

#[test]
fn the_mark_follows_a_tail_that_nobody_has_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = replicated(&directory.path().join("run"));
    let store = open(&settings);
    store.append(&record("t", 0, b"unconfirmed", "")).unwrap();
    store.sync().unwrap();
    let end = store.end_offset();
    eventually("the checkpoint", || {
        let copy = tempfile::tempdir_in(directory.path()).unwrap();
        copy_store(&settings.directory, copy.path());
        open(&replicated(copy.path())).opened().flushed_mark == end
    });
}

#[test]
fn a_tail_that_was_cut_off_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = replicated(directory.path());
    let store = open(&settings);
    let kept = fill(&store, 20);
    fill(&store, 20);
    store.close().unwrap();
    drop(store);
    let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new());
    truncate(&settings, &disk, Truncation::CutAt(kept)).unwrap();
    let opened = open(&settings).opened();
    assert_eq!((opened.log_end, opened.flushed_mark), (kept, kept));
}

#[test]
fn a_sync_on_request_covers_the_whole_log() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings {
        flush_interval_ms: 600_000,
        queue_flush_interval_ms: 600_000,
        ..small(directory.path())
    };
    let store = open(&settings);
    let appended = send(&store, "t", 0, b"x");
    assert!(store.flushed_offset() < appended.end_offset);
    store.sync().unwrap();
    assert_eq!(store.flushed_offset(), appended.end_offset);
}

#[test]
fn a_sync_that_hangs_or_fails_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store = open_on(&disk, &synced(directory.path()));
    assert_eq!((store.sync_age_ms(), store.sync_failed()), (0, false));
    disk.stall(Call::SyncMapped, "commitlog");
    store.append(&record("t", 0, b"x", "")).unwrap();
    store.dispatch();
    eventually("a sync that takes long", || store.sync_age_ms() >= 20);
    disk.heal();
    assert!(store.wait_flushed(store.end_offset(), Duration::from_secs(60)));
    eventually("the sync is over", || store.sync_age_ms() == 0);
    assert!(!store.sync_failed());
    disk.fail(Call::SyncMapped, "commitlog", ErrorKind::Other);
    store.append(&record("t", 0, b"y", "")).unwrap();
    assert!(store.sync().is_err());
    assert_eq!((store.sync_age_ms(), store.sync_failed()), (0, true));
    disk.heal();
    assert!(matches!(store.sync(), Err(StoreError::FailedSync)));
}
