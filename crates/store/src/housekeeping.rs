//! Housekeeping: one thread that writes queue entries, saves the checkpoint and watches the disk.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::StoreError;
use crate::log::gate::Refusal;
use crate::queue::dispatch::Context;
use crate::recovery::checkpoint::{Bound, Checkpoint, Saved, Times};
use crate::store::OpenStore;

/// Queue flushes between two checkpoints.
const FLUSHES_PER_CHECKPOINT: u32 = 3;
/// Checkpoints between two syncs of the index, whose pages are many and scattered.
const CHECKPOINTS_PER_INDEX_SYNC: u32 = 10;
const DISK_LOOK_INTERVAL: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of the commit log that stay mapped in memory; older ones only while they are read.
const MAPPED_BYTES_KEPT: i64 = 64 << 20;
/// Flushes of queues that may fail in a row before appends are refused, unless the disk is full. A brief shortage, of
/// file descriptors for example, is over by the next flush.
const FLUSH_FAILURES_MAX: u32 = 1;
/// A long round is followed by a pause this many times longer, so that many queues do not occupy a core.
const REST_FACTOR: u32 = 10;

pub(crate) struct Housekeeping {
    checkpoint: Checkpoint,
    /// The bound in the last checkpoint, or −1.
    saved_end: AtomicI64,
    /// The synced end in the last checkpoint.
    saved_flushed: AtomicI64,
    /// The least flushed mark for a checkpoint.
    flushed_mark_min: AtomicI64,
    /// After a failed sync of queue files their content is unknown, so the bound stays where it is.
    queues_doubtful: AtomicBool,
    /// Nothing may be appended before the next checkpoint.
    must_save: AtomicBool,
    /// Flushes of queues that failed since the last successful one.
    flush_failures: AtomicU32,
    /// The digest of the queues' files for the checkpoint; 0 except at an orderly stop.
    pub(crate) queue_files: AtomicI64,
    saving: Mutex<()>,
    /// The content of the last checkpoint; held while the file is written.
    saved: Mutex<Option<(Times, Bound)>>,
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Housekeeping {
    /// `saved_end` is the bound of the earlier checkpoint `saved` if it still holds, else −1. Checkpoints keep its flushed
    /// mark until it is accepted that the log has lost something.
    pub(crate) fn new(checkpoint: Checkpoint, saved: &Saved, saved_end: i64) -> Self {
        let flushed_mark = saved.bound.as_ref().map_or(0, |bound| bound.flushed_mark);
        Self {
            checkpoint,
            saved_end: AtomicI64::new(saved_end),
            saved_flushed: AtomicI64::new(-1),
            flushed_mark_min: AtomicI64::new(flushed_mark),
            queues_doubtful: AtomicBool::new(false),
            must_save: AtomicBool::new(false),
            flush_failures: AtomicU32::new(0),
            queue_files: AtomicI64::new(0),
            saving: Mutex::new(()),
            saved: Mutex::new(saved.bound.map(|bound| (saved.times, bound))),
            stop: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    /// Records below this offset, and their queue entries, are on the disk.
    pub(crate) fn saved_end(&self) -> i64 {
        self.saved_end.load(Ordering::Acquire)
    }

    /// Forgets the flushed mark of earlier starts; the next checkpoint has this one's.
    pub(crate) fn forget_flushed_mark(&self) {
        self.flushed_mark_min.store(0, Ordering::Release);
    }

    /// Writes the last checkpoint again with a lower number of queues, because some are about to be deleted.
    pub(crate) fn lower_queue_count(&self, with: &Context<'_>) -> Result<(), StoreError> {
        let disk = &with.queues.disk;
        let mut saved = self.saved.lock();
        let Some((times, bound)) = saved.as_mut() else { return Ok(()) };
        bound.queue_count = bound.queue_count.min(disk.directory_count.load(Ordering::Acquire));
        // Valid only for the files of an orderly stop.
        bound.queue_files = 0;
        self.checkpoint.save(&*disk.disk, times, bound)
    }

    pub(crate) fn require_save(&self) {
        self.must_save.store(true, Ordering::Release);
    }

    pub(crate) fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
    }

    /// Sleeps; returns false when it is time to stop.
    fn sleep(&self, pause: Duration) -> bool {
        let mut stop = self.stop.lock();
        if !*stop {
            self.wake.wait_for(&mut stop, pause);
        }
        !*stop
    }
}

impl OpenStore {
    /// The housekeeping thread.
    pub(crate) fn run_housekeeping(&self) {
        let interval = Duration::from_millis(self.settings.queue_flush_interval_ms);
        let mut pause = interval.min(DISK_LOOK_INTERVAL);
        let mut disk_due = Instant::now();
        let mut retention_due = Instant::now() + RETENTION_INTERVAL;
        let mut rounds = 0_u32;
        while self.housekeeping.sleep(pause) {
            let begin = Instant::now();
            rounds = rounds.wrapping_add(1);
            let with_checkpoint = rounds % FLUSHES_PER_CHECKPOINT == 0;
            let with_index = rounds % (FLUSHES_PER_CHECKPOINT * CHECKPOINTS_PER_INDEX_SYNC) == 0;
            self.finish_dispatch();
            self.note_lost_pages();
            self.check_suspects();
            self.flush_queues();
            if with_checkpoint {
                if let Err(error) = self.save_checkpoint(with_index, false) {
                    self.reports.add(format!("the checkpoint could not be saved: {error}"));
                }
            }
            if begin >= disk_due {
                disk_due = begin + DISK_LOOK_INTERVAL;
                self.check_disk_level();
            }
            if begin >= retention_due {
                retention_due = begin + RETENTION_INTERVAL;
                self.log.release_memory(MAPPED_BYTES_KEPT);
                if let Err(error) = self.clean(false) {
                    self.reports.add(format!("retention failed: {error}"));
                }
            }
            pause = interval.max(begin.elapsed() * REST_FACTOR);
        }
    }

    /// Acknowledges nothing more if a file of the log lost pages: what was appended to them is nowhere. What is damaged
    /// there is found like any other damage.
    fn note_lost_pages(&self) {
        for file in self.log.files().iter() {
            let Some(position) = file.take_loss() else { continue };
            self.reports.add(StoreError::LostPages { path: file.path().to_owned(), position }.to_string());
            self.log.damage.suspect(file.start_offset + position as i64);
            if self.gate.shut(Refusal::FailedSync) {
                self.reports.add("writes are refused until the store is opened again".to_owned());
                self.announce(true);
            }
        }
    }

    /// Writes the queue entries that wait in memory. If they cannot be written, appends are refused.
    pub(crate) fn flush_queues(&self) {
        let mut outcome = self.queues.flush();
        let must_save = self.housekeeping.must_save.load(Ordering::Acquire);
        if outcome.is_ok() && must_save {
            outcome = self.save_checkpoint(false, false);
        }
        match outcome {
            Ok(()) => {
                self.housekeeping.flush_failures.store(0, Ordering::Relaxed);
                if self.gate.lift(Refusal::QueuesStuck) {
                    self.reports.add("queue entries can be written again, appends are accepted".to_owned());
                }
            }
            Err(error) => {
                let failures = self.housekeeping.flush_failures.fetch_add(1, Ordering::Relaxed);
                let is_disk_full = matches!(error, StoreError::DiskFull { .. });
                if must_save || is_disk_full || failures >= FLUSH_FAILURES_MAX {
                    self.gate.shut_for_queues(&error, &self.reports);
                } else {
                    self.reports
                        .add(format!("queue entries could not be written and will be tried again: {error}"));
                }
            }
        }
    }

    /// Syncs everything dispatched so far, the log first and then the queues, and only then says so in the checkpoint.
    /// With `forced` it does so even if nothing was dispatched since the last one.
    pub(crate) fn save_checkpoint(&self, with_index: bool, forced: bool) -> Result<(), StoreError> {
        let _one_at_a_time = self.housekeeping.saving.lock();
        let (end, last_record) = self.dispatch.position();
        // Whoever wanted to dispatch while the position was read has left that to this thread.
        self.dispatch.run(&self.context());
        let is_saved = end == self.housekeeping.saved_end()
            && self.log.progress.flushed() == self.housekeeping.saved_flushed.load(Ordering::Acquire);
        if is_saved && !forced && !with_index && !self.housekeeping.must_save.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.log.progress.flushed() < end {
            self.sync_log()?;
        }
        self.queues.flush()?;
        if self.housekeeping.queues_doubtful.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Err(error) = self.queues.disk.sync() {
            self.housekeeping.queues_doubtful.store(true, Ordering::Release);
            return Err(error);
        }
        if with_index {
            self.index.sync()?;
        }
        let flushed = self.log.progress.flushed();
        let last_time_ms = self.reader().record_time_ms(last_record).unwrap_or(0);
        let times = Times {
            log_ms: last_time_ms,
            queues_ms: last_time_ms,
            index_ms: self.index.synced_time_ms(),
            flushed_offset: flushed,
            confirmed_offset: end,
        };
        let mut saved = self.housekeeping.saved.lock();
        let bound = Bound {
            lower_bound: end,
            last_record,
            synced_end: flushed,
            index_synced_end: self.index.synced_end(),
            queue_count: self.queues.disk.directory_count.load(Ordering::Acquire),
            queue_files: self.housekeeping.queue_files.load(Ordering::Acquire),
            flushed_mark: flushed.max(self.housekeeping.flushed_mark_min.load(Ordering::Acquire)),
            boot_id: self.boot_id,
        };
        self.housekeeping.checkpoint.save(&*self.disk, &times, &bound)?;
        *saved = Some((times, bound));
        drop(saved);
        self.housekeeping.saved_end.store(end, Ordering::Release);
        self.housekeeping.saved_flushed.store(flushed, Ordering::Release);
        self.housekeeping.must_save.store(false, Ordering::Release);
        Ok(())
    }

    /// Refuses appends while the disk is fuller than `disk_refuse_percent`.
    pub(crate) fn check_disk_level(&self) {
        let Ok(space) = self.space() else { return };
        let used_percent = space.used_percent();
        // Twice what an append takes at once, so that the next one does not fail again.
        if self.gate.lacks_room() && space.available_bytes >= self.settings.allocation_step_bytes * 2 {
            self.gate.note_room();
        }
        if used_percent >= self.retention.read().disk_refuse_percent {
            if self.gate.shut(Refusal::DiskLevel) {
                self.reports.add(format!("the disk is {used_percent} % full, appends are refused"));
            }
        } else if self.gate.lift(Refusal::DiskLevel) {
            self.reports.add(format!("the disk is {used_percent} % full, appends are accepted again"));
        }
    }
}
