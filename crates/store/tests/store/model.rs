//! Append, read and recovery against a simple model, over random file sizes and random ends.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use metaq_store::{Store, StoreSettings};
use proptest::prelude::*;

use crate::support::*;

/// The length of the properties of every record that `send` makes.
const PROPERTIES_BYTES: i64 = 4;

/// The expected content of the store: bodies per queue, in order.
type Model = BTreeMap<(String, i32), Vec<Vec<u8>>>;

#[derive(Clone, Debug)]
enum Step {
    Append {
        topic: u8,
        queue_id: i32,
        body_bytes: usize,
    },
    Batch {
        topic: u8,
        queue_id: i32,
        count: usize,
        body_bytes: usize,
    },
    Prepared {
        topic: u8,
    },
    CloseAndOpen,
    KillAndOpen,
    /// The consume queues are lost between two runs.
    LoseQueues,
    Read,
    DeleteTopic {
        topic: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..3_u8, 0..3, 0..600_usize)
            .prop_map(|(topic, queue_id, body_bytes)| Step::Append { topic, queue_id, body_bytes }),
        4 => (0..3_u8, 0..3, 1..12_usize, 0..300_usize)
            .prop_map(|(topic, queue_id, count, body_bytes)| Step::Batch { topic, queue_id, count, body_bytes }),
        2 => (0..3_u8).prop_map(|topic| Step::Prepared { topic }),
        1 => Just(Step::CloseAndOpen),
        1 => Just(Step::KillAndOpen),
        1 => Just(Step::LoseQueues),
        2 => Just(Step::Read),
        1 => (0..3_u8).prop_map(|topic| Step::DeleteTopic { topic }),
    ]
}

fn sizes() -> impl Strategy<Value = (u64, u64, u64, u32, u32, bool)> {
    (
        4_096..40_000_u64,
        2..60_u64,
        prop_oneof![Just(4_096_u64), Just(8_192), Just(1 << 20)],
        1..40_u32,
        2..60_u32,
        any::<bool>(),
    )
}

fn settings(directory: &std::path::Path, sizes: (u64, u64, u64, u32, u32, bool)) -> StoreSettings {
    StoreSettings {
        commit_log_file_bytes: sizes.0,
        consume_queue_file_entries: sizes.1,
        allocation_step_bytes: sizes.2,
        index_slots: sizes.3,
        index_entries: sizes.4,
        sync_flush: sizes.5,
        ..small(directory)
    }
}

/// A body that contains its number and is short when printed.
fn body(number: usize, bytes: usize) -> Vec<u8> {
    let mut body = number.to_string().into_bytes();
    body.resize(body.len().max(bytes), b' ');
    body
}

fn short(bodies: &[Vec<u8>]) -> Vec<String> {
    bodies.iter().map(|body| format!("{}/{}", String::from_utf8_lossy(body).trim_end(), body.len())).collect()
}

fn topic_name(topic: u8) -> String {
    format!("topic-{topic}")
}

fn check(store: &Store, model: &Model) {
    for ((topic, queue_id), expected) in model {
        assert_eq!(store.max_offset(topic, *queue_id), expected.len() as i64, "{topic} {queue_id}");
        let read = read_all(store, topic, *queue_id);
        assert!(read.iter().enumerate().all(|(place, (at, _))| place as i64 == *at), "offsets are dense");
        let bodies: Vec<Vec<u8>> = read.into_iter().map(|(_, body)| body).collect();
        assert_eq!(short(&bodies), short(expected), "{topic} {queue_id}");
    }
    assert_eq!(figure(store, "damaged_records"), 0);
}

fn reopen(
    settings: &mut StoreSettings,
    store: Arc<Store>,
    kill: bool,
    lose_queues: bool,
    run: usize,
) -> Arc<Store> {
    if kill {
        // A copy of the running store is the state that a kill leaves.
        let copy = settings.directory.parent().unwrap().join(format!("run-{run}"));
        copy_store(&settings.directory, &copy);
        drop(store);
        fs::remove_dir_all(&settings.directory).unwrap();
        settings.directory = copy;
    } else {
        store.close().unwrap();
    }
    if lose_queues {
        let _ = fs::remove_dir_all(settings.directory.join("consumequeue"));
    }
    open(settings)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_appears(
        sizes in sizes(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let root = tempfile::tempdir().unwrap();
        let mut settings = settings(&root.path().join("run"), sizes);
        let mut store = open(&settings);
        let mut model = Model::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Append { topic, queue_id, body_bytes } => {
                    let topic = topic_name(topic);
                    let body = body(number, body_bytes);
                    let queue = model.entry((topic.clone(), queue_id)).or_default();
                    let appended = send(&store, &topic, queue_id, &body);
                    prop_assert_eq!(appended.queue_offset, queue.len() as i64);
                    queue.push(body);
                }
                Step::Batch { topic, queue_id, count, body_bytes } => {
                    let topic = topic_name(topic);
                    let body = body(number, body_bytes);
                    let queue = model.entry((topic.clone(), queue_id)).or_default();
                    let batch = store.append_batch(&vec![record(&topic, queue_id, &body, "KEYS\u{1}k\u{2}"); count]).unwrap();
                    confirm(&store, batch.end_offset);
                    prop_assert_eq!(batch.first.queue_offset, queue.len() as i64);
                    queue.extend(std::iter::repeat_n(body, count));
                }
                Step::Prepared { topic } => {
                    let topic = topic_name(topic);
                    let mut half = record(&topic, 0, b"half", "");
                    half.system_flag = 4;
                    let appended = store.append(&half).unwrap();
                    confirm(&store, appended.end_offset);
                }
                Step::CloseAndOpen => store = reopen(&mut settings, store, false, false, number),
                Step::KillAndOpen => store = reopen(&mut settings, store, true, false, number),
                Step::LoseQueues => {
                    store = reopen(&mut settings, store, number % 2 == 0, true, number);
                    // The log has the records of deleted topics, but also the deletions.
                    for topic in (0..3).map(topic_name) {
                        for queue_id in store.queue_ids(&topic) {
                            prop_assert!(model.contains_key(&(topic.clone(), queue_id)), "{} is back", topic);
                        }
                    }
                }
                Step::Read => check(&store, &model),
                Step::DeleteTopic { topic } => {
                    let topic = topic_name(topic);
                    store.delete_topic(&topic).unwrap();
                    model.retain(|(known, _), _| *known != topic);
                    // Queues that the model forgot must not be found later with old offsets.
                    prop_assert!(store.queue_ids(&topic).is_empty());
                }
            }
        }
        check(&store, &model);
        store = reopen(&mut settings, store, true, false, usize::MAX);
        check(&store, &model);
        store.close().unwrap();
    }

    /// Cuts the end of the log anywhere, after a kill or a clean stop. Everything before the cut must still be there,
    /// and new records must continue each queue without a gap.
    #[test]
    fn a_cut_tail_leaves_a_prefix(
        sizes in sizes(),
        bodies_bytes in prop::collection::vec(0..500_usize, 1..150),
        cut_permille in 0..1_000_u64,
        clean in any::<bool>(),
        keep_queues in any::<bool>(),
    ) {
        let root = tempfile::tempdir().unwrap();
        let mut settings = settings(&root.path().join("run"), sizes);
        let store = open(&settings);
        let mut sent = Vec::new();
        for (number, body_bytes) in bodies_bytes.iter().enumerate() {
            let body = body(number, *body_bytes);
            sent.push((send(&store, "t", (number % 2) as i32, &body), body));
        }
        if clean {
            store.close().unwrap();
        } else {
            let copy = root.path().join("copy");
            copy_store(&settings.directory, &copy);
            settings.directory = copy;
        }
        drop(store);
        let end = sent.last().unwrap().0.end_offset;
        let mut cut_at = end * cut_permille as i64 / 1_000;
        if clean {
            // After a clean stop, the last record counts only if its lengths and its body are right. The checksum does
            // not cover its properties, which may also end in a zero.
            cut_at = cut_at.min(end - PROPERTIES_BYTES - 1);
        }
        cut_log(&settings, cut_at);
        if !keep_queues {
            let _ = fs::remove_dir_all(settings.directory.join("consumequeue"));
        }

        let store = open(&settings);
        for queue_id in 0..2 {
            let expected: Vec<Vec<u8>> = sent.iter().enumerate()
                .filter(|(number, (appended, _))| (number % 2) as i32 == queue_id && appended.end_offset <= cut_at)
                .map(|(_, (_, body))| body.clone())
                .collect();
            prop_assert_eq!(short(&bodies(&store, "t", queue_id)), short(&expected));
            let next = send(&store, "t", queue_id, b"next");
            prop_assert_eq!(next.queue_offset, expected.len() as i64);
            prop_assert_eq!(bodies(&store, "t", queue_id).len(), expected.len() + 1);
        }
        store.close().unwrap();
        let read = bodies(&open(&settings), "t", 0);
        prop_assert_eq!(read.last().map(Vec::as_slice), Some(&b"next"[..]));
    }

    /// One flipped bit anywhere in the log: nothing wrong is ever served, and all but a few records still are.
    #[test]
    fn a_flipped_bit_costs_little_and_is_never_served(
        sizes in sizes(),
        bodies_bytes in prop::collection::vec(20..300_usize, 20..120),
        flip_permille in 0..1_000_u64,
        bit in 0..8_u32,
        clean in any::<bool>(),
        keep_queues in any::<bool>(),
    ) {
        let root = tempfile::tempdir().unwrap();
        let mut settings = settings(&root.path().join("run"), sizes);
        let store = open(&settings);
        let mut sent = Vec::new();
        for (number, body_bytes) in bodies_bytes.iter().enumerate() {
            let body = body(number, *body_bytes);
            sent.push((send(&store, "t", 0, &body), body));
        }
        if clean {
            store.close().unwrap();
        } else {
            let copy = root.path().join("copy");
            copy_store(&settings.directory, &copy);
            settings.directory = copy;
        }
        drop(store);
        let end = sent.last().unwrap().0.end_offset;
        let (path, position) = locate(&settings, end * flip_permille as i64 / 1_000);
        flip(&path, position, 1 << bit);
        if !keep_queues {
            let _ = fs::remove_dir_all(settings.directory.join("consumequeue"));
        }

        let store = open(&settings);
        let read = read_all(&store, "t", 0);
        prop_assert!(read.is_sorted_by(|one, next| one.0 < next.0), "offsets rise");
        // The checksum does not cover queue offsets, so a record may come with a later one, but whole and in order.
        let mut rest = sent.iter();
        for (_, body) in &read {
            prop_assert!(rest.any(|(_, sent)| sent == body), "{:?} was not sent here", short(std::slice::from_ref(body)));
        }
        // The flipped record is lost, and one more if the flip changed a queue offset.
        prop_assert!(read.len() + 2 >= sent.len(), "{} of {} are left", read.len(), sent.len());
        let next = send(&store, "t", 0, b"next");
        prop_assert!(next.queue_offset + 2 >= sent.len() as i64);
        let read = bodies(&store, "t", 0);
        prop_assert_eq!(read.last().map(Vec::as_slice), Some(&b"next"[..]));
    }
}

/// Cuts the log at an offset: shortens that file and deletes the later ones.
fn cut_log(settings: &StoreSettings, cut_at: i64) {
    for entry in fs::read_dir(settings.directory.join("commitlog")).unwrap() {
        let path = entry.unwrap().path();
        let start: i64 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        if start >= cut_at && start > 0 {
            fs::remove_file(path).unwrap();
        } else if cut_at < start + settings.commit_log_file_bytes as i64 {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len((cut_at - start) as u64).unwrap();
        }
    }
}
