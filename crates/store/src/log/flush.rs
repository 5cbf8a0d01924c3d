//! Bringing the commit log to the disk: one thread, one sync for all who wait.
//!
//! A sender that wants its record safe leaves its end offset as a request and parks elsewhere. The thread syncs up to
//! wherever the log ends by then, publishes that offset, and begins again when there are newer requests: while one sync
//! runs, the next group gathers. After a failed sync nothing is ever called flushed again: the kernel drops what it
//! could not write, so a second sync that succeeds would prove nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::log::gate::{Gate, Refusal, Reports};
use crate::queue::dispatch::Events;

pub(crate) struct Flush {
    sync_flush: bool,
    interval: Duration,
    requested: AtomicI64,
    flushed: AtomicI64,
    pub(crate) syncs: AtomicU64,
    /// The thread sleeps, or is about to.
    idle: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
    /// Told after every sync, for those who wait without events.
    done: Condvar,
    waiters: Mutex<()>,
    /// One sync at a time, whoever asks.
    syncing: Mutex<()>,
}

impl Flush {
    pub(crate) fn new(sync_flush: bool, interval_ms: u64, flushed: i64) -> Self {
        Self {
            sync_flush,
            interval: Duration::from_millis(interval_ms),
            requested: AtomicI64::new(flushed),
            flushed: AtomicI64::new(flushed),
            syncs: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            stop: Mutex::new(false),
            wake: Condvar::new(),
            done: Condvar::new(),
            waiters: Mutex::new(()),
            syncing: Mutex::new(()),
        }
    }

    #[inline]
    pub(crate) fn flushed(&self) -> i64 {
        self.flushed.load(Ordering::Acquire)
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

    /// True once everything below `end_offset` is on the disk.
    pub(crate) fn wait(&self, end_offset: i64, timeout: Duration, gate: &Gate) -> bool {
        let deadline = Instant::now() + timeout;
        self.request(end_offset);
        let mut waiters = self.waiters.lock();
        while self.flushed() < end_offset {
            if gate.is_shut(Refusal::FailedSync) || self.done.wait_until(&mut waiters, deadline).timed_out() {
                break;
            }
        }
        self.flushed() >= end_offset
    }

    /// The thread.
    pub(crate) fn run(&self, log: &CommitLog, gate: &Gate, events: &Events, reports: &Reports) {
        while self.sleep() {
            let is_due = !self.sync_flush || self.requested.load(Ordering::SeqCst) > self.flushed();
            // The outcome is in the gate, the events and the reports.
            let _ = if is_due { self.sync(log, gate, events, reports) } else { Ok(()) };
            if gate.is_shut(Refusal::FailedSync) {
                return;
            }
        }
    }

    /// Waits until there is work: a newer request or, with asynchronous flush, the interval. False: stop.
    fn sleep(&self) -> bool {
        let mut stop = self.stop.lock();
        self.idle.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !*stop && self.requested.load(Ordering::SeqCst) <= self.flushed() {
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

    /// Syncs every file between what is flushed and the end of the log, and tells everybody.
    pub(crate) fn sync(
        &self,
        log: &CommitLog,
        gate: &Gate,
        events: &Events,
        reports: &Reports,
    ) -> Result<(), StoreError> {
        let _one_at_a_time = self.syncing.lock();
        if gate.is_shut(Refusal::FailedSync) {
            return Err(StoreError::FailedSync);
        }
        let from = self.flushed();
        let end = log.appended_end();
        if from >= end {
            return Ok(());
        }
        let outcome = sync_files(log, from, end);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let failed = outcome.is_err();
        if let Err(error) = &outcome {
            gate.shut(Refusal::FailedSync);
            reports.add(format!("a sync of the commit log failed, no more writes are taken: {error}"));
        } else {
            self.flushed.store(end, Ordering::Release);
        }
        {
            let _waiters = self.waiters.lock();
            self.done.notify_all();
        }
        let events = events.read().as_ref().map(Arc::clone);
        if let Some(events) = events {
            events.flushed(self.flushed(), failed);
        }
        outcome
    }

    pub(crate) fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
    }
}

fn sync_files(log: &CommitLog, from: i64, end: i64) -> Result<(), StoreError> {
    for file in log.files().iter() {
        if file.start_offset < end && file.end_offset() > from {
            let position = |offset: i64| (offset - file.start_offset).max(0) as u64;
            file.sync(&*log.disk, position(from), position(end))?;
        }
    }
    Ok(())
}
