//! From an append to an answer: the log is synced, records are dispatched to their queues, and whoever waits is told.
//!
//! With asynchronous flush an append confirms itself and its own thread dispatches it. With synchronous flush the thread
//! that synced the log dispatches what it made safe, then publishes `confirmed`, then wakes the waiters. Replication will
//! call [`Parts::confirm`] whenever a replica's acknowledgement moves the mark.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::StoreError;
use crate::log::flush::sync_files;
use crate::log::gate::Refusal;
use crate::queue::dispatch::Replay;
use crate::store::Parts;

impl Parts {
    /// To be called after one or several appends: dispatches them, or asks for the sync that will.
    #[inline]
    pub(crate) fn dispatch_appended(&self) {
        self.dispatch.run(&self.context(Replay::No));
        self.index.notify();
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
        let outcome = sync_files(&self.log, from, end);
        self.flush.syncs.fetch_add(1, Ordering::Relaxed);
        match &outcome {
            Ok(()) => {
                self.log.progress.set_flushed(end);
                self.confirm();
            }
            Err(error) => {
                self.gate.shut(Refusal::FailedSync);
                self.reports
                    .add(format!("a sync of the commit log failed, no more writes are taken: {error}"));
            }
        }
        self.flush.wake_waiters();
        let events = self.events.read().as_ref().map(Arc::clone);
        if let Some(events) = events {
            events.confirmed(self.log.progress.confirmed(), outcome.is_err());
        }
        outcome
    }

    /// Dispatches what has become safe to show, and only then says that it is confirmed.
    fn confirm(&self) {
        let progress = &self.log.progress;
        if progress.is_confirmed_by_append() {
            return;
        }
        let end = progress.confirmable();
        progress.set_confirmed(end);
    }
}
