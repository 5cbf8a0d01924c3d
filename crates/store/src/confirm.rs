//! From an append to an answer: syncs the log, dispatches records to their queues, and wakes whoever waits.
//!
//! Without replicas and with asynchronous flush an append confirms itself and its own thread dispatches it. Otherwise the
//! thread that moved a mark, by a sync or by a replica's acknowledgement, dispatches what that made safe, then publishes
//! `confirmed`, then wakes the waiters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::StoreError;
use crate::log::flush::sync_files;
use crate::log::gate::Refusal;
use crate::store::OpenStore;

impl OpenStore {
    /// To be called after one or several appends: dispatches them, or asks for the sync that will.
    #[inline]
    pub(crate) fn dispatch_appended(&self) {
        if self.log.progress.is_confirmed_by_append() {
            self.dispatch.run(&self.context());
            self.index.notify();
        } else if self.settings.sync_flush {
            self.flush.request(self.log.appended_end());
        } else {
            // With asynchronous flush nobody else may come who confirms the records: replicas may hold them already.
            self.confirm_safe();
        }
        self.followers.notify();
    }

    /// For records that were left behind: their appender died before it asked for dispatch, or dispatch failed.
    pub(crate) fn finish_dispatch(&self) {
        self.dispatch.run(&self.context());
        if self.log.progress.confirmed() < self.log.appended_end() {
            self.dispatch_appended();
        }
    }

    /// Confirms everything appended so far, whatever that takes, and returns once it is in its queues.
    pub(crate) fn confirm_appended(&self) -> Result<(), StoreError> {
        if !self.log.progress.is_confirmed_by_append() {
            self.sync_log()?;
        }
        self.dispatch.run_to_end(&self.context())
    }

    /// Syncs the log up to its end and confirms what that made safe.
    pub(crate) fn sync_log(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.flush.syncing.lock();
        if self.gate.is_shut(Refusal::FailedSync) {
            return Err(StoreError::FailedSync);
        }
        let (from, end) = (self.log.progress.flushed(), self.log.appended_end());
        if from >= end {
            return Ok(());
        }
        let outcome = self.flush.timed(|| sync_files(&self.log, from, end));
        self.flush.syncs.fetch_add(1, Ordering::Relaxed);
        let is_moved = match &outcome {
            Ok(()) => {
                self.log.progress.set_flushed(end);
                self.flush.times.note(end);
                self.sync_followers.notify();
                self.confirm()
            }
            Err(error) => {
                self.gate.shut(Refusal::FailedSync);
                self.reports
                    .add(format!("a sync of the commit log failed, writes are refused from now on: {error}"));
                true
            }
        };
        if is_moved {
            self.announce(outcome.is_err());
        }
        self.flush.wake_waiters();
        outcome
    }

    /// Confirms what replicas hold by now, as far as it is also safe here.
    pub(crate) fn confirm_replicated(&self, end_offset: i64) {
        self.log.progress.set_replicated(end_offset);
        self.confirm_safe();
    }

    /// Confirms what is safe by now.
    pub(crate) fn confirm_safe(&self) {
        if self.confirm() {
            self.announce(false);
        }
    }

    /// Wakes everybody who waits for a confirmation: connections with answers, threads, and the index.
    pub(crate) fn announce(&self, failed: bool) {
        let events = self.events.read().as_ref().map(Arc::clone);
        if let Some(events) = events {
            events.confirmed(self.log.progress.confirmed(), failed);
        }
        self.index.notify();
        self.flush.wake_waiters();
    }

    /// Dispatches what has become safe to show, and only then says that it is confirmed. Returns whether that moved
    /// the mark.
    fn confirm(&self) -> bool {
        let progress = &self.log.progress;
        if progress.is_confirmed_by_append() || progress.confirmable() <= progress.confirmed() {
            return false;
        }
        // A sync and a replica's acknowledgement may come at the same time.
        let _one_at_a_time = self.confirming.lock();
        let end = progress.confirmable();
        if end <= progress.confirmed() {
            return false;
        }
        if let Err(error) = self.dispatch.run_to_end(&self.context()) {
            // The records are safe, so their senders get their answer; housekeeping tries the queues again.
            self.reports.add(format!("dispatch is blocked: {error}"));
        }
        let confirmed = progress.confirmed();
        progress.set_confirmed(end);
        progress.confirmed() > confirmed
    }
}
