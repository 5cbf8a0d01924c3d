//! Appending and reading back: what every caller sees.

use std::sync::Arc;

use metaq_store::{Clock, Filter, GetStatus, Store, StoreError, StoreSettings, SystemDisk};
use metaq_wire::{Record, tag_code};

use crate::support::*;

#[test]
fn records_come_back_in_order_across_files() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let mut last_end = 0;
    for number in 0..500_i32 {
        let body = number.to_string().repeat(20);
        let appended = send(&store, "orders", number % 3, body.as_bytes());
        assert_eq!(appended.queue_offset, i64::from(number / 3));
        assert!(appended.physical_offset >= last_end);
        last_end = appended.end_offset;
    }
    assert!(figure(&store, "commit_log_files") >= 5);
    for queue_id in 0..3 {
        let expected: Vec<Vec<u8>> = (0..500)
            .filter(|number| number % 3 == queue_id)
            .map(|number| number.to_string().repeat(20).into_bytes())
            .collect();
        assert_eq!(bodies(&store, "orders", queue_id), expected);
    }
    assert_eq!(store.queue_ids("orders"), [0, 1, 2]);
    assert_eq!(store.queue_ids("unknown"), [0; 0]);
}

#[test]
fn every_status_of_a_pull() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let get = |queue_offset| store.get("t", 0, queue_offset, 32, 1 << 20, &Filter::All);
    assert_eq!(get(0).status, GetStatus::NoQueue);
    store.append(&record("t", 0, b"a", "")).unwrap();
    assert_eq!(get(0).status, GetStatus::EmptyQueue, "appended, not yet dispatched");
    store.dispatch();
    let got = get(0);
    assert_eq!((got.status, got.next_offset, got.min_offset, got.max_offset), (GetStatus::Found, 1, 0, 1));
    assert_eq!((got.count, got.slices.len()), (1, 1));
    assert_eq!(get(1).status, GetStatus::AtEnd);
    let got = get(9);
    assert_eq!((got.status, got.next_offset), (GetStatus::PastEnd, 1));
    assert_eq!(get(-1).status, GetStatus::BeforeStart);
}

#[test]
fn a_pull_is_bounded_but_never_empty_handed() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    for _ in 0..10 {
        send(&store, "t", 0, &[b'x'; 500]);
    }
    let got = store.get("t", 0, 0, 4, 1 << 20, &Filter::All);
    assert_eq!((got.count, got.next_offset, got.slices.len()), (4, 4, 1), "neighbours share a slice");
    let got = store.get("t", 0, 0, 32, 1_300, &Filter::All);
    assert_eq!(got.count, 2);
    let got = store.get("t", 0, 0, 32, 1, &Filter::All);
    assert_eq!(got.count, 1, "one record always");
    assert_eq!(got.bytes, got.slices.iter().map(|slice| slice.len()).sum::<usize>());
}

#[test]
fn tags_filter_and_the_scan_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    for number in 0..2_000 {
        let properties = if number % 1_000 == 999 { "TAGS\u{1}rare\u{2}" } else { "TAGS\u{1}often\u{2}" };
        store.append(&record("t", 0, b"x", properties)).unwrap();
    }
    confirm(&store, store.end_offset());
    let rare = Filter::Tags(vec![tag_code("rare")].into());
    let got = store.get("t", 0, 0, 32, 1 << 20, &rare);
    assert_eq!((got.status, got.next_offset), (GetStatus::NoMatch, 800));
    let got = store.get("t", 0, 800, 32, 1 << 20, &rare);
    assert_eq!((got.status, got.count, got.next_offset), (GetStatus::Found, 1, 1_600));
    let got = store.get("t", 0, 0, 10, 1 << 20, &Filter::Tags(vec![tag_code("often")].into()));
    assert_eq!((got.count, got.next_offset), (10, 10));
}

#[test]
fn halves_of_a_transaction_stay_out_of_the_queues() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    send(&store, "t", 0, b"first");
    for system_flag in [4, 12] {
        let mut half = record("t", 0, b"half", "");
        half.system_flag = system_flag;
        let appended = store.append(&half).unwrap();
        assert_eq!(appended.queue_offset, 0);
        store.dispatch();
        let stored = store.record_at(appended.physical_offset).unwrap();
        assert_eq!(Record::decode(&stored).unwrap().queue_offset, 0);
    }
    let mut committed = record("t", 0, b"second", "");
    committed.system_flag = 8;
    assert_eq!(store.append(&committed).unwrap().queue_offset, 1);
    store.dispatch();
    assert_eq!(bodies(&store, "t", 0), [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn a_batch_is_contiguous_and_may_span_files() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    send(&store, "t", 1, b"before");
    let body = [b'b'; 700];
    let records = vec![record("t", 1, &body, ""); 60];
    let batch = store.append_batch(&records).unwrap();
    store.dispatch();
    assert_eq!(batch.first.queue_offset, 1);
    assert_eq!(batch.physical_offsets.len(), 60);
    assert_eq!(batch.first.physical_offset, batch.physical_offsets[0]);
    assert!(figure(&store, "commit_log_files") >= 3);
    let read = read_all(&store, "t", 1);
    assert_eq!(read.len(), 61);
    assert!(read.iter().enumerate().all(|(place, (queue_offset, _))| place as i64 == *queue_offset));
    assert!(matches!(store.append_batch(&[]), Err(StoreError::EmptyBatch)));
    let mixed = [record("t", 1, b"x", ""), record("t", 2, b"x", "")];
    assert!(matches!(store.append_batch(&mixed), Err(StoreError::MixedBatch)));
    store.close().unwrap();
    assert_eq!(read_all(&open(&settings), "t", 1).len(), 61);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let large = vec![0; 17 * 1024];
    assert!(matches!(store.append(&record("t", 0, &large, "")), Err(StoreError::TooLarge { .. })));
    for topic in ["", ".", "..", "a/b", "../up"] {
        assert!(store.append(&record(topic, 0, b"x", "")).is_err(), "{topic:?}");
        assert_eq!(store.get(topic, 0, 0, 1, 1, &Filter::All).status, GetStatus::NoQueue);
        assert!(store.queue_ids(topic).is_empty());
    }
    assert!(matches!(store.append(&record("t", -1, b"x", "")), Err(StoreError::BadQueue(-1))));
    assert_eq!(figure(&store, "commit_log_max_offset"), 0);
    // A long topic name needs the second version of the record layout.
    let topic = "r".repeat(200);
    send(&store, &topic, 0, b"long");
    assert_eq!(bodies(&store, &topic, 0), [b"long".to_vec()]);
}

#[test]
fn store_time_never_runs_backwards_and_can_be_searched() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_000_000);
    let store = Store::open(small(directory.path()), clock.clone(), Arc::new(SystemDisk)).unwrap();
    // Offsets 0..10 stored at 1000000, 1000010, …, one of them after the clock was set back.
    for number in 0..10 {
        send(&store, "t", 0, b"x");
        clock.advance_ms(if number == 4 { -500 } else { 10 });
        if number == 5 {
            clock.advance_ms(510);
        }
    }
    let times: Vec<i64> = (0..10).map(|at| store.store_time("t", 0, at).unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(store.store_time("t", 0, 10), None);
    for (at, time) in times.iter().enumerate() {
        let first = times.iter().position(|other| other == time).unwrap() as i64;
        let last = times.iter().rposition(|other| other == time).unwrap() as i64;
        assert_eq!(store.search_offset("t", 0, *time, false), first, "lower at {at}");
        assert_eq!(store.search_offset("t", 0, *time, true), last, "upper at {at}");
    }
    assert_eq!(store.search_offset("t", 0, 0, false), 0);
    assert_eq!(store.search_offset("t", 0, 0, true), 0);
    assert_eq!(store.search_offset("t", 0, i64::MAX, false), 10);
    assert_eq!(store.search_offset("t", 0, i64::MAX, true), 9);
    assert_eq!(store.search_offset("none", 0, 5, false), 0);
    assert!(store.in_memory("t", 0, 0));
}

#[test]
fn keys_find_records_newest_first_within_the_time_range() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_000_000);
    let settings = small(directory.path());
    let store = Store::open(settings.clone(), clock.clone(), Arc::new(SystemDisk)).unwrap();
    for number in 0..100 {
        let properties = format!("UNIQ_KEY\u{1}id{number}\u{2}KEYS\u{1}even{} all\u{2}", number % 2);
        store.append(&record("t", 0, number.to_string().as_bytes(), &properties)).unwrap();
        clock.advance_ms(1_000);
    }
    store.dispatch();
    let end = figure(&store, "commit_log_max_offset");
    eventually("the index", || figure(&store, "indexed_offset") == end);
    let check = |store: &Store| {
        let bodies = |key: &str, count_max, begin, end| -> Vec<String> {
            let result = store.query("t", key, count_max, begin, end);
            let body = |bytes: &bytes::Bytes| {
                String::from_utf8(Record::decode(bytes).unwrap().body.to_vec()).unwrap()
            };
            result.records.iter().map(body).collect()
        };
        assert_eq!(bodies("id42", 10, 0, i64::MAX), ["42"]);
        assert_eq!(bodies("all", 3, 0, i64::MAX), ["99", "98", "97"]);
        assert_eq!(bodies("even1", 64, 1_010_000, 1_015_000), ["15", "13", "11"]);
        assert_eq!(bodies("id42", 10, 0, 1_000_000), [""; 0]);
        assert_eq!(bodies("nothing", 10, 0, i64::MAX), [""; 0]);
        assert_eq!(store.query("other", "id42", 10, 0, i64::MAX).records.len(), 0);
    };
    check(&store);
    store.close().unwrap();
    drop(store);
    // Several small index files, read again from the disk.
    assert!(std::fs::read_dir(directory.path().join("index")).unwrap().count() > 2);
    check(&Store::open(settings, clock, Arc::new(SystemDisk)).unwrap());
}

#[test]
fn a_deleted_topic_starts_again_at_zero() {
    let directory = tempfile::tempdir().unwrap();
    let settings = synced(directory.path());
    let store = open(&settings);
    for _ in 0..40 {
        send(&store, "gone", 0, b"old");
        send(&store, "kept", 0, b"kept");
    }
    store.delete_topic("gone").unwrap();
    assert!(!directory.path().join("consumequeue/gone").exists());
    assert_eq!(store.max_offset("gone", 0), 0);
    assert_eq!(store.queue_ids("gone"), [0; 0]);
    assert_eq!(send(&store, "gone", 0, b"new").queue_offset, 0);
    assert_eq!(bodies(&store, "gone", 0), [b"new".to_vec()]);
    drop(store);
    let store = open(&settings);
    assert_eq!(bodies(&store, "gone", 0), [b"new".to_vec()]);
    assert_eq!(bodies(&store, "kept", 0).len(), 40);
    drop(store);
    // They stay gone when the queues are rebuilt from the log, which still has the old records.
    std::fs::remove_dir_all(directory.path().join("consumequeue")).unwrap();
    let store = open(&settings);
    assert_eq!(bodies(&store, "gone", 0), [b"new".to_vec()]);
    assert_eq!(bodies(&store, "kept", 0).len(), 40);
}

#[test]
fn one_process_at_a_time_and_closing_is_final() {
    let directory = tempfile::tempdir().unwrap();
    let settings = synced(directory.path());
    let store = open(&settings);
    match Store::open(settings.clone(), Clock::system(), Arc::new(SystemDisk)) {
        Err(StoreError::Locked { path }) => assert!(path.ends_with("lock")),
        other => panic!("a second store opened: {:?}", other.err()),
    }
    let appended = send(&store, "t", 0, b"x");
    assert!(directory.path().join("abort").exists());
    store.close().unwrap();
    store.close().unwrap();
    assert!(!directory.path().join("abort").exists());
    assert!(store.confirmed_offset() >= appended.end_offset);
    assert!(matches!(store.append(&record("t", 0, b"x", "")), Err(StoreError::Closed)));
    assert_eq!(bodies(&store, "t", 0).len(), 1, "reading goes on");
    drop(store);
    open(&settings);
}

#[test]
fn parts_handed_out_outlive_their_file() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let clock = Clock::manual(1_000_000);
    let store = Store::open(settings.clone(), clock.clone(), Arc::new(SystemDisk)).unwrap();
    for _ in 0..100 {
        send(&store, "t", 0, &[b'z'; 900]);
    }
    let held = store.get("t", 0, 0, 5, 1 << 20, &Filter::All);
    clock.advance_ms(200 * 3_600_000);
    send(&store, "t", 0, b"young");
    assert!(store.clean(true).unwrap() > 0);
    assert_eq!(store.get("t", 0, 0, 5, 1 << 20, &Filter::All).status, GetStatus::BeforeStart);
    assert_eq!(Record::decode(&held.slices[0]).unwrap().body, [b'z'; 900]);
}

#[test]
fn a_fresh_store_takes_little_room() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let store = open(&metaq_store::StoreSettings::new(directory.path()));
    for queue_id in 0..64 {
        store.append(&record("t", queue_id, b"x", "KEYS\u{1}k\u{2}")).unwrap();
    }
    store.dispatch();
    store.close().unwrap();
    fn blocks(path: &std::path::Path) -> u64 {
        let metadata = std::fs::symlink_metadata(path).unwrap();
        let children: u64 = match std::fs::read_dir(path) {
            Ok(entries) => entries.map(|entry| blocks(&entry.unwrap().path())).sum(),
            Err(_) => 0,
        };
        metadata.blocks() * 512 + children
    }
    assert!(blocks(directory.path()) < 100_000_000, "{} bytes", blocks(directory.path()));
}

#[test]
fn a_query_reads_only_records_of_its_time_and_ends_at_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_000_000);
    // One index file for all of them.
    let settings = StoreSettings { index_entries: 2_000, ..small(directory.path()) };
    let store = Store::open(settings.clone(), clock.clone(), Arc::new(SystemDisk)).unwrap();
    for number in 0..1_000 {
        store.append(&record("t", 0, number.to_string().as_bytes(), "KEYS\u{1}same\u{2}")).unwrap();
        clock.advance_ms(if number == 499 { 100_000 } else { 10 });
    }
    store.dispatch();
    let end = figure(&store, "commit_log_max_offset");
    eventually("the index", || figure(&store, "indexed_offset") == end);
    // In the pause between the two halves nothing was stored.
    let none = store.query("t", "same", 64, 1_010_000, 1_100_000);
    assert_eq!((none.records.len(), none.examined_entries, none.is_cut_short), (0, 1_000, false));
    let early = store.query("t", "same", 64, 1_000_000, 1_000_095);
    assert_eq!(early.records.len(), 10);
    assert!(early.examined_entries < 1_000 + 101 * 64, "{}: only one second is read", early.examined_entries);
    store.close().unwrap();
    drop(store);
    let limited = StoreSettings { query_entries_max: 300, ..settings };
    let store = Store::open(limited, clock, Arc::new(SystemDisk)).unwrap();
    let newest = store.query("t", "same", 2, 0, i64::MAX);
    assert_eq!((newest.records.len(), newest.is_cut_short), (2, false));
    let some = store.query("t", "same", 64, 0, i64::MAX);
    assert!(some.is_cut_short && (1..=5).contains(&some.records.len()), "what it has found until then");
    let none = store.query("t", "same", 64, 1_000_000, 1_000_095);
    assert_eq!((none.records.len(), none.examined_entries, none.is_cut_short), (0, 300, true));
}

#[test]
fn a_query_finds_what_was_confirmed_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    for number in 0..50 {
        let properties = format!("UNIQ_KEY\u{1}id{number}\u{2}");
        let appended = store.append(&record("t", 0, b"body", &properties)).unwrap();
        confirm(&store, appended.end_offset);
        let found = store.query("t", &format!("id{number}"), 1, 0, i64::MAX);
        assert_eq!(found.records.len(), 1, "id{number}");
    }
}

#[test]
fn a_query_returns_no_more_bytes_than_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { query_bytes_max: 10_000, ..small(directory.path()) };
    let store = Store::open(settings, Clock::manual(1_000_000), Arc::new(SystemDisk)).unwrap();
    for (key, body_bytes) in
        [("large", 11_000), ("some", 3_000), ("some", 3_000), ("some", 3_000), ("some", 3_000)]
    {
        store.append(&record("t", 0, &vec![7; body_bytes], &format!("KEYS\u{1}{key}\u{2}"))).unwrap();
    }
    store.dispatch();
    let end = figure(&store, "commit_log_max_offset");
    eventually("the index", || figure(&store, "indexed_offset") == end);
    let some = store.query("t", "some", 64, 0, i64::MAX);
    assert_eq!((some.records.len(), some.is_cut_short), (3, true));
    assert_eq!(store.query("t", "large", 64, 0, i64::MAX).records.len(), 1, "one comes whatever its size");
}

#[test]
fn the_image_of_a_record_in_a_body_is_not_served() {
    let directory = tempfile::tempdir().unwrap();
    let settings = StoreSettings { commit_log_file_bytes: 1 << 20, ..small(directory.path()) };
    let store = open(&settings);
    let mut genuine = vec![send(&store, "t", 0, b"first"), send(&store, "other", 0, b"second")];
    let mut forged = Vec::new();
    for queue_offset in [0, 1, 2, 1_000] {
        for topic in ["t", "other", "nowhere"] {
            let image = record(topic, 0, b"forged", "A\u{1}b\u{2}");
            // Behind the body come the topic and the properties, with their lengths.
            let outer = record("t", 0, b"", "A\u{1}b\u{2}");
            let body_at = store.end_offset() + (outer.size() - 1 - 1 - 2 - 4) as i64;
            let body = image.encode(queue_offset, body_at, 5).unwrap();
            genuine.push(send(&store, "t", 0, &body));
            forged.push(body_at);
        }
    }
    let check = |store: &Store| {
        for physical_offset in &forged {
            let image = store.record_at(*physical_offset).expect("it looks like a record");
            assert_eq!(Record::decode(&image).unwrap().body, b"forged");
            assert!(store.queued_record_at(*physical_offset).is_none());
        }
        assert!(genuine.iter().all(|sent| store.queued_record_at(sent.physical_offset).is_some()));
        assert!(store.queued_record_at(-1).is_none() && store.queued_record_at(store.end_offset()).is_none());
    };
    check(&store);
    // Now the entries come from files.
    store.close().unwrap();
    drop(store);
    check(&open(&settings));
}
