//! Files of the log that somebody cuts while the store uses them: nobody dies, nothing is acknowledged, and the next
//! start goes on.

use std::fs;

use metaq_store::{Filter, GetStatus, Store, StoreError};

use crate::support::*;

fn cut(settings: &metaq_store::StoreSettings, physical_offset: i64) {
    let (path, position) = locate(settings, physical_offset);
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(position).unwrap();
}

fn fill(store: &Store) -> Vec<i64> {
    (0..40).map(|_| send(store, "t", 0, &[b'x'; 1_000]).physical_offset).collect()
}

#[test]
fn a_read_of_a_cut_file_finds_damage_and_the_store_takes_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let settings = synced(directory.path());
    let store = open(&settings);
    let places = fill(&store);
    assert!(!store.is_log_cut());
    cut(&settings, places[3]);
    let got = store.get("t", 0, 0, 3, 1 << 20, &Filter::All);
    assert_eq!((got.status, got.count), (GetStatus::Found, 3), "the rest of the file is still served");
    // The page at the cut is still there; the next ones are not.
    let _damaged = store.get("t", 0, 3, 20, 1 << 20, &Filter::All);
    assert!(store.is_log_cut());
    eventually("the gate closes", || matches!(store.writable(), Err(StoreError::FailedSync)));
    eventually("the damage is known", || {
        store.known_damage().iter().any(|(from, to)| (*from..*to).contains(&places[3]))
    });
    let late = store.append(&record("t", 0, b"late", ""));
    assert!(matches!(late, Err(StoreError::FailedSync)), "{late:?}");
    let reports = store.take_reports();
    assert!(reports.iter().any(|line| line.contains("another program cut the file")), "{reports:?}");
    assert!(matches!(store.close(), Err(StoreError::FailedSync)));
    drop(store);
    let store = open(&settings);
    assert!(!store.is_log_cut() && store.writable().is_ok());
    assert_eq!(bodies(&store, "t", 0).len() + store.damaged_messages().len(), places.len());
    send(&store, "t", 0, b"again");
    store.close().unwrap();
}

#[test]
fn a_record_that_was_appended_behind_a_cut_is_never_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let settings = synced(directory.path());
    let store = open(&settings);
    let first = send(&store, "t", 0, b"first");
    cut(&settings, first.end_offset);
    let late = store.append(&record("t", 0, &[b'x'; 9_000], ""));
    if let Ok(late) = late {
        store.dispatch();
        assert!(!store.wait_confirmed(late.end_offset, std::time::Duration::from_secs(60)));
    }
    eventually("the gate closes", || matches!(store.writable(), Err(StoreError::FailedSync)));
    assert_eq!(store.confirmed_offset(), first.end_offset);
    drop(store);
    let store = open(&settings);
    assert_eq!(bodies(&store, "t", 0), [b"first"]);
    store.close().unwrap();
}

#[test]
fn the_scrub_finds_a_cut_that_nobody_reads() {
    let directory = tempfile::tempdir().unwrap();
    let settings = synced(directory.path());
    let store = open(&settings);
    fill(&store);
    cut(&settings, 10);
    while store.scrub(store.start_offset(), 4_096).is_ok() {
        assert!(!store.is_log_cut(), "a scrub of a cut file fails");
    }
    assert!(store.is_log_cut());
    eventually("the gate closes", || matches!(store.writable(), Err(StoreError::FailedSync)));
}
