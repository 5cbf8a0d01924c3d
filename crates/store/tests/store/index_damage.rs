//! A key index whose files change, go back in time or disappear: no query misses a message because of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metaq_store::{Store, StoreError, StoreSettings};

use crate::support::*;

const RECORDS: usize = 150;

/// Files of 40 entries: three and a part of a fourth.
fn fill(store: &Store, from: usize, count: usize) {
    for number in from..from + count {
        let properties = format!("KEYS\u{1}key-{number}\u{2}");
        store.append(&record("t", 0, format!("body {number}").as_bytes(), &properties)).unwrap();
    }
    confirm(store, store.end_offset());
    eventually("it is indexed", || figure(store, "indexed_offset") >= store.end_offset());
}

fn missed(store: &Store, count: usize) -> Vec<usize> {
    let finds = |number: usize| {
        let found = store.query_all("t", &format!("key-{number}"), 10, 0, i64::MAX);
        found.is_ok_and(|found| found.records.len() == 1)
    };
    (0..count).filter(|number| !finds(*number)).collect()
}

fn index_files(settings: &StoreSettings) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(settings.directory.join("index")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn rebuilt(store: &Store) -> i64 {
    figure(store, "rebuilt_index_files")
}

/// Writes into the same file, which the store may have mapped.
fn overwrite(path: &Path, content: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(content, 0).unwrap();
}

/// A change of the index files; it also gets older copies.
type Change = fn(&[PathBuf], &[Vec<u8>]);

/// Each change of the second file or the last one, or of all of them.
fn changes() -> Vec<(&'static str, Change)> {
    fn change(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(path).unwrap();
        edit(&mut bytes);
        overwrite(path, &bytes);
    }
    vec![
        ("slots are zeroed", |files, _| change(&files[1], |bytes| bytes[40..240].fill(0))),
        ("entries are zeroed", |files, _| change(&files[1], |bytes| bytes[300..812].fill(0))),
        ("a hash flips", |files, _| change(&files[1], |bytes| bytes[240 + 20 * 7 + 2] ^= 4)),
        ("an offset flips", |files, _| change(&files[1], |bytes| bytes[240 + 20 * 7 + 11] ^= 4)),
        ("a link flips", |files, _| change(&files[1], |bytes| bytes[240 + 20 * 30 + 19] ^= 1)),
        ("blocks are swapped", |files, _| {
            change(&files[1], |bytes| {
                let (low, high) = bytes.split_at_mut(500);
                low[300..400].swap_with_slice(&mut high[..100]);
            });
        }),
        ("the header is nonsense", |files, _| change(&files[1], |bytes| bytes[..40].fill(0x77))),
        ("the last file is older", |files, older| overwrite(files.last().unwrap(), &older[0])),
        ("a file is cut", |files, _| {
            fs::OpenOptions::new().write(true).open(&files[1]).unwrap().set_len(300).unwrap();
        }),
        ("the first file is missing", |files, _| fs::remove_file(&files[0]).unwrap()),
        ("a file is missing", |files, _| fs::remove_file(&files[1]).unwrap()),
        ("the last file is missing", |files, _| fs::remove_file(files.last().unwrap()).unwrap()),
        ("the folder is missing", |files, _| fs::remove_dir_all(files[0].parent().unwrap()).unwrap()),
    ]
}

/// Indexes that a kill leaves behind, and those of an orderly stop.
#[test]
fn a_start_finds_a_damaged_index_and_makes_it_again() {
    for (what, damage) in changes() {
        for is_killed in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let settings = small(directory.path());
            let store = open(&settings);
            fill(&store, 0, RECORDS - 10);
            let older = vec![fs::read(index_files(&settings).last().unwrap()).unwrap()];
            fill(&store, RECORDS - 10, 10);
            assert_eq!(missed(&store, RECORDS), Vec::<usize>::new());
            if !is_killed {
                store.close().unwrap();
            }
            drop(store);
            damage(&index_files(&settings), &older);
            let store = open(&settings);
            eventually(what, || missed(&store, RECORDS).is_empty());
            fill(&store, RECORDS, 10);
            assert_eq!(missed(&store, RECORDS + 10), Vec::<usize>::new(), "{what}");
            store.close().unwrap();
        }
    }
}

#[test]
fn a_query_that_meets_damage_waits_for_the_index_or_fails() {
    for (what, damage) in changes() {
        let directory = tempfile::tempdir().unwrap();
        let settings = small(directory.path());
        let store = open(&settings);
        fill(&store, 0, RECORDS - 10);
        let older = vec![fs::read(index_files(&settings).last().unwrap()).unwrap()];
        fill(&store, RECORDS - 10, 10);
        damage(&index_files(&settings), &older);
        for number in 0..RECORDS {
            match store.query_all("t", &format!("key-{number}"), 10, 0, i64::MAX) {
                Ok(found) => assert_eq!(found.records.len(), 1, "{what}: key-{number} is missed silently"),
                Err(StoreError::IndexIncomplete { .. }) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
        eventually(what, || missed(&store, RECORDS).is_empty());
        fill(&store, RECORDS, 60);
        assert_eq!(missed(&store, RECORDS + 60), Vec::<usize>::new(), "{what}");
        store.close().unwrap();
    }
}

fn scrub(store: &Store) {
    let mut at = store.start_offset();
    while let Some(part) = store.scrub(at, 4_096).unwrap() {
        at = part.next_offset;
    }
}

#[test]
fn the_scrub_finds_changed_bytes_that_no_query_meets() {
    for (what, damage) in changes().into_iter().take(7) {
        let directory = tempfile::tempdir().unwrap();
        let settings = small(directory.path());
        let store = open(&settings);
        fill(&store, 0, RECORDS);
        scrub(&store);
        assert_eq!(rebuilt(&store), 0, "no false alarm");
        damage(&index_files(&settings), &[]);
        scrub(&store);
        eventually(what, || rebuilt(&store) > 0 && figure(&store, "indexed_offset") >= store.end_offset());
        assert_eq!(missed(&store, RECORDS), Vec::<usize>::new(), "{what}");
        assert!(store.take_reports().iter().any(|line| line.contains("key index")));
        let before = rebuilt(&store);
        scrub(&store);
        scrub(&store);
        assert_eq!(rebuilt(&store), before, "{what}: it is right again");
        store.close().unwrap();
    }
}

/// The chains of the file are sound, but what its entries say is not.
#[test]
fn the_scrub_compares_entries_with_records() {
    for at in [9, 11, 14, 15] {
        let directory = tempfile::tempdir().unwrap();
        let settings = small(directory.path());
        let store = open(&settings);
        fill(&store, 0, RECORDS);
        store.close().unwrap();
        drop(store);
        flip(&index_files(&settings)[1], 240 + 20 * 8 + at, 1);
        let store = open(&settings);
        eventually("the start has looked", || missed(&store, 1).is_empty());
        scrub(&store);
        eventually("it is found", || rebuilt(&store) > 0);
        eventually("it is right", || missed(&store, RECORDS).is_empty());
        store.close().unwrap();
    }
}

#[test]
fn a_sound_index_is_never_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let mut sent = 0;
    for round in 0..8 {
        let store = open(&settings);
        fill(&store, sent, 33);
        sent += 33;
        scrub(&store);
        assert_eq!(missed(&store, sent), Vec::<usize>::new());
        assert_eq!(rebuilt(&store), 0);
        assert!(!store.take_reports().iter().any(|line| line.contains("index")));
        if round % 2 == 0 {
            store.close().unwrap();
        }
    }
}

#[test]
fn a_scrub_beside_appends_raises_no_alarm() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    std::thread::scope(|scope| {
        let reader = Arc::clone(&store);
        scope.spawn(move || {
            for _ in 0..20 {
                scrub(&reader);
            }
        });
        for part in 0..10 {
            fill(&store, part * 30, 30);
        }
    });
    assert_eq!((rebuilt(&store), missed(&store, 300)), (0, vec![]));
}
