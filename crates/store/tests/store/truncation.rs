//! A log that is cut, or begun anew elsewhere, as a replica does when its log is not its master's.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use metaq_store::faulty_disk::{Call, Fault, FaultyDisk};
use metaq_store::{Disk, Store, StoreError, StoreSettings, SystemDisk, Truncation, truncate};

use crate::support::*;

const TOPICS: [&str; 2] = ["a", "b"];
const RECORDS: usize = 60;

fn body(number: usize) -> Vec<u8> {
    format!("{number:03}").repeat(1 + number * 37 % 300).into_bytes()
}

/// Appends records with a key each, over several files, and returns where each of them ends.
fn fill(store: &Store, numbers: std::ops::Range<usize>) -> Vec<i64> {
    let ends = numbers.map(|number| {
        let properties = format!("KEYS\u{1}k{number}\u{2}");
        let body = body(number);
        let new = record(TOPICS[number % 2], (number % 3) as i32, &body, &properties);
        store.append(&new).unwrap().end_offset
    });
    let ends = ends.collect();
    confirm(store, store.end_offset());
    ends
}

/// The records of every queue, by queue offset.
type Contents = Vec<Vec<(i64, Vec<u8>)>>;

fn contents(store: &Store) -> Contents {
    let queues = TOPICS.iter().flat_map(|topic| (0..3).map(move |queue_id| (*topic, queue_id)));
    queues.map(|(topic, queue_id)| read_all(store, topic, queue_id)).collect()
}

fn has_key(store: &Store, number: usize) -> bool {
    !store.query(TOPICS[number % 2], &format!("k{number}"), 8, 0, i64::MAX).records.is_empty()
}

fn until_indexed(store: &Store) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while figure(store, "indexed_offset") < store.end_offset() {
        assert!(std::time::Instant::now() < deadline, "the index follows");
        std::thread::yield_now();
    }
}

/// The content of a store that never had more than the first `count` records.
fn expected(directory: &Path, count: usize) -> (i64, Contents) {
    let store = open(&small(directory));
    fill(&store, 0..count);
    (store.end_offset(), contents(&store))
}

fn system() -> Arc<dyn Disk> {
    Arc::new(SystemDisk)
}

fn cut(settings: &StoreSettings, end_offset: i64) {
    truncate(settings, &system(), Truncation::CutAt(end_offset)).unwrap();
}

#[test]
fn a_log_is_cut_at_any_record_and_continues_differently() {
    for kept in [0, 1, 2, 7, 30, 31, RECORDS - 1, RECORDS] {
        for is_closed in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let settings = small(&directory.path().join("store"));
            let store = open(&settings);
            let ends = fill(&store, 0..RECORDS);
            until_indexed(&store);
            if is_closed {
                store.close().unwrap();
            }
            drop(store);
            let end = kept.checked_sub(1).map_or(0, |last| ends[last]);
            cut(&settings, end);

            let store = open(&settings);
            let wanted = expected(&directory.path().join("reference"), kept);
            assert_eq!((store.end_offset(), contents(&store)), wanted, "{kept} kept, closed: {is_closed}");
            until_indexed(&store);
            let found: Vec<bool> = (0..RECORDS).map(|number| has_key(&store, number)).collect();
            assert_eq!(found, (0..RECORDS).map(|number| number < kept).collect::<Vec<_>>(), "{kept} kept");
            assert_eq!(figure(&store, "damaged_records"), 0);

            // Other records take the place of those that were cut, and nothing of these comes back.
            fill(&store, 100..120);
            let after = (store.end_offset(), contents(&store));
            drop(store);
            let store = open(&settings);
            assert_eq!((store.end_offset(), contents(&store)), after, "{kept} kept, after a kill");
        }
    }
}

#[test]
fn the_tail_is_kept_aside() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let ends = fill(&store, 0..RECORDS);
    store.close().unwrap();
    drop(store);
    cut(&settings, ends[10]);
    let aside: u64 = std::fs::read_dir(directory.path().join("cut"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(aside >= (ends[RECORDS - 1] - ends[10]) as u64, "{aside} bytes are kept");
}

#[test]
fn an_open_store_is_not_cut() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let refused = truncate(&settings, &system(), Truncation::CutAt(0));
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    drop(store);
}

/// Whatever call fails, the next start has either the whole log or exactly the cut one, and a second attempt succeeds.
#[test]
fn a_cut_that_is_interrupted_is_finished_by_the_next_start() {
    let calls = [
        Call::Write,
        Call::SyncData,
        Call::SyncDirectory,
        Call::Rename,
        Call::Zero,
        Call::RemoveFile,
        Call::Create,
        Call::Open,
    ];
    let kept = 20;
    for wanted in ["cut", "start over"] {
        for call in calls {
            for after in 0.. {
                let directory = tempfile::tempdir().unwrap();
                let settings = small(&directory.path().join("store"));
                let store = open(&settings);
                let ends = fill(&store, 0..RECORDS);
                let whole = (store.end_offset(), contents(&store));
                store.close().unwrap();
                drop(store);
                let truncation = match wanted {
                    "cut" => Truncation::CutAt(ends[kept - 1]),
                    _ => Truncation::StartOverAt(64 * KIB as i64),
                };
                let faulty = Arc::new(FaultyDisk::default());
                faulty.add(Fault { call, path_part: "", kind: ErrorKind::Other, after, times: u64::MAX });
                let disk: Arc<dyn Disk> = Arc::clone(&faulty) as Arc<dyn Disk>;
                let outcome = truncate(&settings, &disk, truncation);

                let store = open(&settings);
                let found = (store.end_offset(), contents(&store));
                let done = match wanted {
                    "cut" => expected(&directory.path().join("reference"), kept),
                    _ => (64 * KIB as i64, vec![Vec::new(); 6]),
                };
                let what = format!("{wanted}: {call:?} number {after}, {outcome:?}");
                assert!(found == done || (outcome.is_err() && found == whole), "{what}: {}", found.0);
                drop(store);
                truncate(&settings, &system(), truncation).unwrap();
                let store = open(&settings);
                assert_eq!((store.end_offset(), contents(&store)), done, "{what}, tried again");
                if outcome.is_ok() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_store_starts_over_where_another_log_begins() {
    let directory = tempfile::tempdir().unwrap();
    let source_settings = small(&directory.path().join("source"));
    let source = open(&source_settings);
    fill(&source, 0..RECORDS);
    let begin = source_settings.commit_log_file_bytes as i64;

    let settings = small(&directory.path().join("copy"));
    let copy = open(&settings);
    fill(&copy, 200..210);
    drop(copy);
    truncate(&settings, &system(), Truncation::StartOverAt(begin)).unwrap();
    for _ in 0..2 {
        let copy = open(&settings);
        assert_eq!((copy.start_offset(), copy.end_offset().min(begin)), (begin, begin));
        while let Some(bytes) = source.raw_bytes(copy.end_offset(), 5_000) {
            copy.append_raw(copy.end_offset(), &bytes).unwrap();
        }
        confirm(&copy, copy.end_offset());
        assert_eq!(copy.end_offset(), source.end_offset());
        for (of_copy, of_source) in contents(&copy).iter().zip(contents(&source)) {
            let first = of_copy.first().map_or(i64::MAX, |(queue_offset, _)| *queue_offset);
            let expected: Vec<_> = of_source.into_iter().filter(|(at, _)| *at >= first).collect();
            assert_eq!(*of_copy, expected);
            assert!(!expected.is_empty());
        }
        assert_eq!(figure(&copy, "damaged_records"), 0);
    }
}
