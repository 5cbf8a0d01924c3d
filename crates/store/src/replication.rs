//! The store as replication sees it: raw bytes of the log, and the gate that holds confirmation back until replicas
//! hold a record.

use std::time::Duration;

use bytes::Bytes;

use crate::log::gate::Refusal;
use crate::log::raw_append::whole_records;
use crate::store::Store;

const CHECKSUM_STEP_BYTES: usize = 1 << 20;

impl Store {
    /// Confirms nothing beyond `end_offset` from now on, until [`Store::confirm_replicated`] moves that forward. What
    /// is confirmed already stays so. To be called while nothing is appended, before a role begins.
    pub fn gate_confirmation(&self, end_offset: i64) {
        self.shared.log.progress.gate(end_offset);
    }

    /// Confirms records without replicas again.
    pub fn ungate_confirmation(&self) {
        self.shared.confirm_replicated(i64::MAX);
        self.dispatch();
        self.shared.announce(false);
    }

    /// Moves the gate, confirms what became safe and wakes whoever waits for it. A lower offset than before holds later
    /// records back; what is confirmed stays so. Calls must not overlap.
    pub fn confirm_replicated(&self, end_offset: i64) {
        self.shared.confirm_replicated(end_offset);
    }

    /// Refuses new records until [`Store::lift_fence`]; senders see the reason. Copies of another log are
    /// still taken.
    pub fn fence(&self, reason: &str) {
        self.shared.gate.fence(reason);
    }

    pub fn lift_fence(&self) {
        self.shared.gate.lift(Refusal::Fenced);
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

    /// The physical offset of the oldest byte.
    pub fn start_offset(&self) -> i64 {
        self.shared.log.start_offset()
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

    /// The checksum of the log's bytes between two offsets, by which two logs can be compared. None if this log does not
    /// have all of them.
    pub fn raw_checksum(&self, from_offset: i64, to_offset: i64) -> Option<u32> {
        let mut hasher = crc32fast::Hasher::new();
        let mut at = from_offset;
        while at < to_offset {
            let bytes = self.raw_bytes(at, CHECKSUM_STEP_BYTES)?;
            let wanted = bytes.len().min((to_offset - at) as usize);
            hasher.update(&bytes[..wanted]);
            at += wanted as i64;
        }
        Some(hasher.finalize())
    }

    /// Sleeps until something is appended, [`Store::wake_followers`] is called or the time is over; not at all if
    /// `is_moved` says that there is work already.
    pub fn follow(&self, timeout: Duration, is_moved: impl Fn() -> bool) {
        self.shared.followers.wait(timeout, is_moved);
    }

    /// Wakes everybody in [`Store::follow`].
    pub fn wake_followers(&self) {
        self.shared.followers.notify();
    }
}
