//! The commit log: every record of every topic, one after the other, in files of one size.
//!
//! ```text
//! 00000000000000000000          00000000001073741824
//! | record | record | … | blank | record | record | …
//! ```
//! A record never spans two files. If the next one and a blank mark of 8 bytes no longer fit, the mark (the remaining
//! length and a magic number) closes the file. An append holds one lock while it lays out the bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use metaq_wire::{LaidOut, NewRecord, layout};
use parking_lot::{Mutex, MutexGuard};

use crate::api::{Appended, AppendedBatch};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::log::damage::LogDamage;
use crate::log::gate::Gate;
use crate::log::lease::Lease;
use crate::log::mapped::{FileWriter, MappedFile};
use crate::log::preallocation::Preallocation;
use crate::log::progress::Progress;
use crate::queue::consume_queue::Queue;
use crate::recovery::log_start;
use crate::settings::StoreSettings;

pub(crate) const BLANK_BYTES: u64 = layout::BLANK_BYTES as u64;

pub(crate) struct CommitLog {
    pub(crate) disk: Arc<dyn Disk>,
    clock: Clock,
    pub(crate) gate: Arc<Gate>,
    record_bytes_max: usize,
    /// Records are appended with a checksum of the whole record.
    record_checksums: bool,
    /// Sorted by start offset. The list is swapped as a whole, so readers take no lock.
    files: ArcSwap<Vec<Arc<MappedFile>>>,
    store_directory: PathBuf,
    /// The beginning of the log if files in front of the first one were lost, otherwise `i64::MAX`.
    lost_front: AtomicI64,
    appender: Mutex<Appender>,
    append_wait_max: Duration,
    /// Set when a caller waited too long for the lock, until the next one gets it.
    is_stuck: AtomicBool,
    pub(crate) progress: Progress,
    pub(crate) preallocation: Preallocation,
    pub(crate) damage: LogDamage,
}

pub(crate) struct Appender {
    pub(crate) writer: FileWriter,
    store_timestamp_ms: i64,
}

/// The end of the log, as recovery found it.
pub(crate) struct LogEnd {
    pub(crate) files: Vec<Arc<MappedFile>>,
    pub(crate) writer: FileWriter,
    pub(crate) store_timestamp_ms: i64,
    /// Everything below is known to be on the disk.
    pub(crate) flushed: i64,
    /// Nothing beyond is confirmed before others hold it; `i64::MAX` if nobody else must.
    pub(crate) replicated: i64,
}

impl CommitLog {
    pub(crate) fn new(
        settings: &StoreSettings,
        disk: Arc<dyn Disk>,
        clock: Clock,
        gate: Arc<Gate>,
        lease: Arc<Lease>,
        end: LogEnd,
    ) -> Self {
        let directory = directory(&settings.directory);
        Self {
            store_directory: settings.directory.clone(),
            lost_front: AtomicI64::new(i64::MAX),
            preallocation: Preallocation::new(
                settings,
                Arc::clone(&disk),
                directory,
                end.writer.file().end_offset(),
            ),
            disk,
            clock,
            gate,
            record_bytes_max: settings.record_bytes_max(),
            record_checksums: settings.record_checksums,
            append_wait_max: Duration::from_millis(settings.append_wait_ms_max),
            is_stuck: AtomicBool::new(false),
            files: ArcSwap::from_pointee(end.files),
            progress: Progress::new(
                settings.sync_flush,
                end.flushed,
                end.writer.physical_offset(),
                end.replicated,
                lease,
            ),
            appender: Mutex::new(Appender { writer: end.writer, store_timestamp_ms: end.store_timestamp_ms }),
            damage: LogDamage::default(),
        }
    }

    /// Appends one record. Its queue offset is taken under the same lock, so both orders agree. Returns None and does
    /// nothing if the queue was deleted since the caller looked it up.
    #[inline]
    pub(crate) fn append(
        &self,
        record: &NewRecord<'_>,
        queue: &Queue,
    ) -> Result<Option<Appended>, StoreError> {
        let laid_out = self.laid_out(record)?;
        let size = laid_out.size;
        let counted = is_queued(record.system_flag);
        let mut appender = self.lock_appender()?;
        self.gate.check()?;
        if queue.is_removed() {
            return Ok(None);
        }
        self.make_room(&mut appender, size as u64)?;
        let store_timestamp_ms = appender.tick(&self.clock);
        let queue_offset = if counted { queue.take_offsets(1) } else { 0 };
        let physical_offset = appender.writer.physical_offset();
        appender
            .writer
            .fill(size, |target| laid_out.write(target, queue_offset, physical_offset, store_timestamp_ms));
        let end_offset = self.publish(&appender);
        Ok(Some(Appended { physical_offset, end_offset, queue_offset, store_timestamp_ms }))
    }

    /// Appends all records or none; they get consecutive queue offsets.
    pub(crate) fn append_batch(
        &self,
        records: &[NewRecord<'_>],
        queue: &Queue,
    ) -> Result<Option<AppendedBatch>, StoreError> {
        let mut laid_out = Vec::with_capacity(records.len());
        for record in records {
            laid_out.push(self.laid_out(record)?);
        }
        let counted = records.iter().filter(|record| is_queued(record.system_flag)).count();
        let mut physical_offsets = Vec::with_capacity(records.len());

        let mut appender = self.lock_appender()?;
        self.gate.check()?;
        if queue.is_removed() {
            return Ok(None);
        }
        self.make_batch_room(&mut appender, &laid_out)
            .inspect_err(|error| self.gate.note_append_error(error))?;
        let store_timestamp_ms = appender.tick(&self.clock);
        let first_queue_offset = if counted > 0 { queue.take_offsets(counted as i64) } else { 0 };
        let mut next_queue_offset = first_queue_offset;
        for (record, laid_out) in records.iter().zip(laid_out) {
            // Cannot fail: `make_batch_room` prepared every file that is needed.
            self.make_room(&mut appender, laid_out.size as u64)?;
            let queue_offset = if is_queued(record.system_flag) {
                next_queue_offset += 1;
                next_queue_offset - 1
            } else {
                0
            };
            let physical_offset = appender.writer.physical_offset();
            appender.writer.fill(laid_out.size, |target| {
                laid_out.write(target, queue_offset, physical_offset, store_timestamp_ms);
            });
            physical_offsets.push(physical_offset);
        }
        let end_offset = self.publish(&appender);
        let first = Appended {
            physical_offset: physical_offsets.first().copied().unwrap_or(end_offset),
            end_offset,
            queue_offset: first_queue_offset,
            store_timestamp_ms,
        };
        Ok(Some(AppendedBatch { first, physical_offsets, end_offset }))
    }

    /// Locks the appender. If its owner is stuck, because the disk is slow or memory is short, one caller waits for a
    /// while and all others are refused at once, so that threads stay free for reads.
    #[inline]
    pub(crate) fn lock_appender(&self) -> Result<MutexGuard<'_, Appender>, StoreError> {
        if self.is_stuck.load(Ordering::Relaxed) {
            return self.lock_stuck();
        }
        self.appender.try_lock_for(self.append_wait_max).ok_or_else(|| {
            self.is_stuck.store(true, Ordering::Relaxed);
            self.busy()
        })
    }

    #[cold]
    fn lock_stuck(&self) -> Result<MutexGuard<'_, Appender>, StoreError> {
        let appender = self.appender.try_lock().ok_or_else(|| self.busy())?;
        self.is_stuck.store(false, Ordering::Relaxed);
        Ok(appender)
    }

    #[cold]
    fn busy(&self) -> StoreError {
        StoreError::Busy { waited_ms: self.append_wait_max.as_millis() as u64 }
    }

    /// Lays the record out, if it may be stored.
    #[inline]
    fn laid_out<'a>(&self, record: &'a NewRecord<'_>) -> Result<LaidOut<'a>, StoreError> {
        let laid_out = record.laid_out(self.record_checksums).map_err(StoreError::BadRecord)?;
        if laid_out.size > self.record_bytes_max {
            return Err(StoreError::TooLarge { size: laid_out.size, limit: self.record_bytes_max });
        }
        Ok(laid_out)
    }

    #[inline]
    pub(crate) fn publish(&self, appender: &Appender) -> i64 {
        appender.writer.publish();
        let end_offset = appender.writer.physical_offset();
        self.progress.set_appended(end_offset);
        end_offset
    }

    /// Makes sure that `size` bytes and a blank mark fit at the writer's position and have disk blocks.
    #[inline]
    pub(crate) fn make_room(&self, appender: &mut Appender, size: u64) -> Result<(), StoreError> {
        self.take_room(appender, size).inspect_err(|error| self.gate.note_append_error(error))
    }

    #[inline]
    fn take_room(&self, appender: &mut Appender, size: u64) -> Result<(), StoreError> {
        if appender.writer.remaining() < size + BLANK_BYTES {
            self.roll(appender)?;
        }
        let needed_end = appender.writer.position() + size + BLANK_BYTES;
        let file = appender.writer.file();
        if file.allocated_end() < needed_end {
            self.preallocation.allocate_now(file, needed_end)?;
        }
        self.preallocation.watch(file, needed_end);
        Ok(())
    }

    /// Closes the current file with a blank and continues in the next one. On failure nothing has changed.
    pub(crate) fn roll(&self, appender: &mut Appender) -> Result<(), StoreError> {
        let file = Arc::clone(appender.writer.file());
        file.allocate(&*self.disk, appender.writer.position() + BLANK_BYTES)?;
        let next = self.preallocation.take_next()?;
        let Some(next_writer) = next.writer() else {
            return Err(StoreError::Damaged {
                path: next.path().to_owned(),
                detail: "it has a writer already".to_owned(),
            });
        };
        let remaining = appender.writer.remaining() as u32;
        appender.writer.fill(layout::BLANK_BYTES, |target| {
            target[..4].copy_from_slice(&remaining.to_be_bytes());
            target[4..].copy_from_slice(&layout::MAGIC_BLANK.to_be_bytes());
        });
        let mut files = Vec::clone(&self.files.load());
        files.push(next);
        self.files.store(Arc::new(files));
        std::mem::replace(&mut appender.writer, next_writer).finish();
        self.publish(appender);
        Ok(())
    }

    /// Allocates every file and block that the batch needs, so that laying it out cannot fail half-way.
    fn make_batch_room(&self, appender: &mut Appender, records: &[LaidOut<'_>]) -> Result<(), StoreError> {
        let total = records.iter().map(|record| record.size as u64).sum::<u64>();
        if appender.writer.remaining() >= total + BLANK_BYTES {
            return self.make_room(appender, total);
        }
        let mut position = appender.writer.position();
        let mut file = Arc::clone(appender.writer.file());
        let mut fresh_files = 0;
        for size in records.iter().map(|record| record.size as u64) {
            if file.len() - position < size + BLANK_BYTES {
                file.allocate(&*self.disk, position + BLANK_BYTES)?;
                file = self.preallocation.prepare(fresh_files)?;
                fresh_files += 1;
                position = 0;
            }
            position += size;
            file.allocate(&*self.disk, position + BLANK_BYTES)?;
        }
        Ok(())
    }

    /// The physical offset of the first byte that is not deleted.
    pub(crate) fn start_offset(&self) -> i64 {
        let first = self.files.load().first().map_or(0, |file| file.start_offset);
        first.min(self.lost_front.load(Ordering::Acquire))
    }

    /// Notes that the log begins before its first file: the files in front of it were lost.
    pub(crate) fn lose_front(&self, start: i64) {
        self.lost_front.store(start, Ordering::Release);
    }

    /// Returns the beginning of the missing part of the log that holds a physical offset.
    pub(crate) fn gap_start(&self, physical_offset: i64) -> i64 {
        let files = self.files.load();
        let after = files.partition_point(|file| file.start_offset <= physical_offset);
        let before = after.checked_sub(1).and_then(|before| files.get(before));
        before.map_or(self.start_offset(), |file| file.end_offset())
    }

    #[inline]
    pub(crate) fn appended_end(&self) -> i64 {
        self.progress.appended()
    }

    pub(crate) fn newest_time_ms(&self) -> i64 {
        self.appender.lock().store_timestamp_ms
    }

    pub(crate) fn files(&self) -> Arc<Vec<Arc<MappedFile>>> {
        self.files.load_full()
    }

    /// The file that contains the byte; None past the end and before the start.
    pub(crate) fn file_at(&self, physical_offset: i64) -> Option<Arc<MappedFile>> {
        let files = self.files.load();
        let after = files.partition_point(|file| file.start_offset <= physical_offset);
        let file = files.get(after.checked_sub(1)?)?;
        (physical_offset < file.end_offset()).then(|| Arc::clone(file))
    }

    /// The file after the one that starts at `start_offset`.
    pub(crate) fn file_after(&self, start_offset: i64) -> Option<Arc<MappedFile>> {
        let files = self.files.load();
        files.get(files.partition_point(|file| file.start_offset <= start_offset)).cloned()
    }

    /// Runs `work` while nothing is appended, except by `work` itself.
    pub(crate) fn while_paused<T>(&self, work: impl FnOnce(&mut Appender) -> T) -> T {
        work(&mut self.appender.lock())
    }

    /// Appends a record that belongs in no queue.
    pub(crate) fn append_unqueued(
        &self,
        appender: &mut Appender,
        record: &NewRecord<'_>,
    ) -> Result<(), StoreError> {
        let laid_out = self.laid_out(record)?;
        self.make_room(appender, laid_out.size as u64)?;
        let store_timestamp_ms = appender.tick(&self.clock);
        let physical_offset = appender.writer.physical_offset();
        let write = |target: &mut [u8]| laid_out.write(target, 0, physical_offset, store_timestamp_ms);
        appender.writer.fill(laid_out.size, write);
        self.publish(appender);
        Ok(())
    }

    /// Unmaps the memory of everything more than `kept_bytes` before the end.
    pub(crate) fn release_memory(&self, kept_bytes: i64) {
        let cold_end = self.appended_end() - kept_bytes;
        for file in self.files.load().iter().take_while(|file| file.start_offset < cold_end) {
            file.release_memory((cold_end - file.start_offset) as u64);
        }
    }

    /// Starts allocating blocks after the end in the background, before the first append needs them.
    pub(crate) fn prepare(&self) {
        let appender = self.appender.lock();
        self.preallocation.watch(appender.writer.file(), appender.writer.position());
    }

    /// Deletes up to `count` files from the front of the log, but none that ends past `limit`. Bytes that readers hold
    /// stay valid.
    pub(crate) fn remove_first(&self, count: usize, limit: i64) -> Result<usize, StoreError> {
        // Under the append lock, because rolling to a new file swaps the list too.
        let removed: Vec<Arc<MappedFile>> = {
            let _appender = self.appender.lock();
            let files = self.files.load();
            let below = files.iter().take_while(|file| file.end_offset() <= limit).count();
            let count = count.min(below).min(files.len().saturating_sub(1));
            self.files.store(Arc::new(files[count..].to_vec()));
            files[..count].to_vec()
        };
        if !removed.is_empty() {
            self.lose_front(i64::MAX);
            log_start::save(&*self.disk, &self.store_directory, self.start_offset())?;
        }
        for file in &removed {
            self.disk.remove_file(file.path()).map_err(|source| StoreError::io(file.path(), source))?;
        }
        Ok(removed.len())
    }
}

impl Appender {
    /// Never goes back, whatever the clock does: searches by time rely on it.
    fn tick(&mut self, clock: &Clock) -> i64 {
        self.note_time(clock.now_ms());
        self.store_timestamp_ms
    }

    /// Later records are stored at this time or later.
    pub(crate) fn note_time(&mut self, time_ms: i64) {
        self.store_timestamp_ms = self.store_timestamp_ms.max(time_ms);
    }
}

pub(crate) fn directory(store_directory: &Path) -> PathBuf {
    store_directory.join("commitlog")
}

pub(crate) fn file_name(start_offset: i64) -> String {
    format!("{start_offset:020}")
}

/// Whether the record belongs in its queue: prepared and rolled-back halves of transactions do not.
#[inline]
pub(crate) fn is_queued(system_flag: i32) -> bool {
    let state = system_flag & layout::TRANSACTION_MASK;
    state != layout::TRANSACTION_PREPARED && state != layout::TRANSACTION_ROLLBACK
}
