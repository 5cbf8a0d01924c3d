//! The store as its callers see it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use metaq_wire::{NewRecord, Record};
use parking_lot::Mutex;

use crate::api::{Appended, AppendedBatch, Filter, Got, QueryResult, StoreEvents};
use crate::clock::Clock;
use crate::disk::{Disk, DiskFile, memory_bytes};
use crate::error::StoreError;
use crate::figures::StoreFigures;
use crate::housekeeping::Keep;
use crate::index::key_index::Index;
use crate::log::commit_log::CommitLog;
use crate::log::flush::Flush;
use crate::log::gate::{Gate, Refusal, Reports};
use crate::queue::dispatch::{Context, Dispatch, Events, Replay};
use crate::queue::table::Queues;
use crate::read::{Damage, Reader, Wanted};
use crate::recovery::log_walk::{Step, walk};
use crate::recovery::open;
use crate::retention::Consumed;
use crate::settings::StoreSettings;

/// Of the machine's memory, the part in which recent records are expected to be found.
const IN_MEMORY_PERCENT: u64 = 40;

/// An open store directory. Dropping it without [`Store::close`] leaves the directory as a kill would.
pub struct Store {
    pub(crate) parts: Arc<Parts>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held open: the lock goes with it.
    lock: Mutex<Option<DiskFile>>,
}

/// What the store's threads share.
pub(crate) struct Parts {
    pub(crate) settings: StoreSettings,
    pub(crate) clock: Clock,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) boot_id: [u8; 16],
    pub(crate) gate: Arc<Gate>,
    pub(crate) reports: Reports,
    pub(crate) events: Events,
    pub(crate) log: CommitLog,
    pub(crate) queues: Queues,
    pub(crate) dispatch: Dispatch,
    pub(crate) flush: Flush,
    pub(crate) index: Index,
    pub(crate) keep: Keep,
    pub(crate) damage: Damage,
    pub(crate) consumed: Mutex<Consumed>,
    /// Retention keeps what lies behind this physical offset: messages that wait for their time.
    pub(crate) needed_from: AtomicI64,
    pub(crate) cleaning: Mutex<()>,
    pub(crate) recovered_from: i64,
    pub(crate) recovered_bytes: i64,
}

impl Parts {
    pub(crate) fn context(&self, replay: Replay) -> Context<'_> {
        Context {
            log: &self.log,
            queues: &self.queues,
            events: &self.events,
            gate: &self.gate,
            reports: &self.reports,
            replay,
            delay_levels_ms: &self.settings.delay_levels_ms,
        }
    }

    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { log: &self.log, queues: &self.queues, damage: &self.damage, reports: &self.reports }
    }
}

impl Store {
    /// Opens the directory, made where it is missing; recovers it where it was not closed in order; starts the store's
    /// threads.
    pub fn open(
        settings: StoreSettings,
        clock: Clock,
        disk: Arc<dyn Disk>,
    ) -> Result<Arc<Store>, StoreError> {
        let (parts, lock) = open::open(settings, clock, disk)?;
        let store = Self { parts: Arc::new(parts), threads: Mutex::default(), lock: Mutex::new(Some(lock)) };
        store.start()?;
        Ok(Arc::new(store))
    }

    fn start(&self) -> Result<(), StoreError> {
        self.spawn("store-flush", |parts| {
            // The outcome is in the gate, the events and the reports.
            parts.flush.run(&parts.log.progress, &parts.gate, || drop(parts.sync_log()));
        })?;
        self.spawn("store-ahead", |parts| parts.log.ahead.run())?;
        self.spawn("store-index", |parts| {
            parts.index.run(&parts.log, || parts.dispatch.dispatched_end(), &parts.reports);
        })?;
        self.spawn("store-keep", |parts| parts.keep_house())?;
        self.parts.log.prepare();
        Ok(())
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&Parts) + Send + 'static) -> Result<(), StoreError> {
        let parts = Arc::clone(&self.parts);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&parts))
            .map_err(|source| StoreError::io(&self.parts.settings.directory, source))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// The clock that store timestamps come from.
    pub fn clock(&self) -> &Clock {
        &self.parts.clock
    }

    /// Who is told of arrivals and flushes; the last one set counts. Let go at [`Store::close`].
    pub fn set_events(&self, events: Arc<dyn StoreEvents>) {
        *self.parts.events.write() = Some(events);
    }

    /// Lays the record out at the end of the commit log. Call [`Store::dispatch`] afterwards: readers see the record
    /// once it is confirmed.
    pub fn append(&self, record: &NewRecord<'_>) -> Result<Appended, StoreError> {
        loop {
            let queue = self.parts.queues.obtain(record.topic, record.queue_id)?;
            if let Some(appended) = self.parts.log.append(record, &queue)? {
                return Ok(appended);
            }
        }
    }

    /// The same for several records of one queue: all or none, with no other record between them.
    pub fn append_batch(&self, records: &[NewRecord<'_>]) -> Result<AppendedBatch, StoreError> {
        let Some(first) = records.first() else { return Err(StoreError::EmptyBatch) };
        if records.iter().any(|record| record.topic != first.topic || record.queue_id != first.queue_id) {
            return Err(StoreError::MixedBatch);
        }
        loop {
            let queue = self.parts.queues.obtain(first.topic, first.queue_id)?;
            if let Some(appended) = self.parts.log.append_batch(records, &queue)? {
                return Ok(appended);
            }
        }
    }

    /// To be called after one or several appends: gives every record its queue entry and reports arrivals, or leaves
    /// that to the thread that is at it already.
    #[inline]
    pub fn dispatch(&self) {
        self.parts.dispatch_appended();
    }

    /// Whether everything below `end_offset` is confirmed: as safe as the settings ask for, and in its queues. This
    /// alone decides whether a record may be acknowledged.
    #[inline]
    pub fn is_confirmed(&self, end_offset: i64) -> bool {
        self.confirmed_offset() >= end_offset
    }

    /// Everything below this physical offset is confirmed.
    #[inline]
    pub fn confirmed_offset(&self) -> i64 {
        self.parts.log.progress.confirmed()
    }

    /// Asks for everything below `end_offset` to be confirmed soon; [`StoreEvents::confirmed`] reports it.
    /// [`Store::dispatch`] asks for what was appended, so this is only needed by those who wait.
    #[inline]
    pub fn request_confirm(&self, end_offset: i64) {
        if !self.is_confirmed(end_offset) {
            self.parts.flush.request(end_offset);
        }
    }

    /// Asks and waits; false on a time-out and after a failed sync.
    pub fn wait_confirmed(&self, end_offset: i64, timeout: Duration) -> bool {
        self.parts.flush.wait(end_offset, timeout, &self.parts.gate, || self.is_confirmed(end_offset))
    }

    /// Waits until everything below `end_offset` is on this disk, whatever the flush mode. For files beside the log that
    /// are synced on their own and must never know more than the log; answers go by [`Store::is_confirmed`].
    pub fn wait_flushed(&self, end_offset: i64, timeout: Duration) -> bool {
        let progress = &self.parts.log.progress;
        self.parts.flush.wait(end_offset, timeout, &self.parts.gate, || progress.flushed() >= end_offset)
    }

    /// Records of a queue from `queue_offset` on: at most `count_max` of them and `bytes_max` bytes, but at least one.
    pub fn get(
        &self,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        count_max: usize,
        bytes_max: usize,
        filter: &Filter,
    ) -> Got {
        let wanted = Wanted { queue_offset, count_max: count_max.max(1), bytes_max, filter };
        self.parts.reader().get(topic, queue_id, &wanted)
    }

    /// The offset of the queue's oldest record that is still there.
    pub fn min_offset(&self, topic: &str, queue_id: i32) -> i64 {
        let log_start = self.parts.log.start_offset();
        self.with_queue(topic, queue_id, |queue| queue.min_offset(&self.parts.queues.disk, log_start))
            .unwrap_or(0)
    }

    /// The offset that the queue's next record will get visible with.
    pub fn max_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.with_queue(topic, queue_id, |queue| Ok(queue.max_offset())).unwrap_or(0)
    }

    /// The queues of the topic that hold or held records, in order.
    pub fn queue_ids(&self, topic: &str) -> Vec<i32> {
        let ids = self.parts.queues.ids(topic);
        ids.inspect_err(|error| self.parts.reports.add(format!("the queues of {topic}: {error}")))
            .unwrap_or_default()
    }

    /// By store time. Lower: the first offset at or after it, past the last the queue's end. Upper: the last offset at
    /// or before it, in front of the first 0.
    pub fn search_offset(&self, topic: &str, queue_id: i32, timestamp_ms: i64, upper: bool) -> i64 {
        let reader = self.parts.reader();
        self.with_queue(topic, queue_id, |queue| reader.search_offset(queue, timestamp_ms, upper))
            .unwrap_or(0)
    }

    /// When the record was stored, in milliseconds since 1970.
    pub fn store_time(&self, topic: &str, queue_id: i32, queue_offset: i64) -> Option<i64> {
        let entry =
            self.with_queue(topic, queue_id, |queue| queue.entry(&self.parts.queues.disk, queue_offset))??;
        self.parts.reader().entry_time_ms(&entry)
    }

    /// Whether the record is recent enough to be expected in the page cache.
    pub fn in_memory(&self, topic: &str, queue_id: i32, queue_offset: i64) -> bool {
        let entry =
            self.with_queue(topic, queue_id, |queue| queue.entry(&self.parts.queues.disk, queue_offset));
        entry.flatten().is_some_and(|entry| {
            let age_bytes = self.parts.log.appended_end() - entry.physical_offset;
            age_bytes as u64 <= memory_bytes() / 100 * IN_MEMORY_PERCENT
        })
    }

    /// The record that starts exactly there; None where none does, or it is damaged.
    pub fn record_at(&self, physical_offset: i64) -> Option<Bytes> {
        self.parts.reader().record_at(physical_offset)
    }

    /// Every sound record of the log from there on, in its order, as far as it reaches now.
    pub fn each_record_from(&self, physical_offset: i64, mut visit: impl FnMut(&Record<'_>)) {
        let from = physical_offset.max(self.parts.log.start_offset());
        walk(&self.parts.log, from, self.parts.log.appended_end(), false, |step| {
            if let Step::Record(record) = step {
                visit(&record);
            }
            true
        });
    }

    /// Records by `UNIQ_KEY` or a word of `KEYS`, stored in the time range (both ends included), newest first.
    pub fn query(&self, topic: &str, key: &str, count_max: usize, begin_ms: i64, end_ms: i64) -> QueryResult {
        self.parts.index.query(&self.parts.log, topic, key, count_max, begin_ms, end_ms)
    }

    /// Drops the topic's queues; its records stay in the commit log until they age out. Appends wait meanwhile.
    pub fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.parts.gate.check_open()?;
        let parts = &self.parts;
        // Most of the syncing, before anybody is held up.
        parts.save_checkpoint(false, false)?;
        parts.log.while_paused(|| {
            // Records already in the log belong to the queues that go; later ones to new queues that start at 0.
            parts.dispatch.run_to_end(&parts.context(Replay::No))?;
            parts.queues.take_topic(topic);
            let count = parts.queues.ids(topic)?.len() as i64;
            // Counted out before, since housekeeping may save a checkpoint of its own in between: one that counts
            // more queues than a start finds is not believed, and a replay brings them back.
            let counted = &parts.queues.disk.directory_count;
            counted.fetch_sub(count, Ordering::AcqRel);
            // The checkpoint first: a replay after a kill must not bring the queues back, nor miss them.
            if let Err(error) = parts.save_checkpoint(false, count > 0) {
                counted.fetch_add(count, Ordering::AcqRel);
                return Err(error);
            }
            parts.queues.delete_files(topic)
        })
    }

    /// The lowest committed offset per (topic, queue): what lies above it is not deleted to make room. A queue that is
    /// not named counts as unconsumed.
    pub fn protect(&self, consumed: HashMap<(String, i32), i64>) {
        *self.parts.consumed.lock() = consumed;
    }

    /// Whatever its age, nothing from this physical offset on is deleted. For messages that wait for their time, which
    /// the queue's own committed offset cannot tell: they are not done with in its order.
    pub fn keep_from(&self, physical_offset: i64) {
        self.parts.needed_from.store(physical_offset, Ordering::Release);
    }

    /// Where the next record will be laid out.
    pub fn end_offset(&self) -> i64 {
        self.parts.log.appended_end()
    }

    /// The store time of the newest record.
    pub fn newest_time_ms(&self) -> i64 {
        self.parts.log.newest_time_ms()
    }

    /// Something for the operator to read.
    pub fn report(&self, text: String) {
        self.parts.reports.add(text);
    }

    /// Applies retention; with `force` whatever the hour. Returns how many commit-log files went.
    pub fn clean(&self, force: bool) -> Result<usize, StoreError> {
        self.parts.gate.check_open()?;
        let deleted = self.parts.clean(force);
        self.parts.look_at_disk();
        deleted
    }

    /// Numbers for an operator.
    pub fn figures(&self) -> StoreFigures {
        let parts = &self.parts;
        let relaxed = Ordering::Relaxed;
        let dispatch_damage = parts.dispatch.damaged_records.load(relaxed);
        StoreFigures {
            commit_log_min_offset: parts.log.start_offset(),
            commit_log_max_offset: parts.log.appended_end(),
            commit_log_files: parts.log.files().len() as i64,
            flushed_offset: parts.log.progress.flushed(),
            dispatched_offset: parts.dispatch.dispatched_end(),
            indexed_offset: parts.index.indexed_end(),
            disk_used_percent: parts.used_percent().map_or(-1, i64::from),
            recovered_from_offset: parts.recovered_from,
            recovered_bytes: parts.recovered_bytes,
            damaged_records: (dispatch_damage + parts.damage.count.load(relaxed)) as i64,
            repaired_entries: parts.damage.repaired.load(relaxed) as i64,
            syncs: parts.flush.syncs.load(relaxed) as i64,
            queues_loaded: parts.queues.loaded().len() as i64,
        }
    }

    /// What an operator should read since the last call.
    pub fn take_reports(&self) -> Vec<String> {
        self.parts.reports.take()
    }

    /// Why an append would be refused right now.
    pub fn writable(&self) -> Result<(), StoreError> {
        self.parts.gate.check()
    }

    /// Flushes everything, says so in the checkpoint and removes the abort marker. Safe to call twice; the
    /// directory may then be opened again.
    pub fn close(&self) -> Result<(), StoreError> {
        if !self.parts.gate.shut(Refusal::Closed) {
            return Ok(());
        }
        self.stop_threads();
        let outcome = open::finish(&self.parts);
        *self.parts.events.write() = None;
        *self.lock.lock() = None;
        outcome
    }

    fn stop_threads(&self) {
        let parts = &self.parts;
        parts.flush.stop();
        parts.log.ahead.stop();
        parts.index.stop();
        parts.keep.stop();
        let own = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != own {
                // A panic of that thread was printed by it; there is nothing to add here.
                let _ = thread.join();
            }
        }
    }

    /// An answer about an existing queue; an error of the files is reported and counts as none.
    pub(crate) fn with_queue<T>(
        &self,
        topic: &str,
        queue_id: i32,
        ask: impl FnOnce(&crate::queue::consume_queue::Queue) -> std::io::Result<T>,
    ) -> Option<T> {
        let report = |error: &dyn std::fmt::Display| {
            self.parts.reports.add(format!("queue {queue_id} of {topic} cannot be read: {error}"));
        };
        let found = self.parts.queues.find(topic.as_bytes(), queue_id);
        let queue = found.map_err(|error| report(&error)).ok().flatten()?;
        ask(&queue).map_err(|error| report(&error)).ok()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.parts.gate.shut(Refusal::Closed);
        self.stop_threads();
    }
}
