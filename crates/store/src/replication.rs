//! The store as replication sees it: raw bytes of the log, and the gate that holds confirmation back until replicas
//! hold a record.

use std::time::Duration;

use bytes::Bytes;
use metaq_wire::layout;

use crate::api::StoreOpened;
use crate::error::StoreError;
use crate::log::gate::Refusal;
use crate::log::raw_append::whole_records;
use crate::store::Store;

/// Room for records that were stored when the limit was higher than now.
const RECORD_BYTES_EVER: usize = 16 << 20;

impl Store {
    /// Confirms nothing beyond `end_offset` from now on, until [`Store::confirm_replicated`] moves that forward. What
    /// is confirmed already stays so. To be called while nothing is appended, before a role begins.
    pub fn gate_confirmation(&self, end_offset: i64) {
        self.shared.log.progress.gate(end_offset);
    }

    /// Confirms records without replicas and without a lease again.
    pub fn ungate_confirmation(&self) {
        self.shared.log.progress.set_lease(None);
        self.shared.confirm_replicated(i64::MAX);
        self.dispatch();
        self.shared.announce(false);
    }

    /// Moves the gate, confirms what became safe and wakes whoever waits for it. A lower offset than before holds later
    /// records back; what is confirmed stays so. Calls must not overlap.
    pub fn confirm_replicated(&self, end_offset: i64) {
        self.shared.confirm_replicated(end_offset);
    }

    /// Lets nothing more be confirmed, whatever is under way, until the gate moves again.
    pub fn close_gate(&self) {
        self.shared.log.progress.close_gate();
    }

    /// Moves the gate like [`Store::confirm_replicated`], but confirms nothing yet: [`Store::confirm_safe`] does, which
    /// may have to wait for the disk.
    pub fn move_gate(&self, end_offset: i64) {
        self.shared.log.progress.set_replicated(end_offset);
    }

    /// Confirms what is safe by now and wakes whoever waits for it.
    pub fn confirm_safe(&self) {
        self.shared.confirm_safe();
    }

    /// After this time, in milliseconds of CLOCK_BOOTTIME, no new record is stored and none is confirmed or
    /// acknowledged, until a later time is set; None takes the lease away. With asynchronous flush an append alone does
    /// not confirm from the first lease on, which is to be set while nothing is appended, until
    /// [`Store::ungate_confirmation`].
    pub fn acknowledge_until(&self, deadline_ms: Option<i64>) {
        self.shared.log.progress.set_lease(deadline_ms);
        self.shared.confirm_safe();
    }

    /// How the store was found when it was opened.
    pub fn opened(&self) -> StoreOpened {
        let recovered = &self.shared.recovered;
        StoreOpened {
            log_end: recovered.end,
            flushed_mark: recovered.flushed_mark,
            stopped_cleanly: recovered.is_clean,
            boot_id: format!("{:032x}", u128::from_be_bytes(self.shared.boot_id)),
        }
    }

    /// Accepts that the log may end below an end that it was flushed to before: from now on, [`StoreOpened::flushed_mark`]
    /// comes from what this process flushed. Until then every start shows the loss again. Returns when that is on
    /// the disk.
    pub fn accept_flushed_mark(&self) -> Result<(), StoreError> {
        self.shared.gate.check_open()?;
        self.shared.housekeeping.forget_flushed_mark();
        self.shared.save_checkpoint(false, true)
    }

    /// How long the sync of the log that is under way has been running; 0 if there is none.
    pub fn sync_age_ms(&self) -> i64 {
        self.shared.flush.sync_age_ms()
    }

    /// Whether a sync of the log has failed: nothing more is acknowledged until a restart.
    pub fn sync_failed(&self) -> bool {
        self.shared.gate.is_shut(Refusal::FailedSync)
    }

    /// Whether somebody cut a file of the log while it was in use. What was appended behind the cut is nowhere, and
    /// nothing more is acknowledged until the store is opened again, which gives the file its length back.
    pub fn is_log_cut(&self) -> bool {
        self.shared.log.files().iter().any(|file| file.is_cut())
    }

    /// Whether records are refused because the disk is full, or queue entries cannot be written, until that ends.
    pub fn is_full(&self) -> bool {
        self.shared.gate.is_full()
    }

    /// Syncs the log up to its end, with either kind of flush, and returns when that is done.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.shared.gate.check_open()?;
        self.shared.sync_log()
    }

    /// Refuses new records until [`Store::lift_fence`]; senders see the reason. Copies of another log are
    /// still taken.
    pub fn fence(&self, reason: &str) {
        self.shared.gate.fence(reason);
    }

    pub fn lift_fence(&self) {
        self.shared.gate.lift(Refusal::Fenced);
    }

    /// Says that replicas follow this store, and until when those that must are known to, in milliseconds of
    /// CLOCK_BOOTTIME; None if nobody must.
    pub fn note_followed(&self, deadline_ms: Option<i64>) {
        self.shared.gate.note_followed(deadline_ms);
    }

    /// Refuses if another node may be master, or if too few replicas follow: they would not get what is not in the
    /// log. A store without replicas never refuses.
    pub fn check_followed(&self) -> Result<(), StoreError> {
        self.shared.gate.check_followed()
    }

    /// How far the log is on this disk.
    pub fn flushed_offset(&self) -> i64 {
        self.shared.log.progress.flushed()
    }

    /// The offset up to which this store acknowledges the log to others: what is flushed, or with asynchronous flush
    /// what is appended.
    pub fn held_offset(&self) -> i64 {
        let progress = &self.shared.log.progress;
        if self.shared.settings.sync_flush { progress.flushed() } else { progress.appended() }
    }

    /// Splits the time that the confirmation of `end_offset` took until now: milliseconds that it waited for this disk,
    /// then for replicas.
    pub fn confirmation_parts(&self, end_offset: i64, waited_ms: u64) -> (u64, u64) {
        if !self.shared.log.progress.needs_replicas() {
            return (waited_ms, 0);
        }
        if !self.shared.settings.sync_flush {
            return (0, waited_ms);
        }
        let replicas_ms =
            self.shared.flush.times.age_ms(end_offset).map_or(0, |age_ms| age_ms.min(waited_ms));
        (waited_ms - replicas_ms, replicas_ms)
    }

    /// The physical offset of the oldest byte.
    pub fn start_offset(&self) -> i64 {
        self.shared.log.start_offset()
    }

    /// The most bytes that [`Store::raw_bytes`] returns if a single record, or the blank at the end of a file, has more
    /// than was asked for. Records may be older than the present `message_size_bytes_max`.
    pub fn record_bytes_max(&self) -> usize {
        self.shared.settings.record_bytes_max().max(RECORD_BYTES_EVER) + layout::BLANK_BYTES
    }

    /// Bytes of the log as [`Store::append_raw`] takes them: whole records, or one blank. At most `bytes_max` of them,
    /// but at least one record. None at the end of the log, and where no file holds the offset.
    pub fn raw_bytes(&self, physical_offset: i64, bytes_max: usize) -> Option<Bytes> {
        let log = &self.shared.log;
        let end = log.appended_end();
        let file = log.file_at(physical_offset).filter(|_| physical_offset < end)?;
        let position = (physical_offset - file.start_offset) as u64;
        let available = (end.min(file.end_offset()) - physical_offset) as usize;
        let bytes = file.bytes(position, available)?;
        Some(bytes.slice(..whole_records(&bytes, bytes_max)))
    }

    /// Bytes of the log from any offset on, at most `bytes_max` and all of one file; they may end inside a record. None
    /// at the end of the log, and where no file holds the offset.
    pub fn log_bytes(&self, physical_offset: i64, bytes_max: usize) -> Option<Bytes> {
        let log = &self.shared.log;
        let end = log.appended_end();
        let file = log.file_at(physical_offset).filter(|_| physical_offset < end)?;
        let available = (end.min(file.end_offset()) - physical_offset) as usize;
        file.bytes((physical_offset - file.start_offset) as u64, available.min(bytes_max))
    }

    /// The size of a file of the log. Logs can only be copied byte for byte between stores with the same size.
    pub fn log_file_bytes(&self) -> i64 {
        self.shared.settings.commit_log_file_bytes as i64
    }

    /// Sleeps until something is appended, [`Store::wake_followers`] is called or the time is over; not at all if
    /// `is_moved` says that there is work already.
    pub fn follow(&self, timeout: Duration, is_moved: impl Fn() -> bool) {
        self.shared.followers.wait(timeout, is_moved);
    }

    /// The same for the disk: sleeps until a sync has moved [`Store::flushed_offset`].
    pub fn follow_syncs(&self, timeout: Duration, is_moved: impl Fn() -> bool) {
        self.shared.sync_followers.wait(timeout, is_moved);
    }

    /// Wakes everybody in [`Store::follow`] and [`Store::follow_syncs`].
    pub fn wake_followers(&self) {
        self.shared.followers.notify();
        self.shared.sync_followers.notify();
    }

    /// From now on retention deletes the files that end before the start of a master's log, and no others.
    pub fn follow_retention(&self, master_start: i64) {
        self.shared.retention_rule.follow(master_start);
    }

    /// From now on retention deletes by the rules of the settings.
    pub fn use_own_retention(&self) {
        self.shared.retention_rule.use_settings();
    }
}
