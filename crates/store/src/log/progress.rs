//! How far the log has come: the marks that decide when a record may be acknowledged and read.
//!
//! ```text
//! 0 ────────────── confirmed ────────────── flushed ────────────── appended
//!   answered and readable    on this disk             laid out in memory
//! ```
//! Every mark is the physical offset after the last record it covers, so it always stands between two records. Without
//! replicas and with asynchronous flush `confirmed` is `appended`; with synchronous flush it follows `flushed`. With
//! replicas it also waits for `replicated`: on a master the log that all required replicas hold, on a replica the log
//! that its master has confirmed.
//!
//! If anything but the append is needed, `confirmed` moves in two steps, so that a record is in its queue before its
//! sender gets an answer: [`Progress::confirmable`] moves first, dispatch runs up to it, and then
//! [`Progress::set_confirmed`] lets the answers go.

use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) struct Progress {
    sync_flush: bool,
    appended: AtomicI64,
    flushed: AtomicI64,
    /// `i64::MAX` if nobody else must hold the log.
    replicated: AtomicI64,
    /// Used if an append alone does not confirm.
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
            replicated: AtomicI64::new(i64::MAX),
            confirmed: AtomicI64::new(flushed),
        }
    }

    /// Whether an append alone confirms a record, with no other thread involved.
    #[inline]
    pub(crate) fn is_confirmed_by_append(&self) -> bool {
        !self.sync_flush && self.replicated.load(Ordering::Acquire) == i64::MAX
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

    /// Lets nothing beyond `end_offset` be confirmed from now on; `i64::MAX` ends that. What is confirmed stays so.
    /// To be called while nothing is appended.
    pub(crate) fn gate(&self, end_offset: i64) {
        self.confirmed.fetch_max(self.confirmed(), Ordering::AcqRel);
        self.replicated.store(end_offset, Ordering::Release);
    }

    /// Moves the gate, but not below what is confirmed.
    pub(crate) fn set_replicated(&self, end_offset: i64) {
        self.replicated.store(end_offset.max(self.confirmed()), Ordering::Release);
    }

    /// How far records are safe enough to be shown: the one rule. Dispatch and reads by physical offset stop here.
    #[inline]
    pub(crate) fn confirmable(&self) -> i64 {
        let own = if self.sync_flush { self.flushed() } else { self.appended() };
        own.min(self.replicated.load(Ordering::Acquire))
    }

    /// How far records are confirmed: safe as the settings say, and dispatched to their queues.
    #[inline]
    pub(crate) fn confirmed(&self) -> i64 {
        if self.is_confirmed_by_append() { self.appended() } else { self.confirmed.load(Ordering::Acquire) }
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

    #[test]
    fn a_gate_holds_confirmation_back_with_either_flush() {
        for sync_flush in [false, true] {
            let progress = Progress::new(sync_flush, 20, 20);
            progress.gate(10);
            assert_eq!(progress.confirmed(), 20, "what is confirmed stays so");
            progress.set_appended(40);
            progress.set_flushed(40);
            assert!(!progress.is_confirmed_by_append());
            assert_eq!((progress.confirmable(), progress.confirmed()), (10, 20));
            progress.set_replicated(30);
            assert_eq!((progress.confirmable(), progress.confirmed()), (30, 20));
            progress.set_confirmed(30);
            progress.set_replicated(25);
            assert_eq!((progress.confirmable(), progress.confirmed()), (30, 30), "confirmed stays confirmed");
            progress.gate(i64::MAX);
            assert_eq!(progress.confirmable(), 40);
            assert_eq!(progress.confirmed(), if sync_flush { 30 } else { 40 });
        }
    }
}
