//! The entries of one minute: most of them in a file, the newest in memory until they are written.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::timer::timer_log::entry::{ENTRY_BYTES, TimerEntry, TimerPosition};

pub(crate) const MINUTE_MS: i64 = 60_000;
/// Entries read at a time.
const CHUNK_ENTRIES: usize = 8 * 1024;
/// For more changed files than this, one sync of the file system is cheaper than one for each.
const FILES_SYNCED_EACH_MAX: usize = 16;

pub(crate) fn minute_of(time_ms: i64) -> i64 {
    time_ms.div_euclid(MINUTE_MS)
}

#[derive(Clone)]
pub(crate) struct Bucket {
    minute: i64,
    /// Distinguishes files of the same minute, so that no name is used twice.
    pub(crate) serial: u64,
    written: u64,
    tail: Vec<TimerEntry>,
    /// The lowest physical offset of its entries.
    pub(crate) needed_from: i64,
    /// The first and the last minute in which messages are due that are stored again in this one; None for no such.
    pub(crate) rolls_due: Option<(i64, i64)>,
    is_unsynced: bool,
}

impl Bucket {
    pub(crate) fn at(minute: i64, serial: u64, written: u64) -> Self {
        Self {
            minute,
            serial,
            written,
            tail: Vec::new(),
            needed_from: i64::MAX,
            rolls_due: None,
            is_unsynced: false,
        }
    }

    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        path_of(directory, self.minute, self.serial)
    }

    pub(crate) fn push(&mut self, entry: TimerEntry) {
        self.note(&entry);
        self.tail.push(entry);
    }

    fn note(&mut self, entry: &TimerEntry) {
        self.needed_from = self.needed_from.min(entry.physical_offset);
        if entry.is_roll {
            let due = entry.due_minute();
            let (first, last) = self.rolls_due.unwrap_or((due, due));
            self.rolls_due = Some((first.min(due), last.max(due)));
        }
    }

    pub(crate) fn entries(&self) -> u64 {
        self.written + self.tail.len() as u64
    }

    pub(crate) fn unwritten(&self) -> usize {
        self.tail.len()
    }

    /// Writes the entries that are only in memory, and returns how many there were.
    pub(crate) fn write(&mut self, disk: &dyn Disk, directory: &Path) -> Result<usize, StoreError> {
        if self.tail.is_empty() {
            return Ok(0);
        }
        let path = self.path(directory);
        let fail = |source| StoreError::io(&path, source);
        let file = disk.create(&path).map_err(fail)?;
        let bytes: Vec<u8> = self.tail.iter().flat_map(TimerEntry::encode).collect();
        disk.write_at(&file, &bytes, self.written * ENTRY_BYTES as u64).map_err(fail)?;
        let count = self.tail.len();
        self.written += count as u64;
        self.tail = Vec::new();
        self.is_unsynced = true;
        Ok(count)
    }

    /// Shows every written entry to `see`, which tells whether it still matters, and cuts off the rest of the file.
    /// Returns false if entries are missing.
    pub(crate) fn look_through(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        see: &mut dyn FnMut(TimerEntry) -> bool,
    ) -> Result<bool, StoreError> {
        let path = self.path(directory);
        if !disk.exists(&path) {
            return Ok(self.written == 0);
        }
        let fail = |source| StoreError::io(&path, source);
        let file = disk.open(&path).map_err(fail)?;
        let is_sound = read_entries(disk, &file, self.written, &mut |entry| {
            if see(entry) {
                self.note(&entry);
            }
            true
        });
        if !is_sound.map_err(fail)? {
            return Ok(false);
        }
        if disk.len(&file).map_err(fail)? > self.written * ENTRY_BYTES as u64 {
            disk.set_len(&file, self.written * ENTRY_BYTES as u64).map_err(fail)?;
        }
        Ok(true)
    }

    /// The first entries after a position, in order, at most `count_max`, and whether those are all. Recalls that are
    /// done but concern the same moment are added to `recalls`. All entries must be written.
    pub(crate) fn next(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        from: TimerPosition,
        count_max: usize,
        recalls: &mut Vec<TimerEntry>,
    ) -> Result<(Vec<TimerEntry>, bool), StoreError> {
        let mut first: Vec<TimerEntry> = Vec::with_capacity((self.written as usize).min(count_max));
        let mut limit = None;
        let sound = self.look_through(disk, directory, &mut |entry| {
            if entry.position() <= from {
                recalls.extend(Some(entry).filter(|it| it.recalls_now() && it.wake_ms == from.wake_ms));
            } else if limit.is_none_or(|limit| entry.position() <= limit) {
                first.push(entry);
                // Twice as many as wanted, then the later half goes: each entry is moved a few times at most.
                if first.len() >= count_max * 2 {
                    first.select_nth_unstable_by_key(count_max, TimerEntry::position);
                    first.truncate(count_max);
                    limit = first.iter().map(TimerEntry::position).max();
                }
            }
            true
        })?;
        if !sound {
            let detail = "entries are missing or damaged: the timer log is rebuilt".to_owned();
            return Err(StoreError::Damaged { path: self.path(directory), detail });
        }
        first.sort_unstable_by_key(TimerEntry::position);
        let is_all = limit.is_none() && first.len() <= count_max;
        first.truncate(count_max);
        Ok((first, is_all))
    }
}

/// The file of a minute.
pub(crate) fn path_of(directory: &Path, minute: i64, serial: u64) -> PathBuf {
    directory.join(format!("{minute:012}-{serial:08x}"))
}

/// Shows the first `count` entries of a file to `see`, until that returns false. Returns false if entries are missing or
/// damaged.
pub(crate) fn read_entries(
    disk: &dyn Disk,
    file: &DiskFile,
    count: u64,
    see: &mut dyn FnMut(TimerEntry) -> bool,
) -> io::Result<bool> {
    let mut buffer = vec![0; CHUNK_ENTRIES.min(count as usize) * ENTRY_BYTES];
    let mut at = 0;
    while at < count {
        let chunk = (count - at).min(CHUNK_ENTRIES as u64) as usize;
        let part = &mut buffer[..chunk * ENTRY_BYTES];
        if disk.read_at(file, part, at * ENTRY_BYTES as u64)? < part.len() {
            return Ok(false);
        }
        for bytes in part.chunks_exact(ENTRY_BYTES) {
            let Some(entry) = TimerEntry::decode(bytes) else { return Ok(false) };
            if !see(entry) {
                return Ok(true);
            }
        }
        at += chunk as u64;
    }
    Ok(true)
}

/// Syncs the buckets that changed.
pub(crate) fn sync<'a>(
    disk: &dyn Disk,
    directory: &Path,
    buckets: impl Iterator<Item = &'a mut Bucket>,
) -> Result<(), StoreError> {
    let fail = |source| StoreError::io(directory, source);
    let mut changed: Vec<&mut Bucket> = buckets.filter(|bucket| bucket.is_unsynced).collect();
    if changed.len() > FILES_SYNCED_EACH_MAX {
        disk.sync_file_system(directory).map_err(fail)?;
    } else {
        for bucket in &changed {
            let file = disk.open(&bucket.path(directory)).map_err(fail)?;
            disk.sync_data(&file).map_err(fail)?;
        }
    }
    changed.iter_mut().for_each(|bucket| bucket.is_unsynced = false);
    Ok(())
}
