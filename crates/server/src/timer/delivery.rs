//! Messages that wait for any moment: read from their queue into the timer log, delivered when their time comes.
//!
//! One thread follows the queue of waiting messages and stores those that are due in their own queue. A message that waits
//! longer than `roll_ms` is stored again at the end of the queue now and then. Otherwise retention, which deletes whole
//! files by age, would delete it, or would have to keep every later file because of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;
use metaq_store::{
    Filter, GetStatus, Store, StoreError, TIMER_TOPIC, TimerEntry, TimerLog, TimerOutline, TimerPosition,
    TimerProgress,
};
use metaq_wire::Record;
use parking_lot::Mutex;

use crate::rounds::Rounds;
use crate::send::copy::{Copy, changed_properties};
use crate::timer::recall::{Recalls, key_hash, recalled_key};
use crate::transaction::half::destination;

/// Records that are read at a time, and in one turn: due messages must not wait for a flood of new ones.
const READ_RECORDS: usize = 512;
const READ_BYTES: usize = 4 * 1024 * 1024;
const TURN_RECORDS: i64 = 4 * 1024;
/// Messages that are delivered between two looks at the queue.
const BATCH: usize = 1024;
/// Sleep of the thread when nothing is due: delivery is at most this late.
const POLL: Duration = Duration::from_millis(20);
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
const OPEN_RETRY: Duration = Duration::from_secs(1);
/// After a loss of the timer log, messages that were due this shortly before the end may not have been delivered.
const REBUILD_MARGIN_MS: i64 = 2_000;
/// The name under which messages that wait keep their part of the log from retention.
pub(crate) const TIMERS_PIN: &str = "timers";
const ROLL_TIMES: &str = "TIMER_ROLL_TIMES";
/// Properties that a delivered message no longer has.
const WAITING_PROPERTIES: [&str; 9] = [
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    ROLL_TIMES,
    "REAL_TOPIC",
    "REAL_QID",
];

/// Messages that wait for any moment.
pub struct Timers {
    pub(super) store: Arc<Store>,
    pub(super) store_host: SocketAddr,
    pub(super) flush_timeout: Duration,
    roll_ms: i64,
    pub(super) recalls: Recalls,
    pending: AtomicU64,
    read: AtomicU64,
    delivered: AtomicU64,
    recalled: AtomicU64,
    queue_offset: AtomicI64,
    behind_ms: AtomicI64,
    /// How many wait for each minute, as of the last time that progress was saved.
    by_minute: Mutex<Vec<(i64, u64)>>,
    /// How far the node came that delivered before this one.
    elsewhere: Mutex<Option<TimerProgress>>,
    /// How far everything is done, and the end of the log up to which that must be confirmed before it counts.
    progress: Mutex<Option<(TimerProgress, i64)>>,
    /// For those who count and list what waits; None before all of the queue is read.
    pub(super) outline: Mutex<Option<Arc<TimerOutline>>>,
    pub(crate) rounds: Rounds,
}

/// Messages that wait for a given moment, in numbers; sums are since the plane started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerFigures {
    pub pending: u64,
    pub read: u64,
    pub delivered: u64,
    pub recalled: u64,
    /// Their queue has been read up to here.
    pub queue_offset: i64,
    /// The lateness of the next one.
    pub behind_ms: i64,
}

impl Timers {
    pub fn new(store: Arc<Store>, store_host: SocketAddr, roll_ms: i64, flush_timeout: Duration) -> Self {
        Timers {
            store,
            store_host,
            flush_timeout,
            roll_ms,
            recalls: Recalls::default(),
            pending: AtomicU64::new(0),
            read: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            recalled: AtomicU64::new(0),
            queue_offset: AtomicI64::new(0),
            behind_ms: AtomicI64::new(0),
            by_minute: Mutex::default(),
            elsewhere: Mutex::default(),
            progress: Mutex::default(),
            outline: Mutex::default(),
            rounds: Rounds::default(),
        }
    }

    /// How many messages become due before each of these times, and after the one before it. It is exact to the minute.
    pub fn due_within(&self, bounds_s: &[i64]) -> Vec<u64> {
        let now_ms = self.store.clock().now_ms();
        let mut counts = vec![0; bounds_s.len()];
        for (minute_ms, entries) in &*self.by_minute.lock() {
            let in_s = (minute_ms - now_ms).max(0) / 1_000;
            if let Some(place) = bounds_s.iter().position(|bound| in_s < *bound) {
                counts[place] += entries;
            }
        }
        counts
    }

    /// Goes on where another node stopped; before the thread runs.
    pub fn load(&self, progress: TimerProgress) {
        *self.elsewhere.lock() = Some(progress);
    }

    /// How far everything is done, once that is confirmed and on this disk; None if that takes too long or is not known.
    pub fn progress(&self, timeout: Duration) -> Option<TimerProgress> {
        let (progress, end) = (*self.progress.lock())?;
        let is_kept = self.store.wait_flushed(end, timeout) && self.store.wait_confirmed(end, timeout);
        is_kept.then_some(progress)
    }

    pub fn figures(&self) -> TimerFigures {
        TimerFigures {
            pending: self.pending.load(Relaxed),
            read: self.read.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            recalled: self.recalled.load(Relaxed),
            queue_offset: self.queue_offset.load(Relaxed).max(0),
            behind_ms: self.behind_ms.load(Relaxed).max(0),
        }
    }
}

/// The state of the thread.
struct Run {
    log: TimerLog,
    rebuild: Option<Rebuild>,
    /// Recalls that are due, and whose records are still to be read.
    recalls: Vec<TimerEntry>,
    /// The log must be flushed up to here before a checkpoint is saved.
    written_end: i64,
    /// The queue has been read up to its end once.
    has_begun: bool,
    /// The offset of the queue up to which everything was done when progress was noted last; None if something waited.
    noted_idle_at: Option<i64>,
    saved_at: Instant,
    last_failure: String,
}

/// A rebuild of a lost timer log, for which the whole queue is read again.
struct Rebuild {
    up_to: i64,
    /// Messages up to this position were delivered.
    done: TimerPosition,
    /// The number of the newest copy, by key and time. Older copies do not count.
    copies: HashMap<(u64, i64), i64, RandomState>,
}

/// The parts of a waiting record that matter here.
pub(super) struct Waiting {
    pub(super) due_ms: i64,
    pub(super) key_hash: u64,
    pub(super) is_recall: bool,
    roll_times: i64,
}

impl Waiting {
    pub(super) fn of(record: &Record<'_>) -> Option<Self> {
        let is_recall = record.property("TIMER_DEL_UNIQKEY").is_some();
        let key = if is_recall { recalled_key(record) } else { record.property("UNIQ_KEY") };
        Some(Waiting {
            due_ms: number(record.property("TIMER_OUT_MS"))?,
            key_hash: key_hash(record.property("REAL_TOPIC")?, key.unwrap_or_default()),
            is_recall,
            roll_times: number(record.property(ROLL_TIMES)).unwrap_or(0),
        })
    }

    /// The entry of the timer log: for the due time, or earlier to store the record again before retention meets it.
    fn entry(&self, record: &Record<'_>, roll_ms: i64) -> TimerEntry {
        let is_roll = self.due_ms.saturating_sub(record.store_timestamp_ms) > roll_ms;
        let wake_ms = if is_roll {
            // Spread, because messages that were sent together should not all be stored again together.
            let spread_ms = (roll_ms / 4).max(1);
            let scattered = (record.physical_offset as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            record.store_timestamp_ms + roll_ms - spread_ms + (scattered % spread_ms as u64) as i64
        } else {
            self.due_ms
        };
        let entry = TimerEntry {
            wake_ms: self.due_ms,
            physical_offset: record.physical_offset,
            key_hash: self.key_hash,
            is_roll,
            is_recall: self.is_recall,
            rest_minutes: 0,
        };
        entry.woken_at(wake_ms)
    }
}

impl Timers {
    /// The thread that delivers what is due.
    pub fn run(&self) {
        let Some(mut run) = self.open() else { return };
        loop {
            if let Err(error) = self.turn(&mut run) {
                self.note_failure(&mut run, &error);
                if let StoreError::Damaged { .. } = error {
                    // Save the progress before everything is read again, so that nothing is delivered twice.
                    let _noted_above = self.save(&mut run);
                    let Some(reopened) = self.open() else { return };
                    run = reopened;
                }
            }
            self.note_progress(&mut run);
            self.pending.store(run.log.pending(), Relaxed);
            if !self.rounds.pause(POLL) {
                break;
            }
        }
        if let Err(error) = self.save(&mut run) {
            self.note_failure(&mut run, &error);
        }
    }

    fn note_progress(&self, run: &mut Run) {
        if run.has_begun && run.rebuild.is_none() {
            if let Some(progress) = run.log.progress() {
                // While nothing waits, time passes and nothing is done: the journal need not be written for it.
                let idle_at = (run.log.pending() == 0).then_some(progress.queue_offset);
                if idle_at.is_none() || idle_at != run.noted_idle_at {
                    *self.progress.lock() = Some((progress, run.written_end));
                }
                run.noted_idle_at = idle_at;
            }
        }
    }

    fn note_failure(&self, run: &mut Run, error: &StoreError) {
        let failure = error.to_string();
        if failure != run.last_failure {
            self.store.report(format!("the delivery of timed messages is blocked: {failure}"));
            run.last_failure = failure;
        }
    }

    /// Opens the timer log; None if the plane stops before that succeeds.
    fn open(&self) -> Option<Run> {
        loop {
            let begin = self.store.min_offset(TIMER_TOPIC, 0);
            let end = self.store.max_offset(TIMER_TOPIC, 0);
            // Every delivery is a record, so nothing that was due after the newest record was delivered.
            let elsewhere = *self.elsewhere.lock();
            match self.store.open_timer_log(begin, end, self.store.newest_time_ms(), elsewhere) {
                Ok((log, start)) => {
                    *self.outline.lock() = None;
                    let rebuild = start.rebuild.map(|why| {
                        let count = end - begin;
                        let text = format!("the timer log is rebuilt from {count} records: {why}");
                        self.store.report(text);
                        let mut done = log.done();
                        if !start.is_mark_exact {
                            done.wake_ms = done.wake_ms.saturating_sub(REBUILD_MARGIN_MS);
                        }
                        Rebuild { up_to: start.new_from, done, copies: self.rolled_copies(begin, end) }
                    });
                    let (saved_at, last_failure) = (Instant::now(), String::new());
                    return Some(Run {
                        log,
                        rebuild,
                        recalls: Vec::new(),
                        written_end: 0,
                        has_begun: false,
                        noted_idle_at: None,
                        saved_at,
                        last_failure,
                    });
                }
                Err(error) => self.store.report(format!("the timer log cannot be opened: {error}")),
            }
            if !self.rounds.sleep(OPEN_RETRY) {
                return None;
            }
        }
    }

    fn rolled_copies(&self, begin: i64, end: i64) -> HashMap<(u64, i64), i64, RandomState> {
        let mut copies = HashMap::default();
        let mut queue_offset = begin;
        while queue_offset < end && !self.rounds.is_stopped() {
            let (next, _) = self.each_waiting(queue_offset, |_, waiting| {
                if waiting.roll_times > 0 {
                    let times = copies.entry((waiting.key_hash, waiting.due_ms)).or_insert(0);
                    *times = waiting.roll_times.max(*times);
                }
                Ok(())
            });
            if next <= queue_offset {
                break;
            }
            queue_offset = next;
        }
        copies
    }

    /// Shows some records of the queue from an offset on. Returns where they end, or where the error arose.
    fn each_waiting(
        &self,
        from: i64,
        mut see: impl FnMut(&Record<'_>, Waiting) -> Result<(), StoreError>,
    ) -> (i64, Result<(), StoreError>) {
        let got = self.store.get(TIMER_TOPIC, 0, from, READ_RECORDS, READ_BYTES, &Filter::All);
        if got.status == GetStatus::Damaged {
            // A recall may follow, so nothing later may be delivered before this is repaired.
            let place = format!("topic {TIMER_TOPIC}, queue offset {from}");
            return (from, Err(StoreError::AwaitsRepair { place }));
        }
        if got.status != GetStatus::Found {
            // Deleted or left out, or the end.
            return (got.next_offset.max(from), Ok(()));
        }
        for slice in &got.slices {
            let mut rest = &slice[..];
            while let Ok(record) = Record::decode(rest) {
                // A record without a time stays readable by its id.
                let seen = Waiting::of(&record).map_or(Ok(()), |waiting| see(&record, waiting));
                if let Err(error) = seen {
                    return (record.queue_offset, Err(error));
                }
                rest = &rest[record.size..];
            }
        }
        (got.next_offset, Ok(()))
    }

    /// Reads and delivers until nothing is left to do now.
    fn turn(&self, run: &mut Run) -> Result<(), StoreError> {
        while !self.rounds.is_stopped() {
            if self.rounds.is_held() && run.log.progress().is_some() {
                return Ok(());
            }
            let end_before = self.store.confirmed_offset();
            let is_at_end = self.read_queue(run)?;
            if is_at_end {
                if !run.has_begun {
                    *self.outline.lock() = Some(run.log.outline());
                }
                run.has_begun = true;
                run.rebuild = None;
            }
            if run.has_begun {
                let now_ms = self.store.clock().now_ms();
                self.recalls.take_until(now_ms);
                let due = run.log.due(now_ms, BATCH)?;
                let late_ms = due.first().map_or(0, |first| now_ms - first.wake_ms);
                self.behind_ms.store(late_ms, Relaxed);
                self.note_recalls(run)?;
                if !due.is_empty() {
                    self.deliver(run, &due)?;
                } else if is_at_end {
                    self.recalls.forget_before(now_ms);
                    self.store.pin(TIMERS_PIN, run.log.needed_from().unwrap_or(i64::MAX).min(end_before));
                    self.save_now_and_then(run)?;
                    run.last_failure.clear();
                    return Ok(());
                }
            }
            self.save_now_and_then(run)?;
        }
        Ok(())
    }

    fn note_recalls(&self, run: &mut Run) -> Result<(), StoreError> {
        run.recalls.extend(run.log.take_recalls());
        while let Some(recall) = run.recalls.last() {
            let stored = self.stored(recall.physical_offset)?;
            let record = stored.as_ref().and_then(|stored| Record::decode(stored).ok());
            if let Some(waiting) = record.as_ref().and_then(Waiting::of) {
                self.recalls.note(recall.key_hash, waiting.due_ms, recall.physical_offset);
            }
            run.recalls.pop();
        }
        Ok(())
    }

    /// The record there; None if it is gone for good. Fails if it must be waited for.
    pub(super) fn stored(&self, physical_offset: i64) -> Result<Option<Bytes>, StoreError> {
        let stored = self.store.record_at(physical_offset);
        match stored {
            None => self.store.awaits_repair(physical_offset).map_or(Ok(None), Err),
            found => Ok(found),
        }
    }

    fn save_now_and_then(&self, run: &mut Run) -> Result<(), StoreError> {
        if run.saved_at.elapsed() < SAVE_INTERVAL {
            return Ok(());
        }
        run.saved_at = Instant::now();
        self.pending.store(run.log.pending(), Relaxed);
        *self.by_minute.lock() = run.log.by_minute();
        self.save(run)
    }

    /// Saves a checkpoint if everything before it is on the disk, so that no message is lost after it.
    fn save(&self, run: &mut Run) -> Result<(), StoreError> {
        if run.rebuild.is_some() || !self.store.wait_flushed(run.written_end, FLUSH_PATIENCE) {
            return Ok(());
        }
        run.log.save().map(|_| ())
    }

    /// Reads on in the queue; true if its end is reached.
    fn read_queue(&self, run: &mut Run) -> Result<bool, StoreError> {
        let stop_at = run.log.queue_offset() + TURN_RECORDS;
        let roll_ms = self.roll_ms;
        while run.log.queue_offset() < self.store.max_offset(TIMER_TOPIC, 0) {
            let from = run.log.queue_offset();
            if from >= stop_at {
                return Ok(false);
            }
            let Run { log, rebuild, written_end, .. } = run;
            let (next, outcome) = self.each_waiting(from, |record, waiting| {
                if rebuild.as_ref().is_none_or(|rebuild| rebuild.counts(record, &waiting)) {
                    log.add(waiting.entry(record, roll_ms), record.queue_offset)?;
                }
                *written_end = (*written_end).max(record.physical_offset + record.size as i64);
                Ok(())
            });
            run.log.set_queue_offset(next);
            self.queue_offset.store(next, Relaxed);
            self.read.fetch_add((next - from).max(0) as u64, Relaxed);
            outcome?;
            if next <= from {
                break;
            }
        }
        Ok(true)
    }

    fn deliver(&self, run: &mut Run, due: &[TimerEntry]) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        let mut finished = None;
        for entry in due {
            outcome = self.handle(run, entry);
            if outcome.is_err() {
                break;
            }
            finished = Some(entry.position());
        }
        if let Some(place) = finished {
            self.store.dispatch();
            run.log.finish(place);
            self.store.request_confirm(run.written_end);
            outcome = outcome.and(run.log.write_mark().map(|_| ()));
        }
        outcome
    }

    /// Delivers, recalls or stores again the message of an entry. If the store refuses, the next turn tries again.
    fn handle(&self, run: &mut Run, entry: &TimerEntry) -> Result<(), StoreError> {
        let stored = self.stored(entry.physical_offset)?;
        let record = stored.as_ref().and_then(|stored| Record::decode(stored).ok());
        let Some(record) = record.filter(|record| record.topic == TIMER_TOPIC.as_bytes()) else {
            let at = entry.physical_offset;
            self.store.report(format!("the message that waited at commit log {at} is gone or damaged"));
            return Ok(());
        };
        let Some(waiting) = Waiting::of(&record) else { return Ok(()) };
        if entry.is_roll {
            return self.roll(run, &record, &waiting);
        }
        // Recalls of this moment were noted before any message of it was delivered.
        if entry.is_recall {
            return Ok(());
        }
        if self.is_recalled(&record, entry.key_hash, waiting.due_ms)? {
            // No checkpoint may say that this is done before the recall is on the disk.
            run.written_end = run.written_end.max(self.store.end_offset());
            self.recalled.fetch_add(1, Relaxed);
            return Ok(());
        }
        let Some((topic, queue_id)) = destination(&record) else { return Ok(()) };
        let properties = changed_properties(record.properties, &WAITING_PROPERTIES, &[]);
        self.store_copy(run, &record, topic, queue_id, &properties)?;
        self.delivered.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Stores a message that goes on waiting again.
    fn roll(&self, run: &mut Run, record: &Record<'_>, waiting: &Waiting) -> Result<(), StoreError> {
        let times = waiting.roll_times.saturating_add(1).to_string();
        let properties = changed_properties(record.properties, &[], &[(ROLL_TIMES, &times)]);
        self.store_copy(run, record, TIMER_TOPIC, 0, &properties)
    }

    fn store_copy(
        &self,
        run: &mut Run,
        record: &Record<'_>,
        topic: &str,
        queue_id: i32,
        properties: &[u8],
    ) -> Result<(), StoreError> {
        let copy = Copy { topic, queue_id, reconsume_times: record.reconsume_times, properties };
        match copy.append(record, &self.store, self.store_host) {
            Ok(appended) => {
                run.written_end = run.written_end.max(appended.end_offset);
                Ok(())
            }
            // A message that can never be stored must not hold up later ones.
            Err(
                error @ (StoreError::BadTopic(_)
                | StoreError::BadQueue(_)
                | StoreError::TooLarge { .. }
                | StoreError::BadRecord(_)),
            ) => {
                let at = record.physical_offset;
                self.store.report(format!("the message that waited at commit log {at} is given up: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Rebuild {
    /// Whether a record that is read again still waits, as far as is known.
    fn counts(&self, record: &Record<'_>, waiting: &Waiting) -> bool {
        if record.queue_offset >= self.up_to {
            return true;
        }
        let newest = self.copies.get(&(waiting.key_hash, waiting.due_ms)).copied().unwrap_or(0);
        let place = TimerPosition { wake_ms: waiting.due_ms, physical_offset: record.physical_offset };
        place > self.done && waiting.roll_times >= newest
    }
}

fn number(property: Option<&[u8]>) -> Option<i64> {
    std::str::from_utf8(property?).ok()?.parse().ok()
}
