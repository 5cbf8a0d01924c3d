//! The store as its callers see it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use metaq_wire::{NewRecord, Record};
use parking_lot::{Mutex, RwLock};

use crate::api::{Appended, AppendedBatch, Bounds, Filter, Got, QueryResult, StoreEvents};
use crate::clock::Clock;
use crate::disk::{Disk, DiskFile, memory_bytes};
use crate::error::StoreError;
use crate::figures::StoreFigures;
use crate::housekeeping::Housekeeping;
use crate::index::key_index::Index;
use crate::index::query::KeyQuery;
use crate::log::commit_log::CommitLog;
use crate::log::copy_permit::CopyPermit;
use crate::log::flush::Flush;
use crate::log::followers::Followers;
use crate::log::gate::{Gate, Refusal, Reports};
use crate::pins::Pins;
use crate::queue::deletion::deletion_of;
use crate::queue::dispatch::{Context, Dispatch, Events, Replay};
use crate::queue::table::Queues;
use crate::read::{Damage, Reader, Wanted};
use crate::recovery::log_walk::{Step, walk};
use crate::recovery::open;
use crate::retention::{Consumed, RetentionRule};
use crate::settings::{RetentionSettings, StoreSettings};

/// The part of the machine's memory in which recent records are expected.
const IN_MEMORY_PERCENT: u64 = 40;

/// How long the deletion of a topic waits for replicas before it is refused.
const DELETE_PATIENCE: Duration = Duration::from_secs(3);

/// An open store directory. Dropping it without [`Store::close`] leaves the directory as a kill would.
pub struct Store {
    pub(crate) shared: Arc<OpenStore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Closing this file releases the lock.
    lock: Mutex<Option<DiskFile>>,
}

/// An open store as its threads share it.
pub(crate) struct OpenStore {
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
    /// Held while `confirmed` moves.
    pub(crate) confirming: Mutex<()>,
    pub(crate) followers: Followers,
    /// Sleep until more of the log is on the disk.
    pub(crate) sync_followers: Followers,
    pub(crate) index: Index,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) damage: Damage,
    pub(crate) consumed: Mutex<Consumed>,
    pub(crate) pins: Pins,
    pub(crate) cleaning: Mutex<()>,
    pub(crate) retention_rule: RetentionRule,
    /// How retention works now.
    pub(crate) retention: RwLock<RetentionSettings>,
    pub(crate) recovered: Recovery,
}

/// How the log was found at the start.
pub(crate) struct Recovery {
    /// The physical offset at which the start began to read the log.
    pub(crate) from: i64,
    /// The end of the log that was found.
    pub(crate) end: i64,
    /// How records below `end` are dispatched, now or once they are confirmed.
    pub(crate) replay: Replay,
    pub(crate) scanned_bytes: i64,
    /// The log is known to have been flushed up to here before.
    pub(crate) flushed_mark: i64,
    /// The last process closed the store in order.
    pub(crate) is_clean: bool,
}

impl OpenStore {
    pub(crate) fn context(&self) -> Context<'_> {
        let is_recovered = self.dispatch.dispatched_end() < self.recovered.end;
        Context {
            log: &self.log,
            queues: &self.queues,
            housekeeping: &self.housekeeping,
            events: &self.events,
            gate: &self.gate,
            reports: &self.reports,
            replay: if is_recovered { self.recovered.replay } else { Replay::No },
            delay_levels_ms: &self.settings.delay_levels_ms,
        }
    }

    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader {
            log: &self.log,
            queues: &self.queues,
            damage: &self.damage,
            reports: &self.reports,
            stops: self.settings.stop_at_damage,
        }
    }
}

impl Store {
    /// Opens the directory, creating it if it is missing, recovers it if it was not closed in order, and starts the
    /// store's threads.
    pub fn open(
        settings: StoreSettings,
        clock: Clock,
        disk: Arc<dyn Disk>,
    ) -> Result<Arc<Store>, StoreError> {
        let (shared, lock) = open::open(settings, clock, disk)?;
        let store =
            Self { shared: Arc::new(shared), threads: Mutex::default(), lock: Mutex::new(Some(lock)) };
        store.start()?;
        Ok(Arc::new(store))
    }

    fn start(&self) -> Result<(), StoreError> {
        self.spawn("store-flush", |shared| {
            // The gate, the events and the reports carry the outcome.
            shared.flush.run(&shared.log.progress, &shared.gate, || drop(shared.sync_log()));
        })?;
        self.spawn("store-prealloc", |shared| shared.log.preallocation.run())?;
        self.spawn("store-index", |shared| {
            shared.index.run(&shared.log, || shared.dispatch.dispatched_end(), &shared.reports);
        })?;
        self.spawn("store-housekeep", |shared| shared.run_housekeeping())?;
        self.shared.log.prepare();
        Ok(())
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&OpenStore) + Send + 'static) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&shared))
            .map_err(|source| StoreError::io(&self.shared.settings.directory, source))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// The clock that store timestamps come from.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Sets the receiver of events, in place of an earlier one. [`Store::close`] drops it.
    pub fn set_events(&self, events: Arc<dyn StoreEvents>) {
        *self.shared.events.write() = Some(events);
    }

    /// Lays the record out at the end of the commit log. Call [`Store::dispatch`] afterwards: readers see the record
    /// once it is confirmed.
    pub fn append(&self, record: &NewRecord<'_>) -> Result<Appended, StoreError> {
        loop {
            let queue = self.shared.queues.obtain(record.topic, record.queue_id)?;
            if let Some(appended) = self.shared.log.append(record, &queue)? {
                return Ok(appended);
            }
        }
    }

    /// Appends several records of one queue: all or none, with no other record between them.
    pub fn append_batch(&self, records: &[NewRecord<'_>]) -> Result<AppendedBatch, StoreError> {
        let Some(first) = records.first() else { return Err(StoreError::EmptyBatch) };
        if records.iter().any(|record| record.topic != first.topic || record.queue_id != first.queue_id) {
            return Err(StoreError::MixedBatch);
        }
        loop {
            let queue = self.shared.queues.obtain(first.topic, first.queue_id)?;
            if let Some(appended) = self.shared.log.append_batch(records, &queue)? {
                return Ok(appended);
            }
        }
    }

    /// Appends bytes of another log as they are, beginning at this log's end: whole records with their queue offsets
    /// and times, and the blank that closes a file. Returns the new end. On an error the log ends in front of the
    /// record that was refused.
    pub fn append_raw(&self, physical_offset: i64, bytes: &[u8]) -> Result<i64, StoreError> {
        self.append_raw_while(&CopyPermit::default(), physical_offset, bytes)
    }

    /// Appends bytes of another log as long as the permit is valid.
    pub fn append_raw_while(
        &self,
        permit: &CopyPermit,
        physical_offset: i64,
        bytes: &[u8],
    ) -> Result<i64, StoreError> {
        self.shared.log.append_raw(permit, physical_offset, bytes, &self.shared.queues)
    }

    /// To be called after one or several appends. With asynchronous flush it gives every record its queue entry and
    /// reports arrivals, or leaves that to the thread that is already doing so. With synchronous flush it asks for a
    /// sync, and the thread that syncs does the same before it confirms the records.
    #[inline]
    pub fn dispatch(&self) {
        self.shared.dispatch_appended();
    }

    /// Whether everything below `end_offset` is confirmed: as safe as the settings ask for, and in its queues. This
    /// alone decides whether a record may be acknowledged. No record may be after a lease is over.
    #[inline]
    pub fn is_confirmed(&self, end_offset: i64) -> bool {
        self.acknowledgeable_offset() >= end_offset
    }

    /// Records below this physical offset may be acknowledged now: confirmed ones, but none after a lease is over.
    #[inline]
    pub fn acknowledgeable_offset(&self) -> i64 {
        let confirmed = self.confirmed_offset();
        if self.shared.log.progress.is_lease_over() { -1 } else { confirmed }
    }

    /// Everything below this physical offset is confirmed.
    #[inline]
    pub fn confirmed_offset(&self) -> i64 {
        self.shared.log.progress.confirmed()
    }

    /// Asks for everything below `end_offset` to be confirmed soon; [`StoreEvents::confirmed`] reports it.
    /// [`Store::dispatch`] asks for what was appended, so this is only needed by those who wait.
    #[inline]
    pub fn request_confirm(&self, end_offset: i64) {
        if self.shared.settings.sync_flush && !self.is_confirmed(end_offset) {
            self.shared.flush.request(end_offset);
        }
    }

    /// Asks and waits; false on a time-out and after a failed sync.
    pub fn wait_confirmed(&self, end_offset: i64, timeout: Duration) -> bool {
        self.shared.flush.wait(end_offset, timeout, &self.shared.gate, || self.is_confirmed(end_offset))
    }

    /// Waits until everything below `end_offset` is on this disk, whatever the flush mode. For files beside the log
    /// that are synced on their own and must never know more than the log; answers go by [`Store::is_confirmed`].
    pub fn wait_flushed(&self, end_offset: i64, timeout: Duration) -> bool {
        let progress = &self.shared.log.progress;
        self.shared.flush.wait(end_offset, timeout, &self.shared.gate, || progress.flushed() >= end_offset)
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
        let bounds = Bounds { count_max, bytes_max, examined_bytes_max: u64::MAX };
        self.get_within(topic, queue_id, queue_offset, bounds, filter)
    }

    /// The same with a bound on the work for a filter expression: the answer is what was found until then, and its
    /// `next_offset` follows the last record that was examined.
    pub fn get_within(
        &self,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        bounds: Bounds,
        filter: &Filter,
    ) -> Got {
        let bounds = Bounds { count_max: bounds.count_max.max(1), ..bounds };
        self.shared.reader().get(topic, queue_id, &Wanted { queue_offset, bounds, filter })
    }

    /// The queue offset of the oldest record that is not deleted.
    pub fn min_offset(&self, topic: &str, queue_id: i32) -> i64 {
        let log_start = self.shared.log.start_offset();
        self.with_queue(topic, queue_id, |queue| queue.min_offset(&self.shared.queues.disk, log_start))
            .unwrap_or(0)
    }

    /// Readers of the topic get nothing below these queue offsets from now on, whatever the log still has. Queues that
    /// are left out have no such start. The deletion of the topic forgets them.
    pub fn set_starts(&self, topic: &str, starts: HashMap<i32, i64>) {
        self.shared.queues.set_starts(topic, starts);
    }

    /// The queue offset after the last visible record.
    pub fn max_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.with_queue(topic, queue_id, |queue| Ok(queue.max_offset())).unwrap_or(0)
    }

    /// The queues of the topic that hold or held records, in order.
    pub fn queue_ids(&self, topic: &str) -> Vec<i32> {
        let ids = self.shared.queues.ids(topic);
        ids.inspect_err(|error| self.shared.reports.add(format!("the queues of {topic}: {error}")))
            .unwrap_or_default()
    }

    /// Searches by store time. Returns the first queue offset at or after the time, or the queue's end; with `upper`
    /// the last one at or before it, or 0.
    pub fn search_offset(&self, topic: &str, queue_id: i32, timestamp_ms: i64, upper: bool) -> i64 {
        let reader = self.shared.reader();
        self.with_queue(topic, queue_id, |queue| reader.search_offset(queue, timestamp_ms, upper))
            .unwrap_or(0)
    }

    /// When the record was stored, in milliseconds since 1970.
    pub fn store_time(&self, topic: &str, queue_id: i32, queue_offset: i64) -> Option<i64> {
        let entry =
            self.with_queue(topic, queue_id, |queue| queue.entry(&self.shared.queues.disk, queue_offset))??;
        self.shared.reader().entry_time_ms(&entry)
    }

    /// Whether the record is recent enough to be expected in the page cache.
    pub fn in_memory(&self, topic: &str, queue_id: i32, queue_offset: i64) -> bool {
        let entry =
            self.with_queue(topic, queue_id, |queue| queue.entry(&self.shared.queues.disk, queue_offset));
        entry.flatten().is_some_and(|entry| {
            let age_bytes = self.shared.log.appended_end() - entry.physical_offset;
            age_bytes as u64 <= memory_bytes() / 100 * IN_MEMORY_PERCENT
        })
    }

    /// The confirmed record that starts exactly there; None if there is none or it is damaged. For offsets that the
    /// broker has noted itself: see [`Store::queued_record_at`].
    pub fn record_at(&self, physical_offset: i64) -> Option<Bytes> {
        if physical_offset >= self.shared.log.progress.confirmable() {
            return None;
        }
        self.shared.reader().record_at(physical_offset)
    }

    /// The same for an offset that a client names. The body of a message may contain the image of a record, so the
    /// queue of the record has to point at it.
    pub fn queued_record_at(&self, physical_offset: i64) -> Option<Bytes> {
        if physical_offset >= self.shared.log.progress.confirmable() {
            return None;
        }
        self.shared.reader().queued_record_at(physical_offset)
    }

    /// The record that starts exactly there, confirmed or not. For the broker's own bookkeeping: no client may see it
    /// before it is confirmed.
    pub fn appended_record_at(&self, physical_offset: i64) -> Option<Bytes> {
        self.shared.reader().record_at(physical_offset)
    }

    /// The same, whether or not its checksum is right: ask [`metaq_wire::Record::crc_matches`] before you use it.
    pub fn appended_head_at(&self, physical_offset: i64) -> Option<Bytes> {
        self.shared.reader().head_at(physical_offset)
    }

    /// Visits every sound, confirmed record of the log from there on, in the log's order.
    pub fn each_record_from(&self, physical_offset: i64, visit: impl FnMut(&Record<'_>)) {
        self.each_record_within(physical_offset, self.shared.log.progress.confirmable(), visit);
    }

    /// The same, confirmed or not. For the broker's own bookkeeping, as [`Store::appended_record_at`].
    pub fn each_appended_record_from(&self, physical_offset: i64, visit: impl FnMut(&Record<'_>)) {
        self.each_record_within(physical_offset, self.shared.log.appended_end(), visit);
    }

    fn each_record_within(&self, from: i64, end: i64, mut visit: impl FnMut(&Record<'_>)) {
        let from = from.max(self.shared.log.start_offset());
        walk(&self.shared.log, from, end, false, |step| {
            if let Step::Record(record) = step {
                visit(&record);
            }
            true
        });
    }

    /// Finds records by `UNIQ_KEY` or a word of `KEYS`, stored in the time range (both ends included), newest first. It
    /// finds what was confirmed before the call: it waits a moment for the index, which follows the log. It ends at the
    /// limit of the settings, with what it has found until then.
    pub fn query(&self, topic: &str, key: &str, count_max: usize, begin_ms: i64, end_ms: i64) -> QueryResult {
        self.shared.index.wait_indexed(self.confirmed_offset());
        let settings = &self.shared.settings;
        let (entries_max, bytes_max) = (settings.query_entries_max, settings.query_bytes_max);
        let query = KeyQuery { topic, key, count_max, begin_ms, end_ms, entries_max, bytes_max };
        let found = self.shared.index.query(&self.shared.log, &query);
        if !self.shared.index.is_incomplete(self.confirmed_offset()) {
            return found;
        }
        // It met damage of the index. A small index is made again within this wait.
        self.shared.index.wait_indexed(self.confirmed_offset());
        self.shared.index.query(&self.shared.log, &query)
    }

    /// The same, but it fails where reads stop at damage and a record that may have the key is damaged.
    pub fn query_all(
        &self,
        topic: &str,
        key: &str,
        count_max: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<QueryResult, StoreError> {
        let found = self.query(topic, key, count_max, begin_ms, end_ms);
        if self.shared.index.is_incomplete(self.confirmed_offset()) {
            return Err(StoreError::IndexIncomplete { indexed: self.shared.index.indexed_end() });
        }
        match found.damaged_at.filter(|_| self.shared.settings.stop_at_damage) {
            Some(at) => Err(StoreError::AwaitsRepair { place: format!("commit log {at}") }),
            None => Ok(found),
        }
    }

    /// Deletes the topic's queues; its records stay in the commit log until retention deletes them. Appends wait
    /// meanwhile. The log records the deletion, so replicas follow it by themselves.
    pub fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.shared.gate.check_deletion()?;
        let shared = &self.shared;
        // Most of the syncing happens here, before appends have to wait.
        shared.save_checkpoint(false, false)?;
        shared.log.while_paused(|appender| {
            self.confirm_all()?;
            if shared.queues.ids(topic)?.is_empty() {
                return Ok(());
            }
            // Dispatch deletes the queues when it comes to this record.
            let queues = shared.queues.of_topic(topic)?;
            let deletion = deletion_of(topic.as_bytes(), shared.clock.now_ms());
            shared.log.append_unqueued(appender, &deletion)?;
            // If replicas do not confirm the deletion in time, it happens later, and new records follow it.
            for queue in queues {
                queue.begin_again();
            }
            self.confirm_all()?;
            shared.queues.take_topic(topic);
            Ok(())
        })
    }

    /// Confirms everything appended so far, and waits for replicas.
    fn confirm_all(&self) -> Result<(), StoreError> {
        self.shared.confirm_appended()?;
        if !self.wait_confirmed(self.shared.log.appended_end(), DELETE_PATIENCE) {
            return Err(StoreError::NotReplicated { waited_ms: DELETE_PATIENCE.as_millis() as u64 });
        }
        Ok(())
    }

    /// Sets the lowest committed offset per (topic, queue): records from there on are not deleted to make room. A queue
    /// that is missing here counts as unconsumed.
    pub fn protect(&self, consumed: HashMap<(String, i32), i64>) {
        *self.shared.consumed.lock() = consumed;
    }

    /// Keeps everything from `physical_offset` on, whatever its age. This replaces the earlier pin of the same name.
    /// Readers need it whose progress no committed offset shows: timers with messages that are not due yet, replicas
    /// that are behind. A pin does not bring back data that is deleted already.
    pub fn pin(&self, name: &str, physical_offset: i64) {
        self.shared.pins.pin(name, physical_offset);
    }

    /// Takes the pin away.
    pub fn unpin(&self, name: &str) {
        self.shared.pins.unpin(name);
    }

    /// The physical offset of the next record, after everything appended, confirmed or not.
    pub fn end_offset(&self) -> i64 {
        self.shared.log.appended_end()
    }

    /// The store time of the newest record.
    pub fn newest_time_ms(&self) -> i64 {
        self.shared.log.newest_time_ms()
    }

    /// Adds a report for the operator.
    pub fn report(&self, text: String) {
        self.shared.reports.add(text);
    }

    /// Applies retention, with `force` whatever the hour. Returns how many files of the commit log it deleted.
    pub fn clean(&self, force: bool) -> Result<usize, StoreError> {
        self.shared.gate.check_open()?;
        let deleted = self.shared.clean(force);
        self.shared.check_disk_level();
        deleted
    }

    /// Retention and the levels of the disk follow these settings from now on. Refuses settings that cannot work.
    pub fn set_retention(&self, settings: RetentionSettings) -> Result<(), StoreError> {
        settings.check()?;
        *self.shared.retention.write() = settings;
        self.shared.check_disk_level();
        Ok(())
    }

    /// Numbers for an operator.
    pub fn figures(&self) -> StoreFigures {
        let shared = &self.shared;
        let relaxed = Ordering::Relaxed;
        let dispatch_damage = shared.dispatch.damaged_records.load(relaxed);
        StoreFigures {
            commit_log_min_offset: shared.log.start_offset(),
            commit_log_max_offset: shared.log.appended_end(),
            commit_log_files: shared.log.files().len() as i64,
            flushed_offset: shared.log.progress.flushed(),
            dispatched_offset: shared.dispatch.dispatched_end(),
            indexed_offset: shared.index.indexed_end(),
            disk_used_percent: shared.used_percent().map_or(-1, i64::from),
            recovered_from_offset: shared.recovered.from,
            recovered_bytes: shared.recovered.scanned_bytes,
            uncovered_records: shared.dispatch.uncovered_records.load(relaxed) as i64,
            damaged_records: (dispatch_damage + shared.damage.count.load(relaxed)) as i64,
            rebuilt_index_files: shared.index.repairs.count.load(relaxed) as i64,
            repaired_entries: shared.damage.repaired.load(relaxed) as i64,
            syncs: shared.flush.syncs.load(relaxed) as i64,
            queues_loaded: shared.queues.loaded().len() as i64,
        }
    }

    /// The reports for the operator since the last call.
    pub fn take_reports(&self) -> Vec<String> {
        self.shared.reports.take()
    }

    /// The error with which an append would be refused right now, if any.
    pub fn writable(&self) -> Result<(), StoreError> {
        self.shared.gate.check()
    }

    /// Flushes everything, says so in the checkpoint and removes the abort marker. Safe to call twice; the
    /// directory may then be opened again.
    pub fn close(&self) -> Result<(), StoreError> {
        if !self.shared.gate.shut(Refusal::Closed) {
            return Ok(());
        }
        self.stop_threads();
        let outcome = open::finish(&self.shared);
        *self.shared.events.write() = None;
        *self.lock.lock() = None;
        outcome
    }

    fn stop_threads(&self) {
        let shared = &self.shared;
        shared.flush.stop();
        shared.log.preallocation.stop();
        shared.index.stop();
        shared.housekeeping.stop();
        let own = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != own {
                // A thread that panicked has printed its panic.
                let _ = thread.join();
            }
        }
    }

    /// Asks an existing queue. An error of its files is reported, and the answer is None.
    pub(crate) fn with_queue<T>(
        &self,
        topic: &str,
        queue_id: i32,
        ask: impl FnOnce(&crate::queue::consume_queue::Queue) -> std::io::Result<T>,
    ) -> Option<T> {
        let report = |error: &dyn std::fmt::Display| {
            self.shared.reports.add(format!("queue {queue_id} of {topic} cannot be read: {error}"));
        };
        let found = self.shared.queues.find(topic.as_bytes(), queue_id);
        let queue = found.map_err(|error| report(&error)).ok().flatten()?;
        ask(&queue).map_err(|error| report(&error)).ok()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.gate.shut(Refusal::Closed);
        self.stop_threads();
    }
}
