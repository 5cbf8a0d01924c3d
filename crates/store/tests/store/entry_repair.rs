//! Damaged queue entries, whose records are sound: whatever is damaged around them, readers get their records.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use metaq_store::{Filter, GetStatus, Got, Store, StoreSettings};

use crate::support::*;

const ENTRY_BYTES: usize = 20;

/// A store whose reads search very little of the log at a time.
fn narrow(directory: &Path, stop_at_damage: bool) -> StoreSettings {
    StoreSettings {
        stop_at_damage,
        entry_search_bytes_max: 2 * KIB,
        consume_queue_file_entries: 1_000,
        ..small(directory)
    }
}

/// Overwrites entries of queue 0 of topic "t" with zeros while the store is closed.
fn without_entries(
    settings: &StoreSettings,
    store: Arc<Store>,
    entries: std::ops::Range<usize>,
) -> Arc<Store> {
    store.close().unwrap();
    drop(store);
    let path = settings.directory.join(format!("consumequeue/t/0/{:020}", 0));
    let mut bytes = fs::read(&path).unwrap();
    bytes[entries.start * ENTRY_BYTES..entries.end * ENTRY_BYTES].fill(0);
    fs::write(&path, bytes).unwrap();
    open(settings)
}

/// Appends `count` records to the queue, with `between` records of another one after each.
fn fill(store: &Store, count: usize, between: usize) -> Vec<i64> {
    let mut places = Vec::new();
    for number in 0..count {
        let body = format!("{number}");
        places.push(store.append(&record("t", 0, body.as_bytes(), "")).unwrap().physical_offset);
        for _ in 0..between {
            store.append(&record("other", 0, &[b'x'; 400], "")).unwrap();
        }
    }
    confirm(store, store.end_offset());
    places
}

fn read(store: &Store, from: i64) -> Got {
    store.get("t", 0, from, 32, 1 << 20, &Filter::All)
}

/// How many reads found nothing yet before one got the record.
fn waits(store: &Store, from: i64) -> usize {
    for waited in 0..1_000 {
        let got = read(store, from);
        if got.count > 0 {
            return waited;
        }
        assert_eq!((got.status, got.next_offset), (GetStatus::Damaged, from), "nobody gets past it");
    }
    panic!("the queue stands at {from} for ever");
}

#[test]
fn a_read_goes_on_with_the_search_of_the_one_before() {
    for stop_at_damage in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let settings = narrow(directory.path(), stop_at_damage);
        let store = open(&settings);
        // The record is the first one of the second half of the log.
        fill(&store, 1, 40);
        fill(&store, 2, 40);
        let store = without_entries(&settings, store, 1..2);
        let waited = waits(&store, 1);
        assert!(waited > 3, "{waited} reads");
        assert_eq!(bodies(&store, "t", 0).len(), 3);
        assert_eq!((figure(&store, "repaired_entries"), store.damaged_messages()), (1, vec![]));
    }
}

#[test]
fn a_lost_block_of_entries_stops_no_group() {
    for stop_at_damage in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let settings = narrow(directory.path(), stop_at_damage);
        let store = open(&settings);
        fill(&store, 400, 0);
        let store = without_entries(&settings, store, 40..244);
        waits(&store, 142);
        let mut at = 0;
        while at < 400 {
            waits(&store, at);
            let got = read(&store, at);
            assert_eq!(got.next_offset - at, got.count as i64, "none is left out from {at}");
            at = got.next_offset;
        }
        assert_eq!((figure(&store, "repaired_entries"), store.damaged_messages()), (204, vec![]));
    }
}

#[test]
fn an_entry_that_was_searched_for_in_vain_is_searched_for_again_when_its_neighbour_is_corrected() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { stop_at_damage: true, ..small(directory.path()) };
    let store = open(&settings);
    let places = fill(&store, 12, 0);
    let store = without_entries(&settings, store, 5..7);
    let (path, position) = locate(&settings, places[5] + 88);
    flip(&path, position, 1);
    for _ in 0..2 {
        assert_eq!(read(&store, 5).status, GetStatus::Damaged);
    }
    flip(&path, position, 1);
    assert_eq!(read(&store, 6).count, 6);
    assert_eq!(read(&store, 5).count, 7);
    assert_eq!((figure(&store, "damaged_records"), store.damaged_messages()), (1, vec![]));
}

#[test]
fn a_scrub_writes_entries_from_their_records() {
    let directory = tempfile::tempdir().unwrap();
    let settings = narrow(directory.path(), true);
    let store = open(&settings);
    fill(&store, 4, 60);
    let store = without_entries(&settings, store, 1..3);
    let mut at = 0;
    while let Some(part) = store.scrub(at, 4_000).unwrap() {
        at = part.next_offset;
    }
    assert_eq!(figure(&store, "repaired_entries"), 2);
    assert_eq!((waits(&store, 1), bodies(&store, "t", 0).len()), (0, 4));
}

#[test]
fn a_scrub_gives_a_topic_that_was_created_again_none_of_its_old_records() {
    let directory = tempfile::tempdir().unwrap();
    let settings = narrow(directory.path(), true);
    let store = open(&settings);
    fill(&store, 5, 0);
    store.delete_topic("t").unwrap();
    let places = fill(&store, 4, 0);
    let store = without_entries(&settings, store, 1..3);
    // The first entry leads somewhere else.
    store.close().unwrap();
    drop(store);
    flip(&settings.directory.join(format!("consumequeue/t/0/{:020}", 0)), 7, 1);
    let store = open(&settings);
    let mut at = 0;
    while let Some(part) = store.scrub(at, 200).unwrap() {
        at = part.next_offset;
    }
    let entries = store.queue_entries("t", 0, 0, 9);
    assert_eq!(entries.iter().map(|entry| entry.physical_offset).collect::<Vec<_>>(), places);
}

#[test]
fn very_much_damage_keeps_no_entry_from_being_corrected() {
    const DAMAGED: usize = 10_010;
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings {
        commit_log_file_bytes: 64 * 1024 * KIB,
        consume_queue_file_entries: 100_000,
        ..small(directory.path())
    };
    let store = open(&settings);
    let places = fill(&store, 2 * DAMAGED + 3, 0);
    let path = locate(&settings, 0).0;
    for place in places.iter().skip(1).step_by(2).take(DAMAGED) {
        flip(&path, *place as u64 + 88, 1);
    }
    let store = without_entries(&settings, store, 2 * DAMAGED + 1..2 * DAMAGED + 2);
    assert_eq!(bodies(&store, "t", 0).len(), DAMAGED + 3);
    assert_eq!(figure(&store, "damaged_records"), DAMAGED as i64);
    assert_eq!(figure(&store, "repaired_entries"), 1);
}
