//! A failing disk: refused appends, reads that continue, and recovery once the disk works again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use metaq_store::disk::Space;
use metaq_store::faulty_disk::{Call, Fault, FaultyDisk};
use metaq_store::{Clock, RetentionSettings, Store, StoreError, StoreEvents, StoreSettings};

use crate::support::*;

fn open_on(disk: &Arc<FaultyDisk>, settings: &StoreSettings) -> Arc<Store> {
    Store::open(settings.clone(), Clock::system(), disk.clone()).unwrap()
}

#[derive(Default)]
struct Flushes {
    offset: AtomicI64,
    failed: AtomicBool,
    after_failure: AtomicBool,
}

impl StoreEvents for Flushes {
    fn arrived(&self, _: &str, _: i32, _: i64, _: &[i64]) {}
    fn confirmed(&self, physical_offset: i64, failed: bool) {
        if self.failed.load(Ordering::SeqCst) {
            self.after_failure.store(true, Ordering::SeqCst);
        }
        self.failed.fetch_or(failed, Ordering::SeqCst);
        self.offset.store(physical_offset, Ordering::SeqCst);
    }
}

#[test]
fn after_a_failed_sync_nothing_is_ever_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store = open_on(&disk, &synced(directory.path()));
    let events = Arc::new(Flushes::default());
    store.set_events(events.clone());
    let good = send(&store, "t", 0, b"good");

    // One sync fails, and the next ones work again.
    disk.add(Fault {
        call: Call::SyncMapped,
        path_part: "commitlog",
        kind: ErrorKind::Other,
        after: 0,
        times: 1,
    });
    let bad = store.append(&record("t", 0, b"bad", "")).unwrap();
    store.dispatch();
    assert!(!store.wait_confirmed(bad.end_offset, Duration::from_secs(60)));
    assert_eq!(disk.faults_met(), 1);
    assert!(matches!(store.append(&record("t", 0, b"late", "")), Err(StoreError::FailedSync)));
    assert!(matches!(store.writable(), Err(StoreError::FailedSync)));
    eventually("the event", || events.failed.load(Ordering::SeqCst));
    assert_eq!(events.offset.load(Ordering::SeqCst), good.end_offset, "flushed records stay flushed");
    store.request_confirm(bad.end_offset);
    assert!(!store.wait_confirmed(bad.end_offset, Duration::from_millis(50)));
    assert!(!events.after_failure.load(Ordering::SeqCst));
    assert_eq!(store.confirmed_offset(), good.end_offset);
    assert_eq!(bodies(&store, "t", 0), [b"good"], "reads go on");
    assert!(matches!(store.close(), Err(StoreError::FailedSync)));
    assert!(directory.path().join("abort").exists(), "the next start must recover");
    assert!(store.take_reports().iter().any(|line| line.contains("sync")));
}

#[test]
fn a_full_disk_refuses_appends_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = small(directory.path());
    let store = open_on(&disk, &settings);
    let mut sent = 0;
    disk.fail(Call::Allocate, "commitlog", ErrorKind::StorageFull);
    // Space that was allocated ahead is used up first.
    let refusal = loop {
        match store.append(&record("t", 0, &[b'x'; 500], "")) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1_000, "the disk never got full");
    };
    assert!(matches!(refusal, StoreError::DiskFull { .. }), "{refusal}");
    store.dispatch();
    assert_eq!(bodies(&store, "t", 0).len(), sent, "reads go on");
    // A batch that does not fit leaves nothing behind.
    let before = figure(&store, "commit_log_max_offset");
    let records = vec![record("t", 0, b"batch", ""); 200];
    assert!(matches!(store.append_batch(&records), Err(StoreError::DiskFull { .. })));
    assert_eq!(figure(&store, "commit_log_max_offset"), before);

    disk.heal();
    send(&store, "t", 0, b"again");
    assert_eq!(store.append_batch(&records).unwrap().first.queue_offset, sent as i64 + 1);
    store.dispatch();
    drop(store);
    assert_eq!(bodies(&open_on(&disk, &settings), "t", 0).len(), sent + 201);
}

#[test]
fn a_batch_over_several_files_fails_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store = open_on(&disk, &small(directory.path()));
    send(&store, "t", 0, b"first");
    let body = [b'b'; 1_000];
    let records = vec![record("t", 0, &body, ""); 64];
    // The second and third file can be made, the fourth cannot.
    disk.add(Fault {
        call: Call::Create,
        path_part: "commitlog/00000000000000049152",
        kind: ErrorKind::StorageFull,
        after: 0,
        times: u64::MAX,
    });
    assert!(matches!(store.append_batch(&records), Err(StoreError::DiskFull { .. })));
    assert_eq!(send(&store, "t", 0, b"second").queue_offset, 1);
    disk.heal();
    let batch = store.append_batch(&records).unwrap();
    store.dispatch();
    assert_eq!(batch.first.queue_offset, 2);
    assert_eq!(bodies(&store, "t", 0).len(), 66);
    assert_eq!(figure(&store, "damaged_records"), 0);
}

#[test]
fn past_the_disk_level_appends_are_refused_until_it_falls() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = StoreSettings {
        retention: RetentionSettings {
            disk_clean_percent: 75,
            disk_force_clean_percent: 85,
            disk_refuse_percent: 90,
            ..RetentionSettings::default()
        },
        ..small(directory.path())
    };
    disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 200 }));
    let store = open_on(&disk, &settings);
    send(&store, "t", 0, b"x");
    disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 50 }));
    eventually("refusal", || matches!(store.writable(), Err(StoreError::DiskFull { .. })));
    assert!(matches!(store.append(&record("t", 0, b"x", "")), Err(StoreError::DiskFull { .. })));
    assert_eq!(bodies(&store, "t", 0).len(), 1);
    disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 500 }));
    eventually("recovery", || store.writable().is_ok());
    send(&store, "t", 0, b"y");
    let reports = store.take_reports().join("\n");
    assert!(reports.contains("95 % full") && reports.contains("50 % full"), "{reports}");
}

#[test]
fn a_raised_level_lets_appends_in_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let levels = RetentionSettings {
        disk_clean_percent: 75,
        disk_force_clean_percent: 85,
        disk_refuse_percent: 90,
        ..RetentionSettings::default()
    };
    let settings = StoreSettings { retention: levels.clone(), ..small(directory.path()) };
    disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 50 }));
    let store = open_on(&disk, &settings);
    let refusal = store.append(&record("t", 0, b"x", "")).unwrap_err().to_string();
    assert!(refusal.contains("disk_refuse_percent") && refusal.contains("metaq config set"), "{refusal}");
    let wrong = RetentionSettings { disk_refuse_percent: 80, ..levels.clone() };
    assert!(matches!(store.set_retention(wrong), Err(StoreError::BadSettings(_))));
    assert!(store.writable().is_err(), "a refused change changes nothing");
    store.set_retention(RetentionSettings { disk_refuse_percent: 97, ..levels.clone() }).unwrap();
    send(&store, "t", 0, b"x");
    store.set_retention(levels).unwrap();
    assert!(matches!(store.writable(), Err(StoreError::DiskFull { .. })));
}

#[test]
fn queue_entries_that_cannot_be_written_hold_appends_back_and_are_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = small(directory.path());
    let store = open_on(&disk, &settings);
    disk.fail(Call::Write, "consumequeue", ErrorKind::StorageFull);
    send(&store, "t", 0, b"1");
    eventually("refusal", || matches!(store.writable(), Err(StoreError::DiskFull { .. })));
    assert_eq!(bodies(&store, "t", 0).len(), 1, "entries in memory are served");
    disk.heal();
    eventually("recovery", || store.writable().is_ok());
    send(&store, "t", 0, b"2");
    store.close().unwrap();
    drop(store);
    assert_eq!(bodies(&open_on(&disk, &settings), "t", 0).len(), 2);
}

#[test]
fn one_queue_flush_that_fails_refuses_nothing_and_the_second_tells_why() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store = open_on(&disk, &small(directory.path()));
    let fault = |times| Fault {
        call: Call::Write,
        path_part: "consumequeue",
        kind: ErrorKind::PermissionDenied,
        after: 0,
        times,
    };
    disk.add(fault(1));
    send(&store, "t", 0, b"1");
    let mut reports = Vec::new();
    eventually("a report", || {
        reports.append(&mut store.take_reports());
        !reports.is_empty()
    });
    assert!(
        reports[0].contains("will be tried again") && reports[0].contains("permission denied"),
        "{reports:?}"
    );
    // Nobody was refused. Otherwise the reports would say so.
    eventually("the entry on the disk", || {
        std::fs::read_dir(directory.path().join("consumequeue/t/0")).is_ok_and(|mut files| {
            files.any(|file| std::fs::read(file.unwrap().path()).is_ok_and(|data| data[..20] != [0; 20]))
        })
    });
    reports.append(&mut store.take_reports());
    assert_eq!(reports.len(), 1, "{reports:?}");

    disk.add(fault(u64::MAX));
    send(&store, "t", 0, b"2");
    eventually("refusal", || store.writable().is_err());
    let refusal = store.append(&record("t", 0, b"x", "")).unwrap_err();
    assert!(matches!(refusal, StoreError::QueuesStuck { .. }), "{refusal}");
    assert!(refusal.to_string().contains("permission denied"), "{refusal}");
    assert_eq!(bodies(&store, "t", 0).len(), 2, "entries in memory are served");
    disk.heal();
    eventually("recovery", || store.writable().is_ok());
    send(&store, "t", 0, b"3");
}

#[test]
fn a_crowded_queue_survives_a_failed_write() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = StoreSettings {
        commit_log_file_bytes: 32 << 20,
        consume_queue_file_entries: 300_000,
        queue_flush_interval_ms: 600_000,
        ..small(directory.path())
    };
    let store = open_on(&disk, &settings);
    let records = vec![record("t", 0, b"x", ""); 1_000];
    let fill = |batches: usize| {
        for _ in 0..batches {
            store.append_batch(&records)?;
            store.dispatch();
        }
        Ok::<(), StoreError>(())
    };
    disk.add(Fault {
        call: Call::Write,
        path_part: "consumequeue",
        kind: ErrorKind::PermissionDenied,
        after: 0,
        times: 2,
    });
    fill(75).unwrap();
    assert_eq!(disk.faults_met(), 2);
    assert!(store.take_reports().iter().any(|line| line.contains("will be tried again")));
    // Memory stays bounded.
    disk.fail(Call::Write, "consumequeue", ErrorKind::PermissionDenied);
    let refusal = fill(150).unwrap_err();
    assert!(matches!(refusal, StoreError::QueuesStuck { .. }), "{refusal}");
    assert!(store.max_offset("t", 0) < 75_000 + 150_000);
}

#[test]
fn a_failed_sync_of_queues_freezes_the_bound_only() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = small(directory.path());
    let store = open_on(&disk, &settings);
    disk.add(Fault {
        call: Call::SyncData,
        path_part: "consumequeue",
        kind: ErrorKind::Other,
        after: 0,
        times: 1,
    });
    for _ in 0..50 {
        send(&store, "t", 0, b"x");
    }
    eventually("the fault", || disk.faults_met() == 1);
    send(&store, "t", 0, b"y");
    store.close().unwrap();
    drop(store);
    // The content of the queues on the disk is undefined. Assume that it is lost.
    for file in std::fs::read_dir(directory.path().join("consumequeue/t/0")).unwrap() {
        let path = file.unwrap().path();
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::write(path, vec![0; len as usize]).unwrap();
    }
    assert_eq!(bodies(&open_on(&disk, &settings), "t", 0).len(), 51);
}

#[test]
fn a_queue_that_cannot_be_read_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = small(directory.path());
    let store = open_on(&disk, &settings);
    for _ in 0..40 {
        send(&store, "t", 0, b"x");
    }
    store.close().unwrap();
    drop(store);
    let store = open_on(&disk, &settings);
    disk.fail(Call::Open, "consumequeue", ErrorKind::Other);
    disk.fail(Call::Read, "consumequeue", ErrorKind::Other);
    let got = store.get("t", 0, 5, 32, 1 << 20, &metaq_store::Filter::All);
    assert_eq!((got.count, got.next_offset), (0, 5), "the reader stays where it is");
    assert!(
        store.append(&record("t", 0, b"x", "")).is_err(),
        "no offset is handed out without knowing the last"
    );
    disk.heal();
    assert_eq!(bodies(&store, "t", 0).len(), 40);
    assert_eq!(send(&store, "t", 0, b"x").queue_offset, 40);
}

#[test]
fn opening_fails_cleanly_whatever_call_fails() {
    let calls = [
        Call::Open,
        Call::Create,
        Call::Len,
        Call::SetLen,
        Call::DataEnd,
        Call::Read,
        Call::Write,
        Call::SyncMapped,
        Call::SyncDirectory,
        Call::CreateDirectory,
        Call::ReadDirectory,
        Call::Lock,
    ];
    for call in calls {
        for after in 0..12 {
            let directory = tempfile::tempdir().unwrap();
            let settings = StoreSettings { sync_flush: after % 2 == 0, ..small(directory.path()) };
            let disk = Arc::new(FaultyDisk::new());
            let store = open_on(&disk, &settings);
            for number in 0..100 {
                store.append(&record("t", number % 3, &[b'x'; 200], "")).unwrap();
            }
            confirm(&store, store.end_offset());
            drop(store);
            disk.add(Fault { call, path_part: "", kind: ErrorKind::Other, after, times: 1 });
            let opened = Store::open(settings.clone(), Clock::system(), disk.clone());
            drop(opened);
            disk.heal();
            let store = open_on(&disk, &settings);
            let total: usize = (0..3).map(|queue_id| bodies(&store, "t", queue_id).len()).sum();
            assert_eq!(total, 100, "{call:?} after {after}");
        }
    }
}

#[test]
fn appends_behind_one_that_hangs_are_refused_and_reads_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let settings = StoreSettings { append_wait_ms_max: 1_000, ..small(directory.path()) };
    let store = open_on(&disk, &settings);
    send(&store, "t", 0, b"early");
    disk.stall(Call::Allocate, "commitlog");
    let is_stuck = || matches!(store.append(&record("t", 0, &[7; 1000], "")), Err(StoreError::Busy { .. }));
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One of the two reaches the end of the allocated space and hangs; the other one gets an error.
        let append_on = || {
            while !is_stuck() && !enough.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(append_on)).collect();
        while !threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..100 {
            assert!(is_stuck(), "refused without waiting while the disk hangs");
        }
        assert_eq!(read_all(&store, "t", 0)[0].1, b"early");
        disk.heal();
        while store.append(&record("t", 0, b"late", "")).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        enough.store(true, Ordering::SeqCst);
    });
    store.close().unwrap();
}
