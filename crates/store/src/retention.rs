//! Retention: deletes old files by age at certain hours, or when the disk fills up. It never deletes unconsumed records
//! to make room, unless `delete_unconsumed` says so.
//!
//! A replica deletes what its master has deleted, and nothing else: whatever one of them serves, the other one has.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::disk::Space;
use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::log::mapped::MappedFile;
use crate::recovery::log_start;
use crate::recovery::log_walk::{Step, walk};
use crate::store::OpenStore;
use crate::timer::timer_log::TIMER_TOPIC;

const HOUR_MS: i64 = 3_600_000;
/// The most files that one run deletes to make room; it checks the disk again after each.
const FORCED_FILES_MAX: usize = 32;

/// The lowest committed queue offset of each queue, as the control plane last reported it.
pub(crate) type Consumed = HashMap<(String, i32), i64>;

/// Decides by which rule files are deleted: the store's settings, or the start of a master's log.
pub(crate) struct RetentionRule {
    /// `i64::MAX` for the rules of the settings.
    master_start: AtomicI64,
}

impl RetentionRule {
    /// A node of a group deletes nothing before it has a role.
    pub(crate) fn new(is_replicated: bool) -> Self {
        Self { master_start: AtomicI64::new(if is_replicated { 0 } else { i64::MAX }) }
    }

    pub(crate) fn follow(&self, master_start: i64) {
        self.master_start.store(master_start.min(i64::MAX - 1), Ordering::Relaxed);
    }

    pub(crate) fn use_settings(&self) {
        self.master_start.store(i64::MAX, Ordering::Relaxed);
    }

    /// The start of the master's log; None if this store's settings count.
    fn master_start(&self) -> Option<i64> {
        Some(self.master_start.load(Ordering::Relaxed)).filter(|start| *start != i64::MAX)
    }
}

impl OpenStore {
    /// Applies retention and returns how many files of the log it deleted.
    ///
    /// At the hours of `delete_when`, past `disk_clean_percent`, or with `now`, it deletes files whose records are all
    /// older than `file_reserved_hours`. Past `disk_force_clean_percent` it deletes the oldest files whatever their
    /// age, provided that they are consumed.
    pub(crate) fn clean(&self, now: bool) -> Result<usize, StoreError> {
        let _one_at_a_time = self.cleaning.lock();
        let deleted = match self.retention_rule.master_start() {
            Some(start) => {
                self.forget_lost_front(start)?;
                let gone = self.log.files().iter().take_while(|file| file.end_offset() <= start).count();
                if gone > 0 {
                    self.save_queues();
                }
                self.remove_first(gone)?
            }
            None => self.clean_by_settings(now)?,
        };
        if deleted > 0 {
            self.trim()?;
            self.reports.add(format!("retention deleted {deleted} files of the commit log"));
        }
        Ok(deleted)
    }

    /// A lost part in front of the log stops being damage when the master has deleted it too.
    fn forget_lost_front(&self, master_start: i64) -> Result<(), StoreError> {
        let (start, first) =
            (self.log.start_offset(), self.log.files().first().map_or(0, |file| file.start_offset));
        if start < first && first <= master_start {
            self.log.lose_front(i64::MAX);
            log_start::save(&*self.disk, &self.settings.directory, first)?;
        }
        Ok(())
    }

    fn clean_by_settings(&self, now: bool) -> Result<usize, StoreError> {
        let settings = self.retention.read().clone();
        let mut used_percent = self.used_percent()?;
        let hour = self.clock.now_ms().div_euclid(HOUR_MS).rem_euclid(24) as u8;
        let is_hour = settings.delete_hours()?.contains(&hour);
        let mut expired = 0;
        if now || is_hour || used_percent >= settings.disk_clean_percent {
            expired = self.expired_files(settings.file_reserved_hours);
        }
        if expired > 0 || used_percent >= settings.disk_force_clean_percent {
            self.save_queues();
        }
        let mut deleted = self.remove_first(expired)?;
        if deleted > 0 {
            used_percent = self.used_percent()?;
        }
        let mut forced = 0;
        while used_percent >= settings.disk_force_clean_percent && forced < FORCED_FILES_MAX {
            let files = self.log.files();
            let Some(first) = files.first().filter(|_| files.len() > 1) else { break };
            if !settings.delete_unconsumed && self.lowest_unconsumed()? < first.end_offset() {
                self.reports.add(format!(
                    "the disk is {used_percent} % full, but the oldest file of the commit log holds records that \
                     nobody consumed yet: it stays"
                ));
                break;
            }
            drop(files);
            let removed = self.pins.while_fixed(|lowest| {
                let limit = if settings.delete_unconsumed { i64::MAX } else { lowest };
                self.log.remove_first(1, self.housekeeping.saved_end().min(limit))
            })?;
            if removed == 0 {
                break;
            }
            forced += removed;
            used_percent = self.used_percent()?;
        }
        deleted += forced;
        Ok(deleted)
    }

    /// Deletes the first files of the log, as far as nobody needs them. Returns how many.
    fn remove_first(&self, files: usize) -> Result<usize, StoreError> {
        self.pins
            .while_fixed(|lowest| self.log.remove_first(files, self.housekeeping.saved_end().min(lowest)))
    }

    /// Queue entries must be on the disk before their records are deleted, because nothing could rebuild their offsets.
    /// If a full disk prevents that, files below an earlier checkpoint can still be deleted.
    fn save_queues(&self) {
        self.save_checkpoint(false, false).unwrap_or_else(|error| {
            self.reports.add(format!("the checkpoint could not be saved: {error}"));
        });
    }

    pub(crate) fn used_percent(&self) -> Result<u8, StoreError> {
        Ok(self.space()?.used_percent())
    }

    /// The room on the file system of the store.
    pub(crate) fn space(&self) -> Result<Space, StoreError> {
        let directory = &self.settings.directory;
        self.disk.space(directory).map_err(|source| StoreError::io(directory, source))
    }

    /// How many files, from the first on, hold only records older than that.
    fn expired_files(&self, reserved_hours: u64) -> usize {
        let files = self.log.files();
        let oldest_kept_ms = self.clock.now_ms() - reserved_hours as i64 * HOUR_MS;
        // A file counts as young as the first record of the next file. The last file never expires.
        files
            .iter()
            .skip(1)
            .take_while(|next| first_time_ms(&self.log, next).is_some_and(|time| time < oldest_kept_ms))
            .count()
    }

    /// The physical offset of the first record that is pinned or that some queue's consumers have not committed. A
    /// queue without commits is unconsumed from its start.
    fn lowest_unconsumed(&self) -> Result<i64, StoreError> {
        let consumed = self.consumed.lock().clone();
        let log_start = self.log.start_offset();
        let mut lowest = self.pins.lowest();
        for (topic, queue_id) in self.all_queues()? {
            if topic == TIMER_TOPIC {
                continue;
            }
            let Some(queue) = self.queues.find(topic.as_bytes(), queue_id)? else { continue };
            let disk = &self.queues.disk;
            let fail = |source| StoreError::io(&disk.directory(&topic, queue_id), source);
            let min_offset = queue.min_offset(disk, log_start).map_err(fail)?;
            let committed = consumed.get(&(topic.clone(), queue_id)).copied().unwrap_or(0);
            if let Some(entry) = queue.entry(disk, committed.max(min_offset)).map_err(fail)? {
                lowest = lowest.min(entry.physical_offset);
            }
        }
        Ok(lowest)
    }

    fn all_queues(&self) -> Result<HashSet<(String, i32)>, StoreError> {
        let loaded = self.queues.loaded();
        let loaded = loaded.iter().map(|queue| (queue.topic.to_string(), queue.queue_id));
        Ok(self.queues.list_on_disk()?.into_iter().chain(loaded).collect())
    }

    /// Deletes queue and index files whose records are all gone.
    fn trim(&self) -> Result<(), StoreError> {
        let log_start = self.log.start_offset();
        for (topic, queue_id) in self.all_queues()? {
            let Some(queue) = self.queues.find(topic.as_bytes(), queue_id)? else { continue };
            let directory = self.queues.disk.directory(&topic, queue_id);
            let fail = |source| StoreError::io(&directory, source);
            let min_offset = queue.stored_min_offset(&self.queues.disk, log_start).map_err(fail)?;
            for path in queue.trim(&self.queues.disk, min_offset) {
                self.disk.remove_file(&path).map_err(fail)?;
            }
        }
        self.index.clean(log_start)?;
        Ok(())
    }
}

/// The time of the first sound record.
fn first_time_ms(log: &CommitLog, file: &MappedFile) -> Option<i64> {
    let mut first = None;
    walk(log, file.start_offset, file.end_offset().min(log.appended_end()), true, |step| {
        first = match step {
            Step::Record(record) => Some(record.store_timestamp_ms),
            Step::Gap { .. } => None,
        };
        first.is_none()
    });
    first
}
