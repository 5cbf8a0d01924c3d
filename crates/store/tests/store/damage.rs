//! A damaged log: what is damaged is found, kept aside, and replaced by sound bytes of another log.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{
    Clock, DamagedMessage, Disk, Filter, GetStatus, Store, StoreError, StoreSettings, SystemDisk, rewrite_log,
};
use proptest::prelude::*;

use crate::support::*;

const RECORDS: usize = 120;
const QUEUES: usize = 3;

fn body(number: usize) -> Vec<u8> {
    format!("{number:03}").repeat(1 + number * 37 % 300).into_bytes()
}

/// Appends records over several files, and returns where each of them lies.
fn fill(store: &Store) -> Vec<Range<i64>> {
    let places = (0..RECORDS).map(|number| {
        let body = body(number);
        let appended = store.append(&record("t", (number % QUEUES) as i32, &body, "")).unwrap();
        appended.physical_offset..appended.end_offset
    });
    let places = places.collect();
    confirm(store, store.end_offset());
    places
}

fn contents(store: &Store) -> Vec<Vec<(i64, Vec<u8>)>> {
    (0..QUEUES as i32).map(|queue_id| read_all(store, "t", queue_id)).collect()
}

/// Flips a bit in the middle of a record, which is in its body.
fn flip_body(settings: &StoreSettings, place: &Range<i64>) {
    let (path, position) = locate(settings, place.start + (place.end - place.start) / 2);
    flip(&path, position, 1);
}

fn two_stores(directory: &Path) -> (StoreSettings, StoreSettings) {
    (small(&directory.join("one")), small(&directory.join("other")))
}

#[test]
fn a_sound_log_has_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let places = fill(&store);
    let end = store.end_offset();
    for from in [0, 1, 100, places[40].start, places[40].start + 7, end] {
        assert_eq!(store.damaged_ranges(from, end), Some(vec![]), "from {from}");
    }
    assert_eq!(store.damaged_ranges(0, end + 1), None, "it does not reach that far");
    assert_eq!(store.damaged_ranges(-1, end), None);
    assert_eq!(store.damaged_ranges(10, 5), None);
    assert!(store.known_damage().is_empty());
}

#[test]
fn damage_is_found_from_any_offset_and_forgotten_when_it_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    let (end, bad) = (store.end_offset(), &places[40]);
    flip_body(&settings, bad);
    let range = (bad.start, bad.end);
    for from in [0, bad.start - 1, bad.start, bad.start + 1, bad.end - 1] {
        assert_eq!(store.damaged_ranges(from, end), Some(vec![range]), "from {from}");
    }
    assert_eq!(store.damaged_ranges(bad.end, end), Some(vec![]));
    assert_eq!(store.damaged_ranges(0, bad.start), Some(vec![]));
    assert_eq!(store.known_damage(), [range], "other parts say nothing about it");
    flip_body(&settings, bad);
    assert_eq!(store.damaged_ranges(bad.start, bad.end), Some(vec![]));
    assert!(store.known_damage().is_empty());
}

#[test]
fn blanks_lost_files_and_neighbours_count() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    let end = store.end_offset();
    for place in &places[10..12] {
        flip_body(&settings, place);
    }
    // The last byte of the first file is filler.
    let file_bytes = settings.commit_log_file_bytes as i64;
    let last = places.iter().rfind(|place| place.end < file_bytes).unwrap();
    let (path, position) = locate(&settings, file_bytes - 1);
    flip(&path, position, 0x10);
    let expected = vec![(places[10].start, places[11].end), (last.end, file_bytes)];
    assert_eq!(store.damaged_ranges(0, end), Some(expected));
    store.close().unwrap();
    fs::remove_file(locate(&settings, file_bytes).0).unwrap();
    let store = open(&settings);
    let found = store.damaged_ranges(file_bytes, store.end_offset()).unwrap();
    assert_eq!(found, [(file_bytes, 2 * file_bytes)]);
}

#[test]
fn reads_and_a_replay_lead_to_the_damage() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    flip_body(&settings, &places[5]);
    let _the_read_leaves_it_out = read_all(&store, "t", 5 % QUEUES as i32);
    eventually("the damage is known", || store.known_damage() == [(places[5].start, places[5].end)]);
    drop(store);
    flip_body(&settings, &places[RECORDS - 2]);
    fs::remove_dir_all(directory.path().join("consumequeue")).unwrap();
    let store = open(&settings);
    let known = store.known_damage();
    assert!(known.contains(&(places[RECORDS - 2].start, places[RECORDS - 2].end)), "{known:?}");
}

#[test]
fn a_read_does_not_check_what_it_has_no_room_for() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    flip_body(&settings, &places[QUEUES]);
    let got = store.get("t", 0, 0, 32, 1, &Filter::All);
    assert_eq!((got.count, got.next_offset), (1, 1));
    assert_eq!(store.figures().damaged_records, 0, "one pull would cost what the next record is long");
    let got = store.get("t", 0, 1, 32, 1, &Filter::All);
    assert_eq!((got.count, got.next_offset), (1, 3));
    assert_eq!(store.figures().damaged_records, 1);
}

/// Replaces damaged ranges by the bytes of a sound log.
fn repair(settings: &StoreSettings, ranges: &[(i64, i64)], sound: &Store, rebuild: bool) {
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    for (from, to) in ranges {
        let bytes = sound.log_bytes(*from, (to - from) as usize).unwrap();
        assert_eq!(rewrite_log(settings, &disk, *from, &bytes, rebuild).unwrap(), *to);
    }
}

#[test]
fn a_damaged_record_is_kept_aside_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = two_stores(directory.path());
    let store = open(&one);
    let places = fill(&store);
    let before = contents(&store);
    store.close().unwrap();
    drop(store);
    copy_store(&one.directory, &other.directory);
    let sound = open(&other);
    // The second one is the last of its queue. After an orderly stop, the start reads neither.
    for number in [7, RECORDS - 2] {
        flip_body(&one, &places[number]);
        let store = open(&one);
        let damage = store.damaged_ranges(0, store.end_offset()).unwrap();
        assert_eq!(damage, [(places[number].start, places[number].end)]);
        let (from, to) = damage[0];
        store.set_aside(from, to).unwrap();
        store.set_aside(from, to).unwrap();
        let bytes = sound.log_bytes(from, (to - from) as usize).unwrap();
        assert!(!store.lacks_entries(&bytes));
        let kept = store.log_bytes(from, (to - from) as usize).unwrap();
        store.close().unwrap();
        drop(store);
        let aside: Vec<_> =
            fs::read_dir(one.directory.join("cut")).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(aside.iter().any(|entry| fs::read(entry.path()).unwrap() == kept));
        repair(&one, &damage, &sound, false);
        let store = open(&one);
        assert_eq!(store.damaged_ranges(0, store.end_offset()), Some(vec![]));
        assert_eq!(contents(&store), before);
        store.close().unwrap();
    }
}

#[test]
fn a_copy_that_is_not_safe_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let disk = Arc::new(FaultyDisk::new());
    let shared: Arc<dyn Disk> = disk.clone();
    let store = Store::open(settings, Clock::system(), shared).unwrap();
    let places = fill(&store);
    let (from, to) = (places[3].start, places[3].end);
    let copies = || fs::read_dir(directory.path().join("cut")).map_or(0, |entries| entries.count());
    disk.fail(Call::Write, "cut", ErrorKind::StorageFull);
    assert!(matches!(store.set_aside(from, to), Err(StoreError::DiskFull { .. })));
    assert_eq!(copies(), 0, "half a copy takes no room");
    disk.heal();
    disk.fail(Call::SyncData, "cut", ErrorKind::Other);
    assert!(store.set_aside(from, to).is_err());
    assert_eq!(copies(), 0);
    disk.heal();
    store.set_aside(from, to).unwrap();
    assert_eq!(copies(), 1);
}

#[test]
fn a_record_that_a_replay_has_missed_gets_its_place_in_the_queue_again() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = two_stores(directory.path());
    let store = open(&one);
    let places = fill(&store);
    let before = contents(&store);
    store.close().unwrap();
    drop(store);
    copy_store(&one.directory, &other.directory);
    let sound = open(&other);
    // The last record of queue 1, followed by one of queue 2.
    let bad = &places[RECORDS - 2];
    flip_body(&one, bad);
    fs::remove_dir_all(one.directory.join("consumequeue")).unwrap();
    let store = open(&one);
    let damage = store.known_damage();
    assert_eq!(damage, [(bad.start, bad.end)]);
    let bytes = sound.log_bytes(bad.start, (bad.end - bad.start) as usize).unwrap();
    assert!(store.lacks_entries(&bytes));
    store.close().unwrap();
    drop(store);
    repair(&one, &damage, &sound, true);
    let store = open(&one);
    assert!(store.known_damage().is_empty());
    assert!(!store.lacks_entries(&bytes));
    assert_eq!(contents(&store), before);
}

#[test]
fn a_lost_file_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = two_stores(directory.path());
    let store = open(&one);
    fill(&store);
    let before = contents(&store);
    store.close().unwrap();
    drop(store);
    copy_store(&one.directory, &other.directory);
    let sound = open(&other);
    let file_bytes = one.commit_log_file_bytes as i64;
    fs::remove_file(locate(&one, file_bytes).0).unwrap();
    repair(&one, &[(file_bytes, 2 * file_bytes)], &sound, true);
    let store = open(&one);
    assert_eq!(store.damaged_ranges(0, store.end_offset()), Some(vec![]));
    assert_eq!(contents(&store), before);
}

#[test]
fn a_file_that_somebody_deletes_under_an_open_store_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = two_stores(directory.path());
    let store = open(&one);
    let places = fill(&store);
    let (before, end) = (contents(&store), store.end_offset());
    copy_store(&one.directory, &other.directory);
    let sound = open(&other);
    let file_bytes = one.commit_log_file_bytes as i64;
    let last = end / file_bytes * file_bytes;
    for file in [file_bytes, last] {
        fs::remove_file(locate(&one, file).0).unwrap();
    }
    let lost = [(file_bytes, 2 * file_bytes), (last, end)];
    assert_eq!(store.damaged_ranges(0, end), Some(lost.to_vec()), "although its bytes are still in memory");
    assert_eq!(store.damaged_ranges(places.last().unwrap().start, end), Some(vec![lost[1]]));
    assert_eq!((store.known_damage(), store.raw_checksum(file_bytes, end)), (lost.to_vec(), None));
    for (from, to) in lost {
        store.set_aside(from, to).unwrap();
    }
    store.close().unwrap();
    drop(store);
    repair(&one, &lost, &sound, true);
    let store = open(&one);
    assert_eq!(store.damaged_ranges(0, end), Some(vec![]));
    assert_eq!((store.end_offset(), contents(&store)), (end, before));
}

#[test]
fn a_lost_first_file_is_damaged_and_a_deleted_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = two_stores(directory.path());
    let settings = StoreSettings { stop_at_damage: true, ..one };
    let store = open(&settings);
    fill(&store);
    let (before, end) = (contents(&store), store.end_offset());
    store.close().unwrap();
    drop(store);
    copy_store(&settings.directory, &other.directory);
    let sound = open(&other);
    let file_bytes = settings.commit_log_file_bytes as i64;
    for file in [0, file_bytes] {
        fs::remove_file(locate(&settings, file).0).unwrap();
    }
    let lost = (0, 2 * file_bytes);
    for _ in 0..2 {
        let store = open(&settings);
        assert_eq!((store.start_offset(), store.known_damage()), (0, vec![lost]), "at every start");
        assert_eq!(store.damaged_ranges(file_bytes + 7, end), Some(vec![lost]));
        let read = store.get("t", 0, 0, 32, 1 << 20, &Filter::All);
        assert_eq!(
            (read.status, read.count, read.next_offset),
            (GetStatus::Damaged, 0, 0),
            "nobody gets past"
        );
        store.close().unwrap();
    }
    repair(&settings, &[(0, file_bytes), (file_bytes, lost.1)], &sound, true);
    let store = open(&settings);
    assert_eq!((store.known_damage(), contents(&store)), (vec![], before));
    store.follow_retention(file_bytes);
    eventually("the first file is deleted", || {
        store.clean(true).unwrap();
        store.start_offset() == file_bytes
    });
    store.close().unwrap();
    drop(store);
    let store = open(&settings);
    assert_eq!((store.start_offset(), store.known_damage()), (file_bytes, vec![]));
}

#[test]
fn only_sound_records_are_written_and_only_into_a_closed_store() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let store = open(&settings);
    let places = fill(&store);
    let (first, second) = (&places[3], &places[4]);
    let bytes = store.log_bytes(first.start, (second.end - first.start) as usize).unwrap();
    assert!(matches!(
        rewrite_log(&settings, &disk, first.start, &bytes, false),
        Err(StoreError::Locked { .. })
    ));
    let before = contents(&store);
    store.close().unwrap();
    drop(store);
    let mut bad = bytes.to_vec();
    bad[10] ^= 1;
    for (place, bytes) in [(first.start, &bad[..]), (first.start + 1, &bytes[..]), (first.start, &[][..])] {
        let refused = rewrite_log(&settings, &disk, place, bytes, false);
        assert!(matches!(refused, Err(StoreError::BadRawBytes { .. })), "{refused:?}");
    }
    let whole = first.end - first.start;
    let written = rewrite_log(&settings, &disk, first.start, &bytes[..whole as usize + 5], false);
    assert_eq!(written.unwrap(), first.end, "the rest is not a whole record");
    assert_eq!(contents(&open(&settings)), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever bytes change, a check leads from there back to a log without damage.
    #[test]
    fn any_damage_that_is_found_can_be_repaired(at in 0_usize..20_000, len in 1_usize..3_000, mask in 1_u8..=255) {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = two_stores(directory.path());
        let store = open(&one);
        fill(&store);
        let (end, before) = (store.end_offset(), contents(&store));
        store.close().unwrap();
        drop(store);
        copy_store(&one.directory, &other.directory);
        let sound = open(&other);
        let store = open(&one);
        for offset in (at as i64..(at + len) as i64).filter(|offset| *offset < end) {
            let (path, position) = locate(&one, offset);
            flip(&path, position, mask);
        }
        let file_bytes = one.commit_log_file_bytes as i64;
        let damage = store.damaged_ranges(0, end).unwrap();
        let parts = damage.iter().flat_map(|(from, to)| {
            let starts = (from / file_bytes..=(to - 1) / file_bytes).map(move |file| file * file_bytes);
            starts.map(move |start| (*from.max(&start), *to.min(&(start + file_bytes))))
        });
        let parts: Vec<_> = parts.collect();
        drop(store);
        repair(&one, &parts, &sound, true);
        let store = open(&one);
        prop_assert_eq!(store.damaged_ranges(0, end), Some(vec![]));
        // Topics and properties are outside of the checksums.
        if store.raw_checksum(0, end) == sound.raw_checksum(0, end) {
            prop_assert_eq!(contents(&store), before);
        }
    }
}

/// Stores that wait at damage, and the middle record of queue 2.
fn waiting(directory: &Path) -> (StoreSettings, Arc<Store>, Vec<Range<i64>>) {
    let settings = StoreSettings { stop_at_damage: true, ..small(directory) };
    let store = open(&settings);
    let places = fill(&store);
    (settings, store, places)
}

#[test]
fn a_read_stops_in_front_of_damage_and_goes_on_when_it_is_sound() {
    let directory = tempfile::tempdir().unwrap();
    let (settings, store, places) = waiting(directory.path());
    flip_body(&settings, &places[62]);
    let read = |from| store.get("t", 2, from, 32, 1 << 20, &Filter::All);
    let before = read(18);
    assert_eq!((before.status, before.count, before.next_offset), (GetStatus::Found, 2, 20));
    for _ in 0..3 {
        let at = read(20);
        assert_eq!((at.status, at.count, at.next_offset), (GetStatus::Damaged, 0, 20));
        assert!(at.max_offset > 20);
    }
    let reports = store.take_reports();
    assert_eq!(reports.iter().filter(|report| report.contains("queue offset 20")).count(), 1, "{reports:?}");
    let message = DamagedMessage {
        topic: "t".to_owned(),
        queue_id: 2,
        queue_offset: 20,
        physical_offset: places[62].start,
        is_skipped: false,
    };
    assert_eq!(store.damaged_messages(), [message]);
    assert_eq!(figure(&store, "damaged_records"), 1);
    assert!(store.awaits_repair(places[62].start).is_some());
    assert!(store.awaits_repair(places[61].start).is_none());
    flip_body(&settings, &places[62]);
    assert_eq!(read(20).status, GetStatus::Found);
    assert_eq!(store.damaged_messages(), []);
    assert_eq!(bodies(&store, "t", 2).len(), RECORDS / QUEUES);
}

#[test]
fn a_lone_store_leaves_damage_out_and_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    flip_body(&settings, &places[62]);
    assert_eq!(bodies(&store, "t", 2).len(), RECORDS / QUEUES - 1);
    let named: Vec<_> = store.damaged_messages();
    assert_eq!(named.iter().map(|one| (one.queue_offset, one.is_skipped)).collect::<Vec<_>>(), [(20, true)]);
    assert!(store.awaits_repair(places[62].start).is_none(), "nobody waits");
}

#[test]
fn a_hole_stops_reads_only_where_the_log_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (settings, store, places) = waiting(directory.path());
    store.close().unwrap();
    drop(store);
    // The start reads the log again and finds no record for one entry.
    flip_body(&settings, &places[62]);
    fs::remove_dir_all(directory.path().join("consumequeue")).unwrap();
    let store = open(&settings);
    let read = |store: &Store, from| store.get("t", 2, from, 32, 1 << 20, &Filter::All);
    assert_eq!(read(&store, 20).status, GetStatus::Damaged);
    eventually("the damage is known", || store.known_damage() == [(places[62].start, places[62].end)]);
    assert_eq!(store.damaged_messages().len(), 1);
}

#[test]
fn a_wrong_pointer_keeps_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let (_, store, places) = waiting(directory.path());
    let inside = places[30].start + 9;
    assert!(store.awaits_repair(inside).is_some(), "until it is checked");
    eventually("it is checked", || store.awaits_repair(inside).is_none());
    assert!(store.known_damage().is_empty());
}

#[test]
fn a_query_fails_rather_than_leave_a_damaged_record_out() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { stop_at_damage: true, ..small(directory.path()) };
    let store = open(&settings);
    let mut places = Vec::new();
    for _ in 0..3 {
        let appended = store.append(&record("t", 0, &[b'x'; 100], "KEYS\u{1}k\u{2}")).unwrap();
        places.push(appended.physical_offset..appended.end_offset);
    }
    confirm(&store, store.end_offset());
    assert_eq!(store.query_all("t", "k", 9, 0, i64::MAX).unwrap().records.len(), 3);
    flip_body(&settings, &places[1]);
    let outcome = store.query_all("t", "k", 9, 0, i64::MAX);
    assert!(matches!(outcome, Err(StoreError::AwaitsRepair { .. })), "{outcome:?}");
    assert_eq!(store.query("t", "k", 9, 0, i64::MAX).records.len(), 2);
}
