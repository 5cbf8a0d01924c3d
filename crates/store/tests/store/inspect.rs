//! The store as tools see it: topics, the ends of queues and their entries.

use metaq_store::{Measured, QueueEntry};

use crate::support::*;

#[test]
fn topics_ends_and_lines() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let first = send(&store, "orders", 0, b"one");
    let second = send(&store, "orders", 0, b"three");
    send(&store, "audit", 3, b"x");
    assert_eq!(store.topics().unwrap().into_iter().collect::<Vec<_>>(), ["audit", "orders"]);
    let ends = store.queue_ends();
    assert_eq!((ends["orders"][&0], ends["audit"][&3]), (2, 1));
    let size = |from: i64, until: i64| i32::try_from(until - from).unwrap();
    let lines = [
        QueueEntry {
            physical_offset: first.physical_offset,
            size: size(first.physical_offset, first.end_offset),
            tag_code: 0,
        },
        QueueEntry {
            physical_offset: second.physical_offset,
            size: size(second.physical_offset, second.end_offset),
            tag_code: 0,
        },
    ];
    assert_eq!(store.queue_entries("orders", 0, 0, 10), lines);
    assert_eq!(
        store.queue_entries("orders", 0, -5, 1),
        lines[..1],
        "what lies before the queue is not made up"
    );
    assert_eq!(store.queue_entries("orders", 0, 2, 10), []);
    assert_eq!(store.queue_entries("nowhere", 0, 0, 10), []);
}

#[test]
fn a_part_of_a_queue_is_measured_up_to_a_number_of_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    let sent: Vec<_> =
        (1..=2_500_usize).map(|number| send(&store, "orders", 0, &[b'x'; 3][..number % 4])).collect();
    let size = |number: usize| sent[number].end_offset - sent[number].physical_offset;
    let measure = |from, to, bytes_max| store.measure("orders", 0, from, to, bytes_max);
    let all: i64 = (0..2_500).map(size).sum();
    let whole = measure(0, 2_500, i64::MAX);
    assert_eq!((whole.end_offset, whole.bytes, whole.before_physical_offset), (2_500, all, None));
    assert_eq!(whole.last_physical_offset, Some(sent[2_499].physical_offset));
    let three = size(10) + size(11) + size(12);
    let part = Measured {
        end_offset: 13,
        bytes: three,
        before_physical_offset: Some(sent[9].physical_offset),
        last_physical_offset: Some(sent[12].physical_offset),
    };
    assert_eq!(measure(10, 2_500, three), part);
    assert_eq!(measure(10, 13, i64::MAX), part);
    assert_eq!(measure(10, 2_500, three - 1).end_offset, 12);
    assert_eq!(
        measure(10, 2_500, 0),
        Measured { end_offset: 10, bytes: 0, last_physical_offset: None, ..part }
    );
    let beyond = measure(2_500, 9_000, i64::MAX);
    assert_eq!((beyond.end_offset, beyond.bytes), (2_500, 0));
    assert_eq!(beyond.before_physical_offset, Some(sent[2_499].physical_offset));
    assert_eq!(
        store.measure("nowhere", 0, 7, 9, i64::MAX),
        Measured { end_offset: 7, ..Measured::default() }
    );
}

#[test]
fn a_topic_that_nobody_has_touched_since_the_start_is_known_but_not_counted() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    send(&store, "orders", 0, b"one");
    store.close().unwrap();
    drop(store);
    let store = open(&small(directory.path()));
    assert!(store.topics().unwrap().contains("orders"));
    assert_eq!(store.queue_ends().get("orders"), None);
    store.delete_topic("orders").unwrap();
    assert!(!store.topics().unwrap().contains("orders"));
}
