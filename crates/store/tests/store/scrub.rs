//! The scrub: every record is verified a part at a time, damage is found, and the parts fit those of another log.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{Clock, Filter, Scrubbed, Store, StoreError, StoreSettings};

use crate::support::*;

const RECORDS: usize = 120;

fn fill(store: &Store) -> Vec<Range<i64>> {
    let places = (0..RECORDS).map(|number| {
        let body = vec![b'x'; 20 + number * 37 % 900];
        let appended = store.append(&record("t", (number % 3) as i32, &body, "")).unwrap();
        appended.physical_offset..appended.end_offset
    });
    let places = places.collect();
    confirm(store, store.end_offset());
    places
}

fn scrub_all(store: &Store, bytes_max: usize) -> Vec<(i64, Scrubbed)> {
    let (mut parts, mut at) = (Vec::new(), store.start_offset());
    while let Some(part) = store.scrub(at, bytes_max).unwrap() {
        assert!(part.next_offset > at, "it always gets on");
        let next = part.next_offset;
        parts.push((at, part));
        at = next;
    }
    assert_eq!(at, store.end_offset());
    parts
}

fn damage(parts: &[(i64, Scrubbed)]) -> Vec<(i64, i64)> {
    parts.iter().flat_map(|(_, part)| part.damaged.clone()).collect()
}

fn flip_at(settings: &StoreSettings, physical_offset: i64) {
    let (path, position) = locate(settings, physical_offset);
    flip(&path, position, 1);
}

#[test]
fn a_sound_log_is_verified_in_parts_of_any_size() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    fill(&store);
    assert!(store.end_offset() > 3 * store.log_file_bytes());
    for bytes_max in [1, 7, 100, 3_000, 1 << 20] {
        for (from, part) in scrub_all(&store, bytes_max) {
            assert_eq!(part.damaged, []);
            assert_eq!(part.checksum, store.raw_checksum(from, part.next_offset), "{from}, {bytes_max}");
        }
    }
    assert!(store.known_damage().is_empty());
    assert_eq!(store.raw_checksum(0, store.end_offset() + 1), None);
}

#[test]
fn every_damaged_byte_is_found_and_the_scrub_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    let file_bytes = settings.commit_log_file_bytes as i64;
    let last = places.iter().rfind(|place| place.end < file_bytes).unwrap();
    for (at, expected) in [
        (places[40].start + 2, places[40].clone()),
        (places[40].start + 5, places[40].clone()),
        (places[40].end - 9, places[40].clone()),
        (places[0].start + 1, places[0].clone()),
        (file_bytes - 1, last.end..file_bytes),
    ] {
        flip_at(&settings, at);
        for bytes_max in [64, 1 << 20] {
            assert_eq!(damage(&scrub_all(&store, bytes_max)), [(expected.start, expected.end)], "{at}");
        }
        assert_eq!(store.known_damage(), [(expected.start, expected.end)]);
        flip_at(&settings, at);
        store.damaged_ranges(0, store.end_offset());
    }
}

#[test]
fn a_wrong_beginning_and_a_lost_file_do_not_stop_it() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    let inside = store.scrub(places[10].start + 3, 1 << 20).unwrap().unwrap();
    assert_eq!((inside.damaged, inside.checksum), (vec![], None), "the records are sound");
    assert_eq!(inside.next_offset, places[10].end, "and so no further one is left out");
    store.close().unwrap();
    assert!(matches!(store.scrub(0, 1), Err(StoreError::Closed)));
    drop(store);
    let file_bytes = settings.commit_log_file_bytes as i64;
    fs::remove_file(locate(&settings, file_bytes).0).unwrap();
    let store = open(&settings);
    assert_eq!(damage(&scrub_all(&store, 1 << 20)), [(file_bytes, 2 * file_bytes)]);
}

#[test]
fn a_sector_that_cannot_be_read_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let store =
        Store::open(small(directory.path()), Clock::system(), Arc::<FaultyDisk>::clone(&disk)).unwrap();
    fill(&store);
    disk.fail(Call::Read, "commitlog", ErrorKind::Other);
    assert!(matches!(store.scrub(0, 1 << 20), Err(StoreError::Io { .. })));
    assert_eq!(store.raw_checksum(0, 1_000), None);
    disk.heal();
    assert_eq!(damage(&scrub_all(&store, 1 << 20)), []);
}

#[test]
fn the_messages_of_a_damaged_part_get_names() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    for place in &places[61..63] {
        flip_at(&settings, place.end - 9);
    }
    store.name_damaged(places[61].start, places[62].end).unwrap();
    let named: Vec<_> = store.damaged_messages().iter().map(|one| (one.queue_id, one.queue_offset)).collect();
    assert_eq!(named, [(1, 20), (2, 20)]);
    assert_eq!(figure(&store, "damaged_records"), 2);
}

#[test]
fn queue_entries_are_put_right_that_no_read_would_miss() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    for number in 0..40_u8 {
        store.append(&record("t", 0, &[number; 50], "TAGS\u{1}a\u{2}")).unwrap();
    }
    confirm(&store, store.end_offset());
    store.close().unwrap();
    drop(store);
    let file = |first: usize| directory.path().join(format!("consumequeue/t/0/{:020}", first * 20));
    // A tag code, a size, an offset, and an entry of zeros.
    flip(&file(0), 3 * 20 + 18, 0x01);
    flip(&file(0), 5 * 20 + 10, 0x01);
    flip(&file(16), 2 * 20 + 6, 0x10);
    let mut bytes = fs::read(file(16)).unwrap();
    bytes[8 * 20..9 * 20].fill(0);
    fs::write(file(16), bytes).unwrap();
    let store = open(&settings);
    let tagged = Filter::Tags(vec![java_hash("a")].into());
    let found = |store: &Store| store.get("t", 0, 0, 99, 1 << 20, &tagged).count;
    assert_eq!(found(&store), 39, "nobody misses the record with the wrong tag code");
    assert_eq!(damage(&scrub_all(&store, 4_000)), []);
    assert_eq!(found(&store), 40);
    store.close().unwrap();
    drop(store);
    let store = open(&settings);
    assert_eq!(found(&store), 40, "the right entries are on the disk");
    let repaired = figure(&store, "repaired_entries");
    scrub_all(&store, 4_000);
    assert_eq!(figure(&store, "repaired_entries"), repaired);
}

#[test]
fn the_entries_of_a_topic_that_was_created_again_stay() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    for body in ["old 0", "old 1", "old 2"] {
        send(&store, "t", 0, body.as_bytes());
    }
    store.delete_topic("t").unwrap();
    for body in ["new 0", "new 1"] {
        send(&store, "t", 0, body.as_bytes());
    }
    scrub_all(&store, 1 << 20);
    assert_eq!(bodies(&store, "t", 0), [b"new 0".to_vec(), b"new 1".to_vec()]);
    assert_eq!(figure(&store, "repaired_entries"), 0);
}

/// The hash of Java's strings, by which queues know tags.
fn java_hash(tag: &str) -> i64 {
    i64::from(tag.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte))))
}
