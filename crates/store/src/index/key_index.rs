//! Builds and queries the key index. A thread of its own follows dispatch in batches, a few milliseconds behind. What
//! it missed at a kill it reads again at the next start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::index::check::Repairs;
use crate::index::file::{IndexFile, IndexSizes};
use crate::index::keys::{Found, IndexedKey};
use crate::log::commit_log::CommitLog;
use crate::log::gate::Reports;
use crate::recovery::log_walk::{Step, walk};
use crate::settings::StoreSettings;

/// How long new records are collected before they are indexed together.
const BATCH_PAUSE: Duration = Duration::from_millis(3);
/// Pause of the thread after a failure, such as a full disk.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Records indexed between two checks whether to stop.
const PASS_RECORDS_MAX: usize = 2_048;
/// Keys that are collected before they are put into the index. Records from elsewhere may have thousands of them.
const PASS_KEYS_MAX: usize = 16_384;
/// The most bytes of the log that are indexed at a stop, which takes about a tenth of a second.
const CATCH_UP_BYTES_MAX: i64 = 64 << 20;

/// How long a query waits for the index to catch up. The index is usually a few milliseconds behind.
const QUERY_WAIT_MAX: Duration = Duration::from_millis(500);

/// Entries that are written under one lock and whose slots are read together.
const GROUP_KEYS: usize = 32;

pub(crate) struct Index {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) directory: PathBuf,
    sizes: IndexSizes,
    pub(crate) repairs: Repairs,
    /// Sorted by age, oldest first. New entries go to the last one.
    pub(super) files: RwLock<Vec<IndexFile>>,
    pub(super) indexed_end: AtomicI64,
    pub(super) synced_end: AtomicI64,
    synced_time_ms: AtomicI64,
    idle: AtomicBool,
    pub(super) stop: AtomicBool,
    /// The last attempt to write failed.
    is_blocked: AtomicBool,
    /// Queries that wait for the index to catch up.
    waiting: AtomicUsize,
    sleeping: Mutex<()>,
    wake: Condvar,
    advanced: Condvar,
}

impl Index {
    /// Opens the existing files and decides from where the log has to be indexed again. Files that cannot be trusted
    /// are deleted: damaged ones, ones of another size, and ones that reach past the end of the log or past
    /// `synced_end`.
    pub(crate) fn open(
        settings: &StoreSettings,
        disk: Arc<dyn Disk>,
        log_start: i64,
        log_end: i64,
        synced_end: i64,
        reports: &Reports,
    ) -> Result<Self, StoreError> {
        let directory = settings.directory.join("index");
        let fail = |source| StoreError::io(&directory, source);
        disk.create_directory(&directory).map_err(fail)?;
        let sizes = IndexSizes { slots: settings.index_slots, entries: settings.index_entries };
        let mut files: Vec<IndexFile> = Vec::new();
        let mut is_broken = false;
        let mut was_dropped = false;
        for entry in disk.read_directory(&directory).map_err(fail)? {
            if entry.is_directory || entry.name.parse::<u64>().is_err() {
                continue;
            }
            let path = directory.join(&entry.name);
            if !is_broken {
                match open_file(&*disk, &path, sizes) {
                    Ok(Some(file)) if file.span().end_offset < log_end.min(synced_end) => {
                        files.push(file);
                        continue;
                    }
                    Err(error @ (StoreError::Io { .. } | StoreError::DiskFull { .. })) => return Err(error),
                    _ => is_broken = true,
                }
            }
            was_dropped = true;
            reports.add(format!("index file {} cannot be trusted and is rebuilt", path.display()));
            disk.remove_file(&path).map_err(fail)?;
        }
        // The last record is indexed again, because a kill may have come between its keys.
        let indexed_end = files.last().map_or(log_start, |file| file.span().end_offset.max(log_start));
        let is_rebuilt = was_dropped || files.is_empty();
        Ok(Self {
            repairs: Repairs::new(if is_rebuilt { log_end } else { 0 }),
            disk,
            directory,
            sizes,
            files: RwLock::new(files),
            indexed_end: AtomicI64::new(indexed_end),
            synced_end: AtomicI64::new(synced_end.min(indexed_end)),
            synced_time_ms: AtomicI64::new(0),
            idle: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            sleeping: Mutex::new(()),
            wake: Condvar::new(),
            advanced: Condvar::new(),
        })
    }

    pub(crate) fn indexed_end(&self) -> i64 {
        self.indexed_end.load(Ordering::Acquire)
    }

    pub(crate) fn synced_end(&self) -> i64 {
        self.synced_end.load(Ordering::Acquire)
    }

    /// The store time of the last record that was indexed when the index was last synced.
    pub(crate) fn synced_time_ms(&self) -> i64 {
        self.synced_time_ms.load(Ordering::Acquire)
    }

    /// Wakes the thread if it sleeps; called after a dispatch.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.idle.load(Ordering::Relaxed) && self.idle.swap(false, Ordering::AcqRel) {
            let _sleeping = self.sleeping.lock();
            self.wake.notify_one();
        }
    }

    /// The thread. It indexes records below `dispatched_end`.
    pub(crate) fn run(&self, log: &CommitLog, dispatched_end: impl Fn() -> i64, reports: &Reports) {
        self.check_all(log, reports);
        while !self.stop.load(Ordering::Acquire) {
            self.rebuild_damaged(log, reports);
            let end = dispatched_end();
            if self.indexed_end() >= end {
                self.sleep(&dispatched_end);
                continue;
            }
            let outcome = self.follow(log, end, || self.stop.load(Ordering::Relaxed));
            self.is_blocked.store(outcome.is_err(), Ordering::Release);
            self.wake_queries();
            if let Err(error) = outcome {
                reports.add(format!("the key index is blocked: {error}"));
                self.pause(RETRY_PAUSE);
            }
        }
    }

    fn sleep(&self, dispatched_end: &impl Fn() -> i64) {
        {
            let mut sleeping = self.sleeping.lock();
            self.idle.store(true, Ordering::SeqCst);
            // Check again before sleeping: a dispatch that saw this thread awake does not wake it.
            let is_done = self.indexed_end() >= dispatched_end() && !self.repairs.are_due();
            if is_done && !self.stop.load(Ordering::Acquire) {
                // The hot path has no fence, so a wake-up can be missed; the timeout makes up for it.
                self.wake.wait_for(&mut sleeping, Duration::from_millis(500));
            }
            self.idle.store(false, Ordering::SeqCst);
        }
        self.pause(BATCH_PAUSE);
    }

    fn pause(&self, pause: Duration) {
        let mut sleeping = self.sleeping.lock();
        if !self.stop.load(Ordering::Acquire) {
            self.wake.wait_for(&mut sleeping, pause);
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let _sleeping = self.sleeping.lock();
        self.wake.notify_all();
        self.advanced.notify_all();
    }

    /// Waits until everything below `end` is indexed, so that a query finds every message that was acknowledged before
    /// it. Waits for [`QUERY_WAIT_MAX`] at most, and not at all if the index is blocked or far behind.
    pub(crate) fn wait_indexed(&self, end: i64) {
        let behind = end - self.indexed_end();
        if (behind <= 0 && !self.repairs.are_due()) || behind > CATCH_UP_BYTES_MAX {
            return;
        }
        let deadline = Instant::now() + QUERY_WAIT_MAX;
        let mut sleeping = self.sleeping.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Either this thread sees the new end, or the one that stored it sees that a query waits.
        fence(Ordering::SeqCst);
        self.wake.notify_one();
        while (self.indexed_end() < end || self.repairs.are_due())
            && !self.is_blocked.load(Ordering::Acquire)
            && !self.stop.load(Ordering::Acquire)
        {
            if self.advanced.wait_until(&mut sleeping, deadline).timed_out() {
                break;
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn wake(&self) {
        let _sleeping = self.sleeping.lock();
        self.wake.notify_all();
    }

    pub(super) fn wake_queries(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            let _sleeping = self.sleeping.lock();
            self.advanced.notify_all();
        }
    }

    /// Indexes the rest before the store is closed, unless it is too much; then the next start continues from there.
    pub(crate) fn catch_up(&self, log: &CommitLog, end: i64) -> Result<(), StoreError> {
        while self.indexed_end() < end && end - self.indexed_end() <= CATCH_UP_BYTES_MAX {
            self.follow(log, end, || false)?;
        }
        Ok(())
    }

    /// Indexes one stretch of the log: collects the hashes of all its keys, then adds the entries group by group.
    fn follow(&self, log: &CommitLog, end: i64, is_stopped: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut records = 0;
        let mut found = Found::default();
        let from = self.indexed_end().max(log.start_offset());
        let reached = walk(log, from, end, false, |step| {
            if let Step::Record(record) = step {
                found.add(&record);
            }
            records += 1;
            records < PASS_RECORDS_MAX && found.keys.len() < PASS_KEYS_MAX && !is_stopped()
        });
        for group in found.keys.chunks(GROUP_KEYS) {
            // Entries lie in the log's order, also when the rest is tried again.
            if let Err((failed, error)) = self.put(group) {
                self.indexed_end.store(failed, Ordering::Release);
                return Err(error);
            }
        }
        self.indexed_end.store(reached, Ordering::Release);
        Ok(())
    }

    /// An error comes with the record at which it happened.
    fn put(&self, group: &[IndexedKey]) -> Result<(), (i64, StoreError)> {
        let mut files = self.files.write();
        if let Some(file) = files.last() {
            file.bring_in(group.iter().map(|key| key.hash));
        }
        for key in group {
            let fail = |error| (key.physical_offset, error);
            if files.last().is_none_or(IndexFile::is_full) {
                let path = self.directory.join(self.fresh_name(files.last(), key.store_timestamp_ms));
                files.push(self.make_file(&path).map_err(fail)?);
            }
            if let Some(file) = files.last_mut() {
                file.put(&*self.disk, key.hash, key.physical_offset, key.store_timestamp_ms).map_err(fail)?;
            }
        }
        Ok(())
    }

    fn make_file(&self, path: &Path) -> Result<IndexFile, StoreError> {
        let fail = |source| StoreError::io(&self.directory, source);
        // Somebody may have deleted it.
        self.disk.create_directory(&self.directory).map_err(fail)?;
        let file = IndexFile::open(&*self.disk, path, self.sizes)?;
        self.disk.sync_directory(&self.directory).map_err(fail)?;
        Ok(file)
    }

    /// The name `yyyyMMddHHmmssSSS`, but always greater than the last file's: files are sorted by name.
    fn fresh_name(&self, last: Option<&IndexFile>, now_ms: i64) -> String {
        let stamp = time_stamp(now_ms);
        let last: u64 =
            last.and_then(|file| file.path().file_name()?.to_str()?.parse().ok()).unwrap_or_default();
        format!("{:017}", stamp.max(last + 1))
    }

    /// Syncs the files that changed and notes how far the index is synced.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let indexed_end = self.indexed_end();
        if indexed_end > self.synced_end() {
            let files = self.files.read();
            let synced_end = self.synced_end();
            for file in files.iter().filter(|file| file.span().end_offset >= synced_end) {
                file.sync(&*self.disk)?;
            }
            self.synced_end.store(indexed_end, Ordering::Release);
            let time_ms = files.last().map_or(0, |file| file.span().end_time_ms);
            self.synced_time_ms.store(time_ms, Ordering::Release);
        }
        Ok(())
    }

    /// Deletes files whose records are all gone from the log.
    pub(crate) fn clean(&self, log_start: i64) -> Result<usize, StoreError> {
        let mut files = self.files.write();
        let old = files.iter().take_while(|file| file.span().end_offset < log_start).count();
        // The last file stays, because new entries go there.
        let old = old.min(files.len().saturating_sub(1));
        for file in files.drain(..old) {
            self.disk.remove_file(file.path()).map_err(|source| StoreError::io(file.path(), source))?;
        }
        Ok(old)
    }
}

/// Opens an index file; None if it is empty or has another size, because then its layout is unknown.
fn open_file(disk: &dyn Disk, path: &Path, sizes: IndexSizes) -> Result<Option<IndexFile>, StoreError> {
    let file = disk.open(path).map_err(|source| StoreError::io(path, source))?;
    let len = disk.len(&file).map_err(|source| StoreError::io(path, source))?;
    if len != sizes.file_bytes() {
        return Ok(None);
    }
    let file = IndexFile::open(disk, path, sizes)?;
    Ok((!file.is_empty()).then_some(file))
}

/// The digits of `yyyyMMddHHmmssSSS` in UTC as one number.
fn time_stamp(now_ms: i64) -> u64 {
    let days = now_ms.div_euclid(86_400_000);
    let in_day = now_ms.rem_euclid(86_400_000) as u64;
    let (year, month, day) = civil_date(days);
    let clock = (in_day / 3_600_000) * 10_000 + (in_day / 60_000 % 60) * 100 + in_day / 1_000 % 60;
    ((year * 10_000 + month * 100 + day) * 1_000_000 + clock) * 1_000 + in_day % 1_000
}

/// Year, month and day of a count of days since 1970, by counting in years that begin in March.
fn civil_date(days: i64) -> (u64, u64, u64) {
    let days = (days + 719_468).max(0) as u64;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_time() {
        assert_eq!(time_stamp(0), 19_700_101_000_000_000);
        assert_eq!(time_stamp(951_827_696_789), 20_000_229_123_456_789);
        assert_eq!(time_stamp(1_767_225_599_999), 20_251_231_235_959_999);
    }
}
