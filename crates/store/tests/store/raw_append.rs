//! Raw append copies a log: the copy has the same bytes and queues, and refuses bytes that do not fit.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use metaq_store::faulty_disk::{Call, FaultyDisk};
use metaq_store::{Clock, Store, StoreError, StoreSettings};
use metaq_wire::Record;
use proptest::prelude::*;

use crate::support::*;

const TOPICS: [&str; 3] = ["a", "b", "c"];

/// Fills a store with records of all kinds over several files.
fn fill(store: &Store, bodies_bytes: &[usize]) {
    for (number, body_bytes) in bodies_bytes.iter().enumerate() {
        let body = vec![b'0' + (number % 10) as u8; *body_bytes];
        let (topic, queue_id) = (TOPICS[number % 3], (number % 2) as i32);
        let properties = format!("KEYS\u{1}k{number}\u{2}TAGS\u{1}t\u{2}");
        let mut new = record(topic, queue_id, &body, &properties);
        match number % 7 {
            3 => {
                store.append_batch(&vec![new; 4]).unwrap();
            }
            5 => {
                // A half message, which is in no queue.
                new.system_flag = 4;
                store.append(&new).unwrap();
            }
            _ => {
                store.append(&new).unwrap();
            }
        }
    }
    confirm(store, store.end_offset());
}

/// The bytes of the log from its first file to its end.
fn log_bytes(settings: &StoreSettings, end: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut names: Vec<_> = fs::read_dir(settings.directory.join("commitlog"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    names.iter().for_each(|path| bytes.extend(fs::read(path).unwrap()));
    bytes.truncate(end as usize);
    bytes
}

/// The ends of all records and blanks.
fn ends(store: &Store, settings: &StoreSettings) -> Vec<i64> {
    let file_bytes = settings.commit_log_file_bytes as i64;
    let mut ends: Vec<i64> = (1..=store.end_offset() / file_bytes).map(|file| file * file_bytes).collect();
    store.each_record_from(0, |record| ends.push(record.physical_offset + record.size as i64));
    ends.sort_unstable();
    ends
}

fn assert_equal(source: &Store, copy: &Store) {
    assert_eq!(copy.end_offset(), source.end_offset());
    for topic in TOPICS {
        for queue_id in 0..2 {
            let entries = |store: &Store| store.queue_entries(topic, queue_id, 0, 10_000);
            assert_eq!(entries(copy), entries(source), "{topic} {queue_id}");
            assert_eq!(read_all(copy, topic, queue_id), read_all(source, topic, queue_id));
            let times = |store: &Store| -> Vec<_> {
                (0..store.max_offset(topic, queue_id))
                    .map(|at| store.store_time(topic, queue_id, at))
                    .collect()
            };
            assert_eq!(times(copy), times(source));
        }
    }
    assert_eq!(figure(copy, "damaged_records"), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_copied_log_is_the_same_byte_by_byte(
        bodies_bytes in prop::collection::vec(0..900_usize, 1..120),
        chunk in 1..9_usize,
        sync_flush in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (small(&directory.path().join("from")), small(&directory.path().join("to")));
        let to = StoreSettings { sync_flush, ..to };
        let source = open(&from);
        fill(&source, &bodies_bytes);
        let bytes = log_bytes(&from, source.end_offset());

        let copy = open(&to);
        for end in ends(&source, &from).chunks(chunk).map(|chunk| *chunk.last().unwrap()) {
            let begin = copy.end_offset();
            prop_assert_eq!(copy.append_raw(begin, &bytes[begin as usize..end as usize]).unwrap(), end);
        }
        confirm(&copy, copy.end_offset());
        prop_assert!(log_bytes(&to, copy.end_offset()) == bytes);
        assert_equal(&source, &copy);

        // Opened after a kill, the copy becomes a master: offsets and times continue.
        drop(copy);
        let copy = open(&to);
        assert_equal(&source, &copy);
        let (next, expected) = (send(&copy, "a", 0, b"next"), send(&source, "a", 0, b"next"));
        prop_assert_eq!(next.queue_offset, expected.queue_offset);
        prop_assert_eq!(next.physical_offset, expected.physical_offset);
    }
}

#[test]
fn a_log_goes_on_behind_what_was_copied() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (small(&directory.path().join("from")), small(&directory.path().join("to")));
    let source = Store::open(from.clone(), Clock::manual(9_000), Arc::new(FaultyDisk::new())).unwrap();
    fill(&source, &[10; 12]);
    let bytes = log_bytes(&from, source.end_offset());
    let copy = Store::open(to, Clock::manual(1_000), Arc::new(FaultyDisk::new())).unwrap();
    copy.append_raw(0, &bytes).unwrap();
    let (next, expected) = (send(&copy, "b", 1, b"next"), send(&source, "b", 1, b"next"));
    assert_eq!(next.queue_offset, expected.queue_offset);
    assert_eq!(next.store_timestamp_ms, 9_000, "store times never run backwards");
    assert_equal(&source, &copy);
}

/// A store with two records, the bytes of its log, and the end of the first record.
fn two_records(directory: &Path) -> (Arc<Store>, Vec<u8>, i64) {
    let settings = small(directory);
    let store = open(&settings);
    let first = send(&store, "a", 0, &[b'x'; 50]);
    let second = send(&store, "a", 0, &[b'y'; 50]);
    (store, log_bytes(&settings, second.end_offset), first.end_offset)
}

#[test]
fn only_whole_sound_records_at_the_end_of_the_log_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let (_source, bytes, first_end) = two_records(&directory.path().join("from"));
    let copy = open(&small(&directory.path().join("to")));
    let refusal = |physical_offset: i64, bytes: &[u8]| {
        let end = copy.end_offset();
        let refusal = copy.append_raw(physical_offset, bytes).unwrap_err();
        assert!(matches!(refusal, StoreError::BadRawBytes { .. }), "{refusal}");
        assert_eq!(copy.end_offset(), end, "nothing was appended");
        refusal.to_string()
    };
    let (first, second) = bytes.split_at(first_end as usize);
    assert!(refusal(first_end, second).contains("the log ends at 0"));
    assert!(refusal(-1, first).contains("the log ends at 0"));
    for kept in [1, 4, 7, 20, 90, first.len() - 1] {
        assert!(refusal(0, &first[..kept]).contains("no sound record"), "{kept} bytes");
    }
    refusal(0, second);
    refusal(0, &[0; 200]);
    refusal(0, &[0xFF; 200]);
    let mut forged = first.to_vec();
    forged[95] ^= 1;
    assert!(refusal(0, &forged).contains("no sound record"), "its checksum is wrong");
    // A blank that does not reach the end of the file, and a blank that is cut.
    let blank = |size: u32| [size.to_be_bytes(), metaq_wire::layout::MAGIC_BLANK.to_be_bytes()].concat();
    assert!(refusal(0, &blank(100)).contains("does not fill"));
    assert!(refusal(0, &blank(16 * 1024)).contains("does not fill"));

    assert_eq!(copy.append_raw(0, &[]).unwrap(), 0);
    assert_eq!(copy.append_raw(0, first).unwrap(), first_end);
    refusal(0, first);
    let mut torn = second.to_vec();
    torn.pop();
    refusal(first_end, &torn);
    assert_eq!(copy.append_raw(first_end, second).unwrap(), bytes.len() as i64);
    confirm(&copy, copy.end_offset());
    assert_eq!(bodies(&copy, "a", 0).len(), 2);
}

#[test]
fn sound_records_in_front_of_a_bad_one_stay() {
    let directory = tempfile::tempdir().unwrap();
    let (_source, mut bytes, first_end) = two_records(&directory.path().join("from"));
    bytes[first_end as usize + 95] ^= 1;
    let copy = open(&small(&directory.path().join("to")));
    assert!(
        matches!(copy.append_raw(0, &bytes), Err(StoreError::BadRawBytes { physical_offset, .. }) if physical_offset == first_end)
    );
    assert_eq!(copy.end_offset(), first_end);
    confirm(&copy, first_end);
    assert_eq!(bodies(&copy, "a", 0), [[b'x'; 50]]);
}

#[test]
fn a_flipped_bit_is_refused_or_harmless() {
    let directory = tempfile::tempdir().unwrap();
    let (_source, bytes, first_end) = two_records(&directory.path().join("from"));
    for at in 0..first_end as usize {
        let mut bad = bytes.clone();
        bad[at] ^= 0x40;
        let settings = small(&directory.path().join(format!("to-{at}")));
        let copy = open(&settings);
        let outcome = copy.append_raw(0, &bad);
        let end = copy.end_offset();
        match outcome {
            Ok(reached) => assert_eq!((reached, end), (bytes.len() as i64, reached)),
            Err(_) => assert!([0, first_end].contains(&end), "flip at {at}: ends at {end}"),
        }
        store_ends_in_order(&copy);
        drop(copy);
        fs::remove_dir_all(&settings.directory).unwrap();
    }
}

fn store_ends_in_order(store: &Store) {
    store.dispatch();
    let mut end = 0;
    store.each_record_from(0, |record: &Record<'_>| {
        assert_eq!(record.physical_offset, end);
        end += record.size as i64;
    });
    assert_eq!(end, store.end_offset());
}

#[test]
fn a_record_that_would_cross_the_end_of_a_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (small(&directory.path().join("from")), small(&directory.path().join("to")));
    // The files of the copy are shorter than the files of the source.
    let to = StoreSettings { commit_log_file_bytes: 4 * KIB, ..to };
    let source = open(&from);
    fill(&source, &[700; 12]);
    let copy = open(&to);
    let bytes = log_bytes(&from, source.end_offset());
    let refusal = copy.append_raw(0, &bytes).unwrap_err();
    assert!(refusal.to_string().contains("does not fit"), "{refusal}");
    assert!(copy.end_offset() > 0 && copy.end_offset() < 4 * KIB as i64);
}

#[test]
fn a_closed_or_full_store_takes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (_source, bytes, first_end) = two_records(&directory.path().join("from"));
    let disk = Arc::new(FaultyDisk::new());
    disk.fail(Call::Allocate, "commitlog", ErrorKind::StorageFull);
    let settings = small(&directory.path().join("to"));
    let copy = Store::open(settings, Clock::system(), disk.clone()).unwrap();
    assert!(matches!(copy.append_raw(0, &bytes), Err(StoreError::DiskFull { .. })));
    assert_eq!(copy.end_offset(), 0);
    disk.heal();
    assert_eq!(copy.append_raw(0, &bytes[..first_end as usize]).unwrap(), first_end);
    copy.close().unwrap();
    assert!(matches!(copy.append_raw(first_end, &bytes[first_end as usize..]), Err(StoreError::Closed)));
}
