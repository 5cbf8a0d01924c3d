//! From the commit log to the queues: every record that may be shown gets its consume-queue entry, in the log's order.
//! Dispatch stops at [`Progress::confirmable`](crate::log::progress::Progress::confirmable).
//!
//! There is no dispatch thread. With asynchronous flush whoever appended calls [`Dispatch::run`]; the first to get the
//! lock works for all (flat combining), the others leave at once. No record is left behind: the worker looks again
//! after it released the lock, and the fences order that look after every append whose caller found the lock taken.
//! With synchronous flush the thread that synced the log calls [`Dispatch::run_to_end`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use metaq_wire::properties::tag_code_of;
use metaq_wire::{Coverage, Record};
use parking_lot::{Mutex, RwLock};

use crate::api::StoreEvents;
use crate::error::StoreError;
use crate::housekeeping::Housekeeping;
use crate::log::commit_log::{CommitLog, is_queued};
use crate::log::gate::{Gate, Reports};
use crate::queue::consume_queue::{Put, Queue};
use crate::queue::deletion::deleted_topic;
use crate::queue::files::Entry;
use crate::queue::table::Queues;
use crate::recovery::log_walk::{Step, walk};

/// Records of one pass: arrivals are reported at least this often.
const PASS_RECORDS_MAX: usize = 4_096;
/// A queue's slot among the touched ones fits below its pass number in one word.
const SLOT_BITS: u32 = 16;

/// The topic in which messages with a delay level wait, with one queue per level.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

pub(crate) type Events = RwLock<Option<Arc<dyn StoreEvents>>>;

/// Everything that dispatch reads, writes and reports to.
pub(crate) struct Context<'a> {
    pub(crate) log: &'a CommitLog,
    pub(crate) queues: &'a Queues,
    pub(crate) housekeeping: &'a Housekeeping,
    pub(crate) events: &'a Events,
    pub(crate) gate: &'a Gate,
    pub(crate) reports: &'a Reports,
    pub(crate) replay: Replay,
    pub(crate) delay_levels_ms: &'a [i64],
}

/// Whether records come straight from an append or are read again from the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    No,
    /// Checksums are verified.
    Tail,
    /// Checksums are verified, and the topic of a queue may have been deleted in between: then its offsets begin again
    /// at 0. So it is when the whole log is replayed, and in the tail of a replica's log.
    Everything,
}

pub(crate) struct Dispatch {
    state: Mutex<State>,
    dispatched_end: AtomicI64,
    pub(crate) damaged_records: AtomicU64,
    /// Records with a checksum of the body alone.
    pub(crate) uncovered_records: AtomicU64,
}

struct State {
    /// The start of the last record that was dispatched, or −1.
    last_record: i64,
    pass: u64,
    touched: Vec<Touched>,
    touched_count: usize,
}

/// A queue that got entries in this pass. Later passes reuse its vector.
struct Touched {
    queue: Arc<Queue>,
    max_offset: i64,
    tag_codes: Vec<i64>,
}

impl Dispatch {
    pub(crate) fn new(dispatched_end: i64, last_record: i64) -> Self {
        Self {
            state: Mutex::new(State { last_record, pass: 0, touched: Vec::new(), touched_count: 0 }),
            dispatched_end: AtomicI64::new(dispatched_end),
            damaged_records: AtomicU64::new(0),
            uncovered_records: AtomicU64::new(0),
        }
    }

    pub(crate) fn dispatched_end(&self) -> i64 {
        self.dispatched_end.load(Ordering::Acquire)
    }

    /// The end of what is dispatched, and the start of the last record before it.
    pub(crate) fn position(&self) -> (i64, i64) {
        let state = self.state.lock();
        (self.dispatched_end(), state.last_record)
    }

    /// Dispatches everything that may be shown, or leaves it to the thread that is already doing so.
    #[inline]
    pub(crate) fn run(&self, with: &Context<'_>) {
        fence(Ordering::SeqCst);
        while self.dispatched_end.load(Ordering::Acquire) < with.log.progress.confirmable() {
            let Some(mut state) = self.state.try_lock() else { return };
            if let Err(error) = self.run_passes(&mut state, with) {
                // Housekeeping tries the record again, and so does the next append.
                return with.reports.add(format!("dispatch is blocked: {error}"));
            }
            drop(state);
            fence(Ordering::SeqCst);
        }
    }

    /// Dispatches everything that may be shown, waiting for the lock if need be.
    pub(crate) fn run_to_end(&self, with: &Context<'_>) -> Result<(), StoreError> {
        self.run_passes(&mut self.state.lock(), with)
    }

    fn run_passes(&self, state: &mut State, with: &Context<'_>) -> Result<(), StoreError> {
        loop {
            let from = self.dispatched_end.load(Ordering::Acquire);
            let end = with.log.progress.confirmable();
            if from >= end {
                return Ok(());
            }
            let (reached, outcome) = self.run_pass(state, with, from, end);
            self.dispatched_end.store(reached, Ordering::Release);
            state.report_arrivals(with);
            outcome?;
        }
    }

    /// Dispatches at most `PASS_RECORDS_MAX` records. Returns where it stopped, and the error if there was one.
    fn run_pass(
        &self,
        state: &mut State,
        with: &Context<'_>,
        from: i64,
        end: i64,
    ) -> (i64, Result<(), StoreError>) {
        state.pass += 1;
        let mut records = 0;
        let mut stuck = None;
        let reached = walk(with.log, from, end, with.replay != Replay::No, |step| {
            match step {
                Step::Record(record) => {
                    if record.coverage() == Coverage::Body {
                        self.uncovered_records.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Err(error) = self.enter(state, with, &record) {
                        stuck = Some((record.physical_offset, error));
                        return false;
                    }
                }
                Step::Gap { from, to } => {
                    self.damaged_records.fetch_add(1, Ordering::Relaxed);
                    with.log.damage.suspect(from);
                    with.reports.add(format!("commit log: no record can be read from {from} to {to}"));
                }
            }
            records += 1;
            records < PASS_RECORDS_MAX
        });
        match stuck {
            Some((physical_offset, error)) => (physical_offset, Err(error)),
            None => (reached, Ok(())),
        }
    }

    #[inline]
    fn enter(&self, state: &mut State, with: &Context<'_>, record: &Record<'_>) -> Result<(), StoreError> {
        if is_queued(record.system_flag) {
            let slot = match state.last_slot(record) {
                Some(slot) => slot,
                None => match with.queues.obtain(record.topic, record.queue_id) {
                    Ok(queue) => state.touch(queue),
                    Err(error @ (StoreError::BadTopic(_) | StoreError::BadQueue(_))) => {
                        self.misfit(with, record, &error.to_string());
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                },
            };
            self.put(&mut state.touched[slot], with, record)?;
        } else if let Some(topic) = deleted_topic(record) {
            with.queues.delete_entries(topic, || with.housekeeping.lower_queue_count(with))?;
        }
        state.last_record = record.physical_offset;
        Ok(())
    }

    #[inline]
    fn put(&self, touched: &mut Touched, with: &Context<'_>, record: &Record<'_>) -> Result<(), StoreError> {
        let entry = Entry {
            physical_offset: record.physical_offset,
            size: record.size as i32,
            tag_code: entry_code(record, with.delay_levels_ms),
        };
        let mut put = touched.queue.put(record.queue_offset, entry);
        // On a replica a queue begins again at 0 when the master has deleted its topic and created it again.
        let begins_again = match with.replay {
            Replay::No => record.queue_offset == 0,
            Replay::Tail => false,
            Replay::Everything => put == Put::Misfit && is_restart(with.log, record),
        };
        if put == Put::Misfit && begins_again {
            with.queues.restart(&touched.queue)?;
            put = touched.queue.put(0, entry);
        }
        if put == Put::Misfit && with.replay != Replay::No && touched.queue.starts_behind(record.queue_offset)
        {
            with.queues.restart(&touched.queue)?;
            put = touched.queue.put(record.queue_offset, entry);
        }
        match put {
            Put::Done { max_offset, was_clean, is_crowded } => {
                touched.max_offset = max_offset;
                touched.tag_codes.push(entry.tag_code);
                if was_clean {
                    with.queues.mark_dirty(&touched.queue);
                }
                if is_crowded {
                    relieve(with, &touched.queue);
                }
            }
            Put::Known => {}
            Put::Misfit => self.misfit(with, record, "its queue offset does not fit"),
        }
        Ok(())
    }

    #[cold]
    fn misfit(&self, with: &Context<'_>, record: &Record<'_>, why: &str) {
        self.damaged_records.fetch_add(1, Ordering::Relaxed);
        with.reports.add(format!(
            "commit log: the record at {} (topic {:?}, queue {}, queue offset {}) is not dispatched: {why}",
            record.physical_offset,
            String::from_utf8_lossy(record.topic),
            record.queue_id,
            record.queue_offset,
        ));
    }
}

impl State {
    /// The slot of the record's queue if it was touched last, as within a batch.
    #[inline]
    fn last_slot(&self, record: &Record<'_>) -> Option<usize> {
        let slot = self.touched_count.checked_sub(1)?;
        let queue = &self.touched[slot].queue;
        (queue.queue_id == record.queue_id && queue.topic.as_bytes() == record.topic).then_some(slot)
    }

    /// The slot of the queue among those touched in this pass.
    #[inline]
    fn touch(&mut self, queue: Arc<Queue>) -> usize {
        let mark = queue.touched.load(Ordering::Relaxed);
        if mark >> SLOT_BITS == self.pass {
            return (mark & ((1 << SLOT_BITS) - 1)) as usize;
        }
        let slot = self.touched_count;
        queue.touched.store((self.pass << SLOT_BITS) | slot as u64, Ordering::Relaxed);
        match self.touched.get_mut(slot) {
            Some(touched) => touched.queue = queue,
            None => self.touched.push(Touched { queue, max_offset: 0, tag_codes: Vec::new() }),
        }
        self.touched_count += 1;
        slot
    }

    fn report_arrivals(&mut self, with: &Context<'_>) {
        let events = with.events.read().clone();
        for touched in &mut self.touched[..self.touched_count] {
            if let (Some(events), false) = (&events, touched.tag_codes.is_empty()) {
                let queue = &touched.queue;
                events.arrived(&queue.topic, queue.queue_id, touched.max_offset, &touched.tag_codes);
            }
            touched.tag_codes.clear();
        }
        self.touched_count = 0;
    }
}

/// Whether a queue begins again at 0 because its topic was deleted and created again, and not because a queue offset is
/// damaged: then the queue's next record, if there is one, has offset 1.
#[cold]
fn is_restart(log: &CommitLog, first: &Record<'_>) -> bool {
    let from = first.physical_offset + first.size as i64;
    let mut next_offset = None;
    if first.queue_offset == 0 {
        walk(log, from, log.appended_end(), true, |step| {
            match step {
                Step::Record(record)
                    if record.topic == first.topic
                        && record.queue_id == first.queue_id
                        && is_queued(record.system_flag) =>
                {
                    next_offset = Some(record.queue_offset);
                }
                _ => {}
            }
            next_offset.is_none()
        });
    }
    // Offset 0 again: the topic was deleted twice, with one record each time.
    first.queue_offset == 0 && matches!(next_offset, None | Some(0 | 1))
}

/// The tag code of a record's entry: the hash of its tag or, in the queues of the delay levels, the time it is due.
#[inline]
pub(crate) fn entry_code(record: &Record<'_>, delay_levels_ms: &[i64]) -> i64 {
    if record.topic != SCHEDULE_TOPIC.as_bytes() {
        return tag_code_of(record.properties);
    }
    let slot = usize::try_from(record.queue_id).unwrap_or(usize::MAX);
    record.store_timestamp_ms + delay_levels_ms.get(slot).copied().unwrap_or(0)
}

/// Writes the entries of a queue that has too many in memory, on the thread that dispatches.
#[cold]
fn relieve(with: &Context<'_>, queue: &Queue) {
    if let Err(error) = with.queues.flush_one(queue) {
        // A brief shortage, of file descriptors for example, is over by the next attempt. But memory is bounded.
        if matches!(error, StoreError::DiskFull { .. }) || queue.is_overcrowded() {
            with.gate.shut_for_queues(&error, with.reports);
        } else {
            with.reports.add(format!("queue entries could not be written and will be tried again: {error}"));
        }
    }
}
