//! How far the log has come: the marks that decide when a record may be acknowledged and read.
//!
//! ```text
//! 0 ────────────── confirmed ────────────── flushed ────────────── appended
//!   answered and readable    on this disk             laid out in memory
//! ```
//! Every mark is the physical offset after the last record it covers, so it always stands between two records. With
//! asynchronous flush `confirmed` is `appended`; with synchronous flush it follows `flushed`.
//!
//! With synchronous flush `confirmed` moves in two steps, so that a record is in its queue before its sender gets an
//! answer: [`Progress::confirmable`] moves with the sync, dispatch runs up to it, and then
//! [`Progress::set_confirmed`] lets the answers go.

use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) struct Progress {
    sync_flush: bool,
    appended: AtomicI64,
    flushed: AtomicI64,
    /// Used with synchronous flush only.
    confirmed: AtomicI64,
}

impl Progress {
    /// `flushed` is how much of an opened log is known to be on the disk; none of the rest is confirmed if that needs
    /// a sync.
    pub(crate) fn new(sync_flush: bool, flushed: i64, appended: i64) -> Self {
        Self {
            sync_flush,
            appended: AtomicI64::new(appended),
            flushed: AtomicI64::new(flushed),
            confirmed: AtomicI64::new(flushed),
        }
    }

    /// Whether an append alone confirms a record, with no other thread involved.
    #[inline]
    pub(crate) fn is_confirmed_by_append(&self) -> bool {
        !self.sync_flush
    }

    #[inline]
    pub(crate) fn appended(&self) -> i64 {
        self.appended.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn set_appended(&self, end_offset: i64) {
        self.appended.store(end_offset, Ordering::Release);
    }

    #[inline]
    pub(crate) fn flushed(&self) -> i64 {
        self.flushed.load(Ordering::Acquire)
    }

    pub(crate) fn set_flushed(&self, end_offset: i64) {
        self.flushed.fetch_max(end_offset, Ordering::AcqRel);
    }

    /// How far records are safe enough to be shown: the one rule. Dispatch and reads by physical offset stop here.
    /// Replication will take the minimum over the replicas here.
    #[inline]
    pub(crate) fn confirmable(&self) -> i64 {
        if self.sync_flush { self.flushed() } else { self.appended() }
    }

    /// How far records are confirmed: safe as the settings say, and dispatched to their queues.
    #[inline]
    pub(crate) fn confirmed(&self) -> i64 {
        if self.sync_flush { self.confirmed.load(Ordering::Acquire) } else { self.appended() }
    }

    /// To be called after dispatch has run up to `end_offset`, an earlier value of [`Progress::confirmable`].
    pub(crate) fn set_confirmed(&self, end_offset: i64) {
        self.confirmed.fetch_max(end_offset, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_flush_confirms_what_is_appended() {
        let progress = Progress::new(false, 10, 20);
        assert_eq!((progress.confirmable(), progress.confirmed(), progress.flushed()), (20, 20, 10));
        progress.set_appended(30);
        assert_eq!((progress.confirmable(), progress.confirmed(), progress.flushed()), (30, 30, 10));
    }

    #[test]
    fn synchronous_flush_confirms_what_is_flushed_and_dispatched() {
        let progress = Progress::new(true, 10, 20);
        assert_eq!((progress.confirmable(), progress.confirmed()), (10, 10));
        progress.set_appended(30);
        progress.set_flushed(30);
        assert_eq!((progress.confirmable(), progress.confirmed()), (30, 10));
        progress.set_confirmed(30);
        assert_eq!(progress.confirmed(), 30);
        progress.set_flushed(20);
        progress.set_confirmed(20);
        assert_eq!((progress.confirmable(), progress.confirmed()), (30, 30), "marks never go back");
    }
}
