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

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

use crate::log::lease::Lease;

pub(crate) struct Progress {
    sync_flush: bool,
    appended: AtomicI64,
    flushed: AtomicI64,
    /// `i64::MAX` if nobody else must hold the log.
    replicated: AtomicI64,
    /// Used if an append alone does not confirm.
    confirmed: AtomicI64,
    /// Held while `confirmed` moves or the gate is set: a mark never moves past a gate that was set before.
    moving: Mutex<()>,
    lease: Arc<Lease>,
}

/// Everything is replicated, but a record still needs more than its append to be confirmed.
const OPEN_GATE: i64 = i64::MAX - 1;

impl Progress {
    /// `flushed` is how much of an opened log is known to be on the disk; none of the rest is confirmed if that needs
    /// a sync. Nothing is confirmed beyond `replicated`, which is `i64::MAX` if nobody else must hold the log.
    pub(crate) fn new(
        sync_flush: bool,
        flushed: i64,
        appended: i64,
        replicated: i64,
        lease: Arc<Lease>,
    ) -> Self {
        Self {
            sync_flush,
            appended: AtomicI64::new(appended),
            flushed: AtomicI64::new(flushed),
            replicated: AtomicI64::new(replicated),
            confirmed: AtomicI64::new(flushed.min(replicated)),
            moving: Mutex::new(()),
            lease,
        }
    }

    /// Whether an append alone confirms a record, with no other thread involved.
    #[inline]
    pub(crate) fn is_confirmed_by_append(&self) -> bool {
        !self.sync_flush && self.replicated.load(Ordering::Acquire) == i64::MAX
    }

    /// Whether a record waits for somebody else who must hold it.
    pub(crate) fn needs_replicas(&self) -> bool {
        self.replicated.load(Ordering::Acquire) < OPEN_GATE
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
        let _fixed = self.moving.lock();
        self.confirmed.fetch_max(self.confirmed(), Ordering::AcqRel);
        self.replicated.store(end_offset, Ordering::Release);
    }

    /// Lets nothing more be confirmed from now on.
    pub(crate) fn close_gate(&self) {
        let _fixed = self.moving.lock();
        let confirmed = self.confirmed();
        self.confirmed.fetch_max(confirmed, Ordering::AcqRel);
        self.replicated.store(confirmed, Ordering::Release);
    }

    /// Moves the gate, but not below what is confirmed.
    pub(crate) fn set_replicated(&self, end_offset: i64) {
        self.replicated.store(end_offset.max(self.confirmed()), Ordering::Release);
    }

    /// Sets the time after which nothing is confirmed. From now on an append alone does not confirm, even without
    /// replicas. The first lease is to be set while nothing is appended.
    pub(crate) fn set_lease(&self, deadline_ms: Option<i64>) {
        if self.replicated.load(Ordering::Acquire) == i64::MAX && deadline_ms.is_some() {
            self.gate(OPEN_GATE);
        }
        self.lease.set(deadline_ms);
    }

    pub(crate) fn is_lease_over(&self) -> bool {
        self.lease.is_over()
    }

    /// How far records are safe enough to be shown: the one rule. Dispatch and reads by physical offset stop here.
    #[inline]
    pub(crate) fn confirmable(&self) -> i64 {
        let own = if self.sync_flush { self.flushed() } else { self.appended() };
        match self.replicated.load(Ordering::Acquire) {
            i64::MAX => own,
            replicated if self.lease.is_over() => own.min(replicated).min(self.confirmed()),
            replicated => own.min(replicated),
        }
    }

    /// How far records are confirmed: safe as the settings say, and dispatched to their queues.
    #[inline]
    pub(crate) fn confirmed(&self) -> i64 {
        if self.is_confirmed_by_append() { self.appended() } else { self.confirmed.load(Ordering::Acquire) }
    }

    /// To be called after dispatch has run up to `end_offset`, an earlier value of [`Progress::confirmable`]. That may
    /// have taken a while: a gate that was closed meanwhile counts, and so does a lease that is over.
    pub(crate) fn set_confirmed(&self, end_offset: i64) {
        let _fixed = self.moving.lock();
        self.confirmed.fetch_max(end_offset.min(self.confirmable()), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boot_time_ms;

    fn progress(sync_flush: bool, flushed: i64, appended: i64, replicated: i64) -> Progress {
        Progress::new(sync_flush, flushed, appended, replicated, Arc::new(Lease::none()))
    }

    #[test]
    fn asynchronous_flush_confirms_what_is_appended() {
        let progress = progress(false, 10, 20, i64::MAX);
        assert_eq!((progress.confirmable(), progress.confirmed(), progress.flushed()), (20, 20, 10));
        progress.set_appended(30);
        assert_eq!((progress.confirmable(), progress.confirmed(), progress.flushed()), (30, 30, 10));
    }

    #[test]
    fn synchronous_flush_confirms_what_is_flushed_and_dispatched() {
        let progress = progress(true, 10, 20, i64::MAX);
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
    fn an_opened_log_confirms_nothing_beyond_its_gate() {
        for sync_flush in [false, true] {
            let progress = progress(sync_flush, 20, 40, 10);
            progress.set_flushed(40);
            assert_eq!((progress.confirmable(), progress.confirmed()), (10, 10));
        }
    }

    #[test]
    fn after_a_lease_nothing_is_confirmed_with_either_flush() {
        for sync_flush in [false, true] {
            let progress = progress(sync_flush, 20, 20, i64::MAX);
            progress.set_lease(Some(boot_time_ms() + 3_600_000));
            assert!(!progress.is_confirmed_by_append());
            progress.set_appended(40);
            progress.set_flushed(40);
            assert_eq!((progress.confirmable(), progress.confirmed()), (40, 20));
            progress.set_lease(Some(boot_time_ms()));
            assert_eq!((progress.confirmable(), progress.confirmed()), (20, 20));
            progress.set_confirmed(40);
            assert_eq!(progress.confirmed(), 20, "it was over before the mark moved");
            progress.set_lease(None);
            progress.set_confirmed(40);
            assert_eq!(progress.confirmed(), 40);
        }
    }

    #[test]
    fn a_closed_gate_stops_a_mark_that_is_about_to_move() {
        let progress = progress(true, 20, 40, i64::MAX - 1);
        progress.set_flushed(40);
        let end = progress.confirmable();
        progress.close_gate();
        progress.set_confirmed(end);
        assert_eq!((progress.confirmable(), progress.confirmed()), (20, 20));
    }

    #[test]
    fn a_gate_holds_confirmation_back_with_either_flush() {
        for sync_flush in [false, true] {
            let progress = progress(sync_flush, 20, 20, i64::MAX);
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
