//! Bringing the commit log to the disk: one thread, one sync for all who wait.
//!
//! A sender that needs its record on the disk leaves its end offset as a request and waits elsewhere. The thread syncs
//! up to wherever the log ends by then, and begins again if there are newer requests: while one sync runs, the next
//! group gathers. After a failed sync nothing counts as flushed any more: the kernel drops what it could not write, so
//! a second sync that succeeds would prove nothing.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::log::flush_times::FlushTimes;
use crate::log::gate::{Gate, Refusal};
use crate::log::progress::Progress;

pub(crate) struct Flush {
    sync_flush: bool,
    interval: Duration,
    requested: AtomicI64,
    pub(crate) syncs: AtomicU64,
    pub(crate) times: FlushTimes,
    created: Instant,
    /// When the sync under way began, in milliseconds after `created`; −1 if there is none.
    sync_began_ms: AtomicI64,
    /// The thread sleeps, or is about to.
    idle: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
    /// Notified after every sync, for those who wait without events.
    done: Condvar,
    waiters: Mutex<()>,
    /// Held from a sync to the last answer it allows: one at a time, whoever asks.
    pub(crate) syncing: Mutex<()>,
}

impl Flush {
    pub(crate) fn new(sync_flush: bool, interval_ms: u64) -> Self {
        Self {
            sync_flush,
            interval: Duration::from_millis(interval_ms),
            requested: AtomicI64::new(0),
            syncs: AtomicU64::new(0),
            times: FlushTimes::default(),
            created: Instant::now(),
            sync_began_ms: AtomicI64::new(-1),
            idle: AtomicBool::new(false),
            stop: Mutex::new(false),
            wake: Condvar::new(),
            done: Condvar::new(),
            waiters: Mutex::new(()),
            syncing: Mutex::new(()),
        }
    }

    /// Asks for everything below `end_offset` to be synced soon; wakes the thread only when it sleeps.
    #[inline]
    pub(crate) fn request(&self, end_offset: i64) {
        self.requested.fetch_max(end_offset, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) {
            let _sleeping = self.stop.lock();
            self.wake.notify_one();
        }
    }

    /// Runs a sync, so that others see how long it takes.
    pub(crate) fn timed<T>(&self, sync: impl FnOnce() -> T) -> T {
        self.sync_began_ms.store(self.created.elapsed().as_millis() as i64, Ordering::Release);
        let outcome = sync();
        self.sync_began_ms.store(-1, Ordering::Release);
        outcome
    }

    /// How long the sync under way has been running; 0 if there is none.
    pub(crate) fn sync_age_ms(&self) -> i64 {
        match self.sync_began_ms.load(Ordering::Acquire) {
            -1 => 0,
            began_ms => (self.created.elapsed().as_millis() as i64 - began_ms).max(0),
        }
    }

    /// Asks for a sync up to `end_offset` and waits until `is_reached` says yes after one; false on a time-out and
    /// after a failed sync.
    pub(crate) fn wait(
        &self,
        end_offset: i64,
        timeout: Duration,
        gate: &Gate,
        is_reached: impl Fn() -> bool,
    ) -> bool {
        if is_reached() {
            return true;
        }
        let deadline = Instant::now() + timeout;
        self.request(end_offset);
        let mut waiters = self.waiters.lock();
        while !is_reached() {
            if gate.is_shut(Refusal::FailedSync) || self.done.wait_until(&mut waiters, deadline).timed_out() {
                break;
            }
        }
        is_reached()
    }

    /// Wakes everybody in [`Flush::wait`].
    pub(crate) fn wake_waiters(&self) {
        let _waiters = self.waiters.lock();
        self.done.notify_all();
    }

    /// The thread. `sync` reports its outcome by itself.
    pub(crate) fn run(&self, progress: &Progress, gate: &Gate, sync: impl Fn()) {
        while self.sleep(progress) {
            if !self.sync_flush || self.requested.load(Ordering::SeqCst) > progress.flushed() {
                sync();
            }
            if gate.is_shut(Refusal::FailedSync) {
                return;
            }
        }
    }

    /// Waits until there is work: a newer request or, with asynchronous flush, the interval. False: stop.
    fn sleep(&self, progress: &Progress) -> bool {
        let mut stop = self.stop.lock();
        self.idle.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !*stop && self.requested.load(Ordering::SeqCst) <= progress.flushed() {
            let timed_out = if self.sync_flush {
                self.wake.wait(&mut stop);
                false
            } else {
                self.wake.wait_for(&mut stop, self.interval).timed_out()
            };
            if timed_out {
                break;
            }
        }
        self.idle.store(false, Ordering::SeqCst);
        !*stop
    }

    pub(crate) fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
    }
}

/// Syncs every file of the log between the two physical offsets.
pub(crate) fn sync_files(log: &CommitLog, from: i64, end: i64) -> Result<(), StoreError> {
    for file in log.files().iter() {
        if file.start_offset < end && file.end_offset() > from {
            let position = |offset: i64| (offset - file.start_offset).max(0) as u64;
            file.sync(&*log.disk, position(from), position(end))?;
        }
    }
    Ok(())
}
