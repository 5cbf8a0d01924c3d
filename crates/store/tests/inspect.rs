//! What tools look at: topics, the ends of queues and their lines.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use metaq_store::QueueEntry;
use support::*;

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
