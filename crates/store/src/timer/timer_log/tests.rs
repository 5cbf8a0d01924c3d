//! The timer log against a plain list of what waits, through kills, restarts, set clocks and damage.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::disk::SystemDisk;
use crate::faulty_disk::{Call, FaultyDisk};

const START_MS: i64 = 1_750_000_000_000;

fn entry(wake_ms: i64, physical_offset: i64) -> TimerEntry {
    TimerEntry { wake_ms, physical_offset, key_hash: 7, is_roll: false, is_recall: false, rest_minutes: 0 }
}

fn open(directory: &Path, begin: i64, end: i64) -> (TimerLog, TimerStart) {
    TimerLog::open(Arc::new(SystemDisk), directory.join("timer"), begin, end, START_MS, None).unwrap()
}

fn places(entries: &[TimerEntry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.physical_offset).collect()
}

/// Everything that is due, finished.
fn drain(log: &mut TimerLog, now_ms: i64) -> Vec<i64> {
    let mut drained = Vec::new();
    loop {
        let due = log.due(now_ms, 3).unwrap();
        let Some(last) = due.last() else { return drained };
        drained.extend(places(&due));
        log.finish(last.position());
    }
}

#[test]
fn entries_come_in_order_and_never_early() {
    let directory = TempDir::new().unwrap();
    let (mut log, start) = open(directory.path(), 0, 0);
    assert_eq!((start.queue_offset, start.rebuild), (0, None));
    for (place, delay_ms) in [5_000, 70_000, 100, 5_000, 200_000, 0].into_iter().enumerate() {
        log.add(entry(START_MS + delay_ms, place as i64), 0).unwrap();
    }
    assert_eq!(log.pending(), 6);
    assert_eq!(drain(&mut log, START_MS - 1), [0_i64; 0]);
    assert_eq!(drain(&mut log, START_MS + 99), [5]);
    assert_eq!(drain(&mut log, START_MS + 5_000), [2, 0, 3]);
    log.add(entry(START_MS + 10, 6), 0).unwrap();
    assert_eq!(drain(&mut log, START_MS + 5_000), [0_i64; 0], "late ones come right behind what is done");
    assert_eq!(drain(&mut log, START_MS + 5_001), [6]);
    assert_eq!(drain(&mut log, START_MS + 300_000), [1, 4]);
    assert_eq!(log.pending(), 0);
}

#[test]
fn a_checkpoint_is_exact_and_what_comes_behind_it_is_cut() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    for place in 0..100 {
        log.add(entry(START_MS + place * 1_000, place), 0).unwrap();
    }
    log.set_queue_offset(100);
    assert_eq!(drain(&mut log, START_MS + 20_500).len(), 21);
    assert!(log.save().unwrap() && !log.save().unwrap(), "saved once, and then there is nothing to save");
    for place in 100..200 {
        log.add(entry(START_MS + place * 1_000, place), 0).unwrap();
    }
    log.set_queue_offset(200);
    assert_eq!(drain(&mut log, START_MS + 30_500).len(), 10);
    log.write_all().unwrap();
    drop(log);
    let (mut log, start) = open(directory.path(), 0, 200);
    assert_eq!(start, TimerStart { queue_offset: 100, rebuild: None, is_mark_exact: true, new_from: 200 });
    assert_eq!((log.pending(), log.needed_from()), (79, Some(21)));
    assert_eq!(drain(&mut log, START_MS + 500_000), (21..100).collect::<Vec<_>>());
}

/// Opens the log of a node that goes on where another one stopped.
fn open_after(directory: &Path, end: i64, progress: TimerProgress) -> (TimerLog, TimerStart) {
    let (disk, path) = (Arc::new(SystemDisk), directory.join("timer"));
    TimerLog::open(disk, path, 0, end, START_MS + 900_000, Some(progress)).unwrap()
}

#[test]
fn a_node_without_a_checkpoint_goes_on_exactly_where_another_one_stopped() {
    let directory = TempDir::new().unwrap();
    let done = entry(START_MS + 20_000, 20).position();
    let (log, start) = open_after(directory.path(), 100, TimerProgress { done, queue_offset: 60 });
    assert_eq!((log.done(), start.is_mark_exact, start.new_from), (done, true, 60));
    assert!(start.rebuild.is_some());
    drop(log);
    let other = TempDir::new().unwrap();
    let (log, start) = open_after(other.path(), 100, TimerProgress { done, queue_offset: 101 });
    assert_eq!((log.done(), start.is_mark_exact), (TimerPosition::before(START_MS + 900_000), false));
}

#[test]
fn a_node_that_delivered_long_ago_leaves_out_what_another_one_has_done_since() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    for place in 0..100 {
        log.add(entry(START_MS + place * 1_000, place), place).unwrap();
    }
    log.set_queue_offset(100);
    drain(&mut log, START_MS + 20_500);
    let stopped_at = log.progress().unwrap();
    assert_eq!(
        stopped_at,
        TimerProgress { done: entry(START_MS + 20_000, 20).position(), queue_offset: 100 }
    );
    log.save().unwrap();
    drop(log);
    // The other one has read 150 records and has done those that were due in 40 s.
    let progress = TimerProgress { done: entry(START_MS + 40_000, 40).position(), queue_offset: 150 };
    let (mut log, start) = open_after(directory.path(), 160, progress);
    assert_eq!((start.queue_offset, start.rebuild), (100, None));
    for (place, due_ms) in [(120, 30_000), (130, 50_500), (155, 30_500)] {
        log.add(entry(START_MS + due_ms, place), place).unwrap();
    }
    log.set_queue_offset(160);
    let left: Vec<i64> = (41..=50).chain([130]).chain(51..100).collect();
    assert_eq!(drain(&mut log, START_MS + 40_500), [155], "it came late, and nobody has done it");
    assert_eq!(drain(&mut log, START_MS + 500_000), left);
    drop(log);
    // One that is older than what the node has done by itself changes nothing.
    let (log, _) = open_after(directory.path(), 160, stopped_at);
    assert!(log.done() >= stopped_at.done);
}

#[test]
fn progress_is_unknown_while_a_late_entry_waits_also_after_a_start() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    log.add(entry(START_MS + 1_000, 1), 0).unwrap();
    drain(&mut log, START_MS + 1_000);
    assert!(log.progress().is_some());
    log.add(entry(START_MS + 500, 2), 1).unwrap();
    log.set_queue_offset(2);
    assert_eq!(log.progress(), None);
    log.save().unwrap();
    drop(log);
    let (mut log, _) = open(directory.path(), 0, 2);
    assert_eq!(log.progress(), None);
    assert_eq!(drain(&mut log, START_MS + 2_000), [2]);
    assert!(log.progress().is_some());
}

#[test]
fn files_go_when_their_minute_is_over() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    let files = || fs::read_dir(directory.path().join("timer")).unwrap().count() - 2;
    for minute in 0..5 {
        log.add(entry(START_MS + minute * MINUTE_MS, 1_000 - minute), 0).unwrap();
    }
    log.save().unwrap();
    assert_eq!((files(), log.needed_from()), (5, Some(996)));
    drain(&mut log, START_MS + 2 * MINUTE_MS);
    log.save().unwrap();
    assert_eq!(files(), 3);
    assert_eq!(drain(&mut log, START_MS + 9 * MINUTE_MS).len(), 2);
    log.save().unwrap();
    assert_eq!((files(), log.needed_from()), (0, None));
}

#[test]
fn a_minute_that_does_not_fit_memory_is_read_in_pieces() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    (log.head_max, log.unwritten_max) = (10, 7);
    // The same millisecond for many, and the order of arrival is not the order of time.
    for place in 0..500 {
        log.add(entry(START_MS + 1 + (place * 37) % 20 / 5, place), 0).unwrap();
        assert!(log.head.len() <= 10 && log.unwritten <= 7);
    }
    let mut found = Vec::new();
    loop {
        let due = log.due(START_MS + 100, 4).unwrap();
        let Some(last) = due.last() else { break };
        assert!(log.head.len() <= 10);
        found.extend(due.iter().map(TimerEntry::position));
        log.finish(last.position());
        if found.len() == 60 {
            log.add(entry(START_MS + 2, 777), 0).unwrap();
        }
    }
    assert_eq!(found.len(), 501);
    assert!(found.is_sorted());
}

#[test]
fn a_clock_that_is_set_back_does_not_hold_up_what_comes_then() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    log.add(entry(START_MS + 3_600_000, 1), 0).unwrap();
    log.add(entry(START_MS + 3_600_002, 2), 0).unwrap();
    log.add(entry(START_MS + 9_000_000, 3), 0).unwrap();
    assert_eq!(drain(&mut log, START_MS + 3_600_001), [1]);
    assert_eq!(drain(&mut log, START_MS), [0_i64; 0]);
    log.add(entry(START_MS + 1_000, 4), 0).unwrap();
    assert_eq!(drain(&mut log, START_MS + 1_000), [4]);
    log.save().unwrap();
    drop(log);
    let (mut log, start) = open(directory.path(), 0, 0);
    assert_eq!((start.rebuild, log.pending()), (None, 2));
    assert_eq!(drain(&mut log, START_MS + 9_000_000), [2, 3]);
}

#[test]
fn a_recall_is_known_before_what_it_recalls_and_again_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    let recall = TimerEntry { is_recall: true, ..entry(START_MS + 70_000, 2) };
    log.add(entry(START_MS + 70_000, 1), 0).unwrap();
    log.add(recall, 0).unwrap();
    log.add(TimerEntry { is_roll: true, physical_offset: 0, ..recall }, 0).unwrap();
    log.add(entry(START_MS + 70_000, 3), 0).unwrap();
    assert_eq!((log.due(START_MS, 9).unwrap().len(), log.take_recalls().len()), (0, 0));
    assert_eq!(places(&log.due(START_MS + 70_000, 2).unwrap()), [0, 1]);
    assert_eq!(log.take_recalls(), [recall]);
    log.finish(recall.position());
    log.save().unwrap();
    drop(log);
    let (mut log, _) = open(directory.path(), 0, 0);
    assert_eq!(places(&log.due(START_MS + 70_000, 9).unwrap()), [3]);
    assert_eq!(log.take_recalls(), [recall], "done, but at the same moment");
    let late = TimerEntry { is_recall: true, ..entry(START_MS, 4) };
    log.add(late, 0).unwrap();
    assert_eq!(places(&log.take_recalls()), [4]);
}

#[test]
fn what_is_missing_or_damaged_asks_for_a_rebuild() {
    let make = |directory: &Path| {
        let (mut log, _) = open(directory, 0, 0);
        log.add(entry(START_MS + 1_000, 10), 0).unwrap();
        log.add(entry(START_MS + 100_000, 11), 0).unwrap();
        log.set_queue_offset(2);
        drain(&mut log, START_MS + 1_000);
        log.save().unwrap();
        let mut paths: Vec<_> =
            fs::read_dir(log.directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    type Harm = fn(&[PathBuf]);
    let harms: [(Harm, bool); 4] = [
        (|paths| fs::remove_file(&paths[1]).unwrap(), true),
        (|paths| fs::write(&paths[1], [0; 32]).unwrap(), true),
        (|paths| fs::write(&paths[1], [1; 31]).unwrap(), true),
        (|paths| fs::write(&paths[2], b"nonsense").unwrap(), false),
    ];
    for (harm, mark_is_known) in harms {
        let directory = TempDir::new().unwrap();
        harm(&make(directory.path()));
        let (log, start) = open(directory.path(), 0, 2);
        assert!(start.rebuild.is_some() && start.queue_offset == 0);
        let mark_ms = if mark_is_known { START_MS + 1_000 } else { START_MS - 1 };
        assert_eq!((log.done().wake_ms, log.pending()), (mark_ms, 0));
        assert_eq!(start.is_mark_exact, mark_is_known);
        assert_eq!(fs::read_dir(log.directory()).unwrap().count(), 2, "only the checkpoint and the mark");
    }
    let directory = TempDir::new().unwrap();
    make(directory.path());
    assert!(open(directory.path(), 0, 2).1.rebuild.is_none());
    assert!(open(directory.path(), 0, 1).1.rebuild.is_some(), "a queue that lost its end");
}

#[test]
fn a_mark_counts_after_a_kill_but_not_after_a_restart_of_the_machine() {
    for (is_rebooted, expected) in [(false, vec![3, 4, 5]), (true, vec![0, 1, 2, 3, 4, 5])] {
        let directory = TempDir::new().unwrap();
        let disk = Arc::new(FaultyDisk::new());
        let path = directory.path().join("timer");
        let (mut log, _) = TimerLog::open(disk.clone(), path.clone(), 0, 0, START_MS, None).unwrap();
        for place in 0..6 {
            log.add(entry(START_MS + 1_000 * place, place), place).unwrap();
        }
        log.set_queue_offset(6);
        assert_eq!(drain(&mut log, START_MS + 2_000), [0, 1, 2]);
        assert!(log.write_mark().unwrap());
        log.add(entry(START_MS, 7), 6).unwrap();
        assert!(!log.write_mark().unwrap(), "a late entry looks like one that is done");
        drop(log);
        if is_rebooted {
            disk.set_boot_id([9; 16]);
        }
        let (mut log, start) = TimerLog::open(disk, path, 0, 6, START_MS, None).unwrap();
        assert_eq!(start.queue_offset, 0);
        for place in 0..6 {
            log.add(entry(START_MS + 1_000 * place, place), place).unwrap();
        }
        assert_eq!((log.pending(), drain(&mut log, START_MS + 9_000)), (expected.len() as u64, expected));
    }
}

#[test]
fn a_disk_that_fails_loses_nothing() {
    let directory = TempDir::new().unwrap();
    let disk = Arc::new(FaultyDisk::new());
    let path = directory.path().join("timer");
    let (mut log, _) = TimerLog::open(disk.clone(), path.clone(), 0, 0, START_MS, None).unwrap();
    log.add(entry(START_MS + 70_000, 1), 0).unwrap();
    for call in [Call::Create, Call::Write, Call::SyncData, Call::Rename, Call::SyncDirectory] {
        disk.fail(call, "timer", std::io::ErrorKind::StorageFull);
        assert!(log.save().is_err(), "{call:?}");
        disk.heal();
    }
    disk.fail(Call::Open, "timer", std::io::ErrorKind::PermissionDenied);
    assert!(log.due(START_MS + 70_000, 10).is_err());
    disk.heal();
    assert_eq!(places(&log.due(START_MS + 70_000, 10).unwrap()), [1]);
    log.save().unwrap();
    drop(log);
    let (mut log, start) = TimerLog::open(disk, path, 0, 0, START_MS, None).unwrap();
    assert_eq!((start.rebuild, drain(&mut log, START_MS + 70_000)), (None, vec![1]));
}

/// The begin of a minute.
const BEGIN_MS: i64 = START_MS + 20_000;
const NO_SPANS: TimerSpans = TimerSpans { from_ms: 0, step_ms: MINUTE_MS, count: 0 };

fn listed(log: &TimerLog, from_ms: i64, to_ms: i64, count_max: usize) -> (Vec<(i64, i64)>, bool) {
    let search = TimerSearch { from_ms, to_ms, count_max, entries_max: 1_000 };
    let listing = log.outline().list(&search);
    let found = listing.found.iter().map(|found| (found.due_ms - BEGIN_MS, found.physical_offset));
    (found.collect(), listing.is_cut)
}

#[test]
fn an_outline_counts_and_lists_what_waits_by_due_time() {
    let directory = TempDir::new().unwrap();
    let (mut log, _) = open(directory.path(), 0, 0);
    // Stored again in the second minute, due in the fourth; its recall is stored again in the first.
    let far = TimerEntry { is_roll: true, ..entry(BEGIN_MS + 3 * MINUTE_MS + 5, 3) };
    log.add(far.woken_at(BEGIN_MS + MINUTE_MS + 2), 0).unwrap();
    log.add(TimerEntry { is_recall: true, physical_offset: 4, ..far }.woken_at(BEGIN_MS + 9), 0).unwrap();
    log.add(TimerEntry { is_recall: true, physical_offset: 6, ..far }.woken_at(BEGIN_MS + 9), 0).unwrap();
    for (wake_ms, place) in [(70_000, 2), (10, 0), (20, 1), (200_000, 5)] {
        log.add(TimerEntry { key_hash: place as u64, ..entry(BEGIN_MS + wake_ms, place) }, 0).unwrap();
    }
    let spans = TimerSpans { from_ms: BEGIN_MS + MINUTE_MS, step_ms: MINUTE_MS, count: 2 };
    let check = |log: &TimerLog| {
        let counts = log.outline().counts(&spans);
        assert_eq!((counts.messages, counts.recalls, &counts.spans[..]), (5, 1, &[3, 2][..]));
        assert_eq!(
            (counts.first_ms, counts.last_ms),
            (Some(BEGIN_MS), Some(BEGIN_MS + 3 * MINUTE_MS)),
            "a message counts in the minute in which it is due"
        );
        assert_eq!(log.outline().recalls(7, BEGIN_MS + 3 * MINUTE_MS + 5), [4, 6]);
        assert_eq!(log.outline().recalls(7, BEGIN_MS + 5), []);
    };
    check(&log);
    assert_eq!(listed(&log, 0, i64::MAX, 9).0, [], "nothing is written yet");
    log.save().unwrap();
    let everything = [(10, 0), (20, 1), (70_000, 2), (3 * MINUTE_MS, 3), (200_000, 5)];
    assert_eq!(listed(&log, 0, i64::MAX, 9), (everything.to_vec(), false));
    assert_eq!(listed(&log, 0, i64::MAX, 5), (everything.to_vec(), false));
    assert_eq!(listed(&log, 0, i64::MAX, 2), (everything[..2].to_vec(), true));
    assert_eq!(listed(&log, BEGIN_MS + 20, BEGIN_MS + 70_000, 9), (vec![(20, 1)], false));
    let late = BEGIN_MS + 3 * MINUTE_MS;
    assert_eq!(listed(&log, late, late + MINUTE_MS, 1), (vec![(3 * MINUTE_MS, 3)], true));
    let few = TimerSearch { from_ms: 0, to_ms: i64::MAX, count_max: 9, entries_max: 1 };
    assert!(log.outline().list(&few).is_cut);
    drop(log);
    let (mut log, _) = open(directory.path(), 0, 0);
    check(&log);
    assert_eq!(drain(&mut log, BEGIN_MS + 10), [4, 6, 0]);
    assert_eq!(listed(&log, 0, i64::MAX, 9), (everything[1..].to_vec(), false));
    assert_eq!(log.outline().counts(&NO_SPANS).recalls, 0);
    assert_eq!(log.outline().recalls(7, BEGIN_MS + 3 * MINUTE_MS + 5), []);
}

#[test]
fn spans_take_what_lies_outside_of_them() {
    let spans = TimerSpans { from_ms: 100, step_ms: 10, count: 3 };
    let places = [i64::MIN, 99, 100, 109, 110, 129, 130, i64::MAX].map(|time_ms| spans.place(time_ms));
    assert_eq!(places, [0, 0, 0, 0, 1, 2, 2, 2].map(Some));
    assert_eq!(NO_SPANS.place(5), None);
    assert_eq!(TimerSpans { step_ms: 0, ..spans }.place(5), Some(0));
}

#[derive(Clone, Debug)]
enum Step {
    Send(Vec<i64>),
    Read,
    Advance(i64),
    SetBack(i64),
    Deliver(usize),
    Save,
    Kill,
    Restart,
    Damage,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let delay = prop_oneof![0..50_i64, 0..90_000_i64, 0..600_000_i64];
    let step = prop_oneof![
        4 => prop::collection::vec(delay, 1..20).prop_map(Step::Send),
        3 => Just(Step::Read),
        3 => prop_oneof![0..500_i64, 0..100_000_i64].prop_map(Step::Advance),
        1 => (1..200_000_i64).prop_map(Step::SetBack),
        4 => (1..40_usize).prop_map(Step::Deliver),
        2 => Just(Step::Save),
        1 => Just(Step::Kill),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// The log, the queue it is read from, and what became of each message.
struct Model {
    directory: TempDir,
    log: TimerLog,
    now_ms: i64,
    latest_ms: i64,
    queue: Vec<TimerEntry>,
    delivered: HashMap<i64, u32>,
    allowed: HashMap<i64, u32>,
    /// Deliveries that may be repeated after a kill.
    since_save: Vec<i64>,
    with_marks: bool,
    rebuilt_up_to: i64,
    rebuilt_from: TimerPosition,
}

impl Model {
    fn new(with_marks: bool) -> Self {
        let directory = TempDir::new().unwrap();
        let (log, _) = open(directory.path(), 0, 0);
        let mut model = Self {
            directory,
            log,
            now_ms: START_MS,
            latest_ms: START_MS,
            queue: Vec::new(),
            delivered: HashMap::new(),
            allowed: HashMap::new(),
            since_save: Vec::new(),
            with_marks,
            rebuilt_up_to: 0,
            rebuilt_from: TimerPosition::FIRST,
        };
        model.shrink_memory();
        model
    }

    fn shrink_memory(&mut self) {
        (self.log.head_max, self.log.unwritten_max) = (8, 5);
    }

    fn read(&mut self) {
        while let Some(entry) = self.queue.get(self.log.queue_offset() as usize) {
            let is_old = entry.position() <= self.rebuilt_from;
            if !(is_old && self.log.queue_offset() < self.rebuilt_up_to) {
                self.log.add(*entry, self.log.queue_offset()).unwrap();
            }
            self.log.set_queue_offset(self.log.queue_offset() + 1);
        }
    }

    fn deliver(&mut self, count_max: usize) -> usize {
        let due = self.log.due(self.now_ms, count_max).unwrap();
        for entry in &due {
            let sent = self.queue[entry.physical_offset as usize];
            assert!(sent.wake_ms <= self.now_ms, "early");
            assert!(entry.wake_ms >= sent.wake_ms);
            *self.delivered.entry(entry.physical_offset).or_default() += 1;
            self.since_save.push(entry.physical_offset);
        }
        assert!(due.iter().map(TimerEntry::position).is_sorted());
        if let Some(last) = due.last() {
            self.log.finish(last.position());
            if self.with_marks && self.log.write_mark().unwrap() {
                self.since_save.clear();
            }
        }
        due.len()
    }

    fn save(&mut self) {
        self.log.save().unwrap();
        self.since_save.clear();
    }

    fn reopen(&mut self) {
        for place in std::mem::take(&mut self.since_save) {
            *self.allowed.entry(place).or_default() += 1;
        }
        let (log, start) = open(self.directory.path(), 0, self.queue.len() as i64);
        self.log = log;
        self.shrink_memory();
        if start.rebuild.is_some() {
            self.rebuilt_up_to = self.queue.len() as i64;
            self.rebuilt_from = self.log.done();
        }
        // As a broker does: all of the queue is read before anything is delivered.
        self.read();
    }

    fn damage(&mut self) {
        self.save();
        let paths = fs::read_dir(self.log.directory()).unwrap().map(|entry| entry.unwrap().path());
        let is_bucket = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with('0');
        if let Some(path) = paths.filter(is_bucket).min() {
            fs::remove_file(path).unwrap();
        }
        self.reopen();
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Send(delays) => {
                for delay_ms in delays {
                    self.queue.push(entry(self.now_ms + delay_ms, self.queue.len() as i64));
                }
            }
            Step::Read => self.read(),
            Step::Advance(by_ms) => self.now_ms += by_ms,
            Step::SetBack(by_ms) => self.now_ms -= by_ms,
            Step::Deliver(count_max) => drop(self.deliver(*count_max)),
            Step::Save => self.save(),
            Step::Kill => self.reopen(),
            Step::Restart => {
                self.save();
                self.reopen();
            }
            Step::Damage => self.damage(),
        }
        self.latest_ms = self.latest_ms.max(self.now_ms);
        assert_eq!(self.log.outline().counts(&NO_SPANS).messages, self.log.pending());
    }

    fn check_all_arrived(mut self) {
        self.now_ms = self.latest_ms + 1_000_000;
        self.read();
        while self.deliver(7) > 0 {}
        assert_eq!(self.log.pending(), 0);
        for place in 0..self.queue.len() as i64 {
            let times = self.delivered.get(&place).copied().unwrap_or(0);
            let allowed = 1 + self.allowed.get(&place).copied().unwrap_or(0);
            assert!((1..=allowed).contains(&times), "message {place} came {times} times, not 1 to {allowed}");
        }
        self.save();
        assert_eq!(self.log.directory().read_dir().unwrap().count(), 2 + self.log.buckets.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_early_or_repeated_without_a_kill(steps in steps(), with_marks: bool) {
        let mut model = Model::new(with_marks);
        steps.iter().for_each(|step| model.take(step));
        model.check_all_arrived();
    }

    #[test]
    fn a_rebuild_finds_what_waits(steps in steps(), at in 0..60_usize) {
        let mut model = Model::new(true);
        for (place, step) in steps.iter().enumerate() {
            // A reader that keeps up and a clock that goes on, as the rebuild needs them.
            model.read();
            if !matches!(step, Step::SetBack(_)) {
                model.take(step);
            }
            if place == at {
                model.take(&Step::Damage);
            }
        }
        model.check_all_arrived();
    }
}
