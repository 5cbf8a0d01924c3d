//! Retention: which files are deleted, and which must stay.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use metaq_store::disk::Space;
use metaq_store::faulty_disk::FaultyDisk;
use metaq_store::{Clock, GetStatus, RetentionSettings, Store, StoreSettings};

use crate::support::*;

const HOUR_MS: i64 = 3_600_000;
/// Midnight, so that tests can add hours to it.
const MIDNIGHT: i64 = 20_000 * 24 * HOUR_MS;

fn half_full() -> Option<Space> {
    Some(Space { total_bytes: 1_000, available_bytes: 500 })
}

struct Fixture {
    _directory: tempfile::TempDir,
    settings: StoreSettings,
    clock: Clock,
    disk: Arc<FaultyDisk>,
    store: Arc<Store>,
}

fn fixture(change: impl FnOnce(&mut StoreSettings)) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = StoreSettings {
        retention: RetentionSettings {
            disk_clean_percent: 75,
            disk_force_clean_percent: 85,
            disk_refuse_percent: 99,
            ..RetentionSettings::default()
        },
        ..small(directory.path())
    };
    change(&mut settings);
    let clock = Clock::manual(MIDNIGHT);
    let disk = Arc::new(FaultyDisk::new());
    disk.set_space(half_full());
    let store = Store::open(settings.clone(), clock.clone(), disk.clone()).unwrap();
    Fixture { _directory: directory, settings, clock, disk, store }
}

impl Fixture {
    fn fill(&self, topic: &str, count: usize) {
        for _ in 0..count {
            let properties = "KEYS\u{1}key\u{2}";
            self.store.append(&record(topic, 0, &[b'x'; 900], properties)).unwrap();
        }
        self.store.dispatch();
    }

    fn log_files(&self) -> usize {
        let names = fs::read_dir(self.settings.directory.join("commitlog")).unwrap();
        names.filter(|name| !name.as_ref().unwrap().file_name().is_empty()).count()
    }
}

#[test]
fn a_shorter_retention_counts_from_the_next_look() {
    let fixture = fixture(|_| {});
    let store = &fixture.store;
    fixture.fill("t", 100);
    fixture.clock.advance_ms(25 * HOUR_MS);
    fixture.fill("t", 20);
    assert_eq!(store.clean(true).unwrap(), 0);
    let retention = RetentionSettings { file_reserved_hours: 24, ..fixture.settings.retention.clone() };
    store.set_retention(retention).unwrap();
    assert!(store.clean(true).unwrap() > 3);
    assert!(store.min_offset("t", 0) > 50);
}

#[test]
fn files_go_by_age_at_the_hour() {
    let fixture = fixture(|settings| settings.retention.delete_when = "04;16".to_owned());
    let store = &fixture.store;
    fixture.fill("t", 100);
    let files = figure(store, "commit_log_files");
    fixture.clock.advance_ms(73 * HOUR_MS);
    fixture.fill("t", 20);
    assert_eq!(store.clean(false).unwrap(), 0, "it is one o'clock");
    fixture.clock.advance_ms(3 * HOUR_MS);
    let deleted = store.clean(false).unwrap() as i64;
    assert!(deleted >= files - 2 && deleted > 3, "{deleted} of {files}");
    assert_eq!(store.clean(false).unwrap(), 0);
    let min_offset = store.min_offset("t", 0);
    assert!(min_offset > 50 && min_offset <= 100, "{min_offset}");
    assert_eq!(store.get("t", 0, 0, 1, 1, &metaq_store::Filter::All).status, GetStatus::BeforeStart);
    assert_eq!(read_all(store, "t", 0).first().unwrap().0, min_offset);
    // Queue and index files that refer only to deleted records are gone too.
    let queue_files = fs::read_dir(fixture.settings.directory.join("consumequeue/t/0")).unwrap().count();
    assert!(queue_files <= 5, "{queue_files}");
    assert!(store.query("t", "key", 64, 0, i64::MAX).records.len() <= 64);
    assert!(fixture.log_files() <= 5);
}

#[test]
fn young_files_stay_and_force_overrides_the_hour_only() {
    let fixture = fixture(|_| {});
    fixture.fill("t", 100);
    assert_eq!(fixture.store.clean(true).unwrap(), 0);
    fixture.clock.advance_ms(71 * HOUR_MS);
    assert_eq!(fixture.store.clean(true).unwrap(), 0);
    fixture.clock.advance_ms(2 * HOUR_MS);
    fixture.fill("t", 20);
    assert!(fixture.store.clean(true).unwrap() > 0);
}

#[test]
fn a_filling_disk_takes_aged_files_at_any_hour() {
    let fixture = fixture(|_| {});
    fixture.fill("t", 100);
    fixture.clock.advance_ms(73 * HOUR_MS);
    fixture.fill("t", 20);
    assert_eq!(fixture.store.clean(false).unwrap(), 0);
    fixture.disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 240 }));
    assert!(fixture.store.clean(false).unwrap() > 0);
}

#[test]
fn a_full_disk_never_takes_what_nobody_consumed() {
    let fixture = fixture(|_| {});
    let store = &fixture.store;
    fixture.fill("read", 60);
    fixture.fill("unread", 60);
    fixture.disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 100 }));
    assert_eq!(store.clean(false).unwrap(), 0, "nothing was consumed");
    assert!(store.take_reports().iter().any(|line| line.contains("nobody consumed")));
    store.protect(HashMap::from([(("read".to_owned(), 0), 60)]));
    let deleted = store.clean(false).unwrap();
    assert!(deleted >= 2, "{deleted}");
    assert_eq!(read_all(store, "unread", 0).len(), 60);
    assert!(store.min_offset("read", 0) > 40);
    store.protect(HashMap::from([(("read".to_owned(), 0), 60), (("unread".to_owned(), 0), 30)]));
    assert!(store.clean(false).unwrap() > 0);
    assert!(store.min_offset("unread", 0) <= 30);
    assert_eq!(store.max_offset("read", 0), 60);
}

#[test]
fn unless_it_is_told_to() {
    let fixture = fixture(|settings| settings.retention.delete_unconsumed = true);
    fixture.fill("t", 100);
    fixture.disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 100 }));
    assert!(fixture.store.clean(false).unwrap() > 3);
    assert_eq!(figure(&fixture.store, "commit_log_files"), 1, "the file that is written to stays");
    fixture.fill("t", 1);
    assert_eq!(fixture.store.max_offset("t", 0), 101);
}

#[test]
fn what_is_left_opens_again() {
    let fixture = fixture(|_| {});
    fixture.fill("t", 100);
    fixture.clock.advance_ms(73 * HOUR_MS);
    fixture.fill("t", 20);
    fixture.store.clean(true).unwrap();
    let before = read_all(&fixture.store, "t", 0);
    let Fixture { settings, clock, disk, store, _directory } = fixture;
    drop(store);
    let store = Store::open(settings, clock, disk).unwrap();
    assert_eq!(read_all(&store, "t", 0), before);
    assert_eq!(store.max_offset("t", 0), 120);
}

#[test]
fn what_waits_for_its_time_is_kept_whatever_its_age() {
    let fixture = fixture(|_| {});
    fixture.fill("t", 100);
    let files = fixture.log_files();
    assert!(files > 4);
    fixture.clock.advance_ms(100 * HOUR_MS);
    fixture.fill("t", 1);
    let waiting = fixture.settings.commit_log_file_bytes as i64 * 2 + 5;
    fixture.store.pin("timers", waiting);
    fixture.store.pin("replica", waiting + 1);
    assert_eq!(fixture.store.clean(true).unwrap(), 2);
    assert_eq!(figure(&fixture.store, "commit_log_min_offset"), waiting - 5);
    // A full disk does not change that, although the queue of waiting messages has no committed offset.
    fixture.store.protect(HashMap::from([(("t".to_owned(), 0), 101)]));
    fixture.store.append(&record(metaq_store::TIMER_TOPIC, 0, b"x", "")).unwrap();
    fixture.store.dispatch();
    fixture.disk.set_space(Some(Space { total_bytes: 1_000, available_bytes: 100 }));
    assert_eq!(fixture.store.clean(true).unwrap(), 0);
    fixture.store.pin("timers", fixture.store.end_offset());
    assert_eq!(fixture.store.clean(true).unwrap(), 0, "the replica is still behind");
    fixture.store.unpin("replica");
    assert!(fixture.store.clean(true).unwrap() > 0);
}

#[test]
fn a_start_hides_what_is_before_it_and_survives_a_load() {
    let fixture = fixture(|_| {});
    let store = &fixture.store;
    fixture.fill("t", 20);
    let all = |store: &Store| store.get("t", 0, 0, 64, 1 << 20, &metaq_store::Filter::All);
    store.set_starts("t", HashMap::from([(0, 7)]));
    assert_eq!((store.min_offset("t", 0), store.max_offset("t", 0)), (7, 20));
    let got = all(store);
    assert_eq!((got.status, got.next_offset), (GetStatus::BeforeStart, 7));
    assert_eq!(store.get("t", 0, 7, 64, 1 << 20, &metaq_store::Filter::All).count, 13);
    assert_eq!(store.search_offset("t", 0, 0, false), 7, "a time before it");
    store.set_starts("t", HashMap::from([(0, 40)]));
    assert_eq!(store.min_offset("t", 0), 20, "a start beyond the end, as on a replica that is behind");
    fixture.fill("t", 30);
    assert_eq!(store.min_offset("t", 0), 40);
    store.delete_topic("t").unwrap();
    fixture.fill("t", 5);
    assert_eq!((store.min_offset("t", 0), store.max_offset("t", 0)), (0, 5), "the topic began again");
}

#[test]
fn a_start_is_known_before_the_queue_is_loaded() {
    let fixture = fixture(|_| {});
    fixture.fill("t", 20);
    fixture.store.close().unwrap();
    let store = Store::open(fixture.settings.clone(), fixture.clock.clone(), fixture.disk.clone()).unwrap();
    store.set_starts("t", HashMap::from([(0, 7)]));
    assert_eq!(store.min_offset("t", 0), 7);
    fixture.clock.advance_ms(73 * HOUR_MS);
    store.clean(true).unwrap();
    assert!(store.min_offset("t", 0) >= 7, "the later of both counts");
}
