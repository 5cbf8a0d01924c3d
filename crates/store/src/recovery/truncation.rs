//! Cuts the log of a closed store, or empties the store: for a replica whose log has a tail that its master does not
//! have, or that is so far behind that the master no longer has what it needs next.
//!
//! The wish is written down first and taken back last, so a kill or a power loss in between only means that the next
//! start finishes the work. Without that, a tail that was cut in memory could come back to life. The bytes that are cut
//! off are kept in `cut/` for a person to look at.

use std::path::Path;
use std::sync::Arc;

use metaq_wire::layout;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::log::commit_log::{directory, file_name};
use crate::recovery::checkpoint::{Bound, Checkpoint};
use crate::recovery::log_end::parse_file_name;
use crate::recovery::log_start;
use crate::recovery::open::{mark_open, take_lock};
use crate::settings::StoreSettings;

const INTENT: &str = "truncation";
const MAGIC: [u8; 8] = *b"MetaQcut";
const INTENT_BYTES: usize = 8 + 1 + 8 + 4;
const COPY_BYTES: usize = 1 << 20;
/// Directories that are derived from the log.
const DERIVED: [&str; 3] = ["consumequeue", "index", "timer"];

/// A change of a closed store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// The log ends at this physical offset, where a record ended.
    CutAt(i64),
    /// The log is empty and begins at this physical offset, where a file of another log begins.
    StartOverAt(i64),
}

/// Changes a store that is not open. Returns after everything is on the disk; if it fails or is interrupted, the next
/// start finishes it.
pub fn truncate(
    settings: &StoreSettings,
    disk: &Arc<dyn Disk>,
    wanted: Truncation,
) -> Result<(), StoreError> {
    settings.check()?;
    let directory = &settings.directory;
    disk.create_directory(directory).map_err(|source| StoreError::io(directory, source))?;
    let _held_until_done = take_lock(settings, &**disk)?;
    finish_pending(settings, &**disk)?;
    write_intent(&**disk, directory, wanted)?;
    finish_pending(settings, &**disk)
}

/// Does what an intent on the disk asks for, if there is one. The caller holds the store's lock.
pub(crate) fn finish_pending(settings: &StoreSettings, disk: &dyn Disk) -> Result<(), StoreError> {
    let path = settings.directory.join(INTENT);
    let Some(wanted) = read_intent(disk, &path)? else { return Ok(()) };
    match wanted {
        Truncation::CutAt(end_offset) => cut(settings, disk, end_offset)?,
        Truncation::StartOverAt(start_offset) => start_over(settings, disk, start_offset)?,
    }
    disk.remove_file(&path).map_err(|source| StoreError::io(&path, source))?;
    sync_directory(disk, &settings.directory)
}

fn write_intent(disk: &dyn Disk, store_directory: &Path, wanted: Truncation) -> Result<(), StoreError> {
    let (kind, offset) = match wanted {
        Truncation::CutAt(offset) => (0, offset),
        Truncation::StartOverAt(offset) => (1, offset),
    };
    let mut bytes = [MAGIC.as_slice(), &[kind], &offset.to_be_bytes()].concat();
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    let path = store_directory.join(INTENT);
    let fail = |source| StoreError::io(&path, source);
    let file = disk.create(&path).map_err(fail)?;
    disk.write_at(&file, &bytes, 0).map_err(fail)?;
    disk.sync_data(&file).map_err(fail)?;
    sync_directory(disk, store_directory)
}

/// The intent; None if there is none, or only the beginning of one that was never complete.
fn read_intent(disk: &dyn Disk, path: &Path) -> Result<Option<Truncation>, StoreError> {
    if !disk.exists(path) {
        return Ok(None);
    }
    let fail = |source| StoreError::io(path, source);
    let file = disk.open(path).map_err(fail)?;
    let mut bytes = [0; INTENT_BYTES];
    disk.read_at(&file, &mut bytes, 0).map_err(fail)?;
    let (content, crc) = bytes.split_at(INTENT_BYTES - 4);
    if crc != crc32fast::hash(content).to_be_bytes() || !content.starts_with(&MAGIC) {
        disk.remove_file(path).map_err(fail)?;
        return Ok(None);
    }
    let offset = content.last_chunk().copied().map_or(0, i64::from_be_bytes);
    Ok(Some(match content[MAGIC.len()] {
        0 => Truncation::CutAt(offset),
        _ => Truncation::StartOverAt(offset),
    }))
}

fn cut(settings: &StoreSettings, disk: &dyn Disk, end_offset: i64) -> Result<(), StoreError> {
    let log = directory(&settings.directory);
    let starts = log_files(disk, &log)?;
    // In this order: whatever the next start finds, it does not trust more than is there.
    mark_open(settings, disk)?;
    lower_checkpoint(settings, disk, &starts, end_offset)?;
    forget_timers(settings, disk)?;
    let aside = settings.directory.join("cut");
    disk.create_directory(&aside).map_err(|source| StoreError::io(&aside, source))?;
    for start_offset in starts.iter().rev().copied() {
        let path = log.join(file_name(start_offset));
        let fail = |source| StoreError::io(&path, source);
        if start_offset > end_offset || (start_offset == end_offset && starts.len() > 1) {
            disk.rename(&path, &aside.join(file_name(start_offset))).map_err(fail)?;
            continue;
        }
        let file = disk.open(&path).map_err(fail)?;
        let (from, len) = ((end_offset - start_offset) as u64, disk.len(&file).map_err(fail)?);
        if from < len {
            let data_end = disk.data_end(&file, from).map_err(fail)?.min(len);
            copy_aside(disk, &file, from, data_end, &aside.join(format!("{end_offset:020}-tail")))?;
            disk.zero(&file, from, len - from).map_err(fail)?;
            disk.sync_data(&file).map_err(fail)?;
        }
        break;
    }
    sync_directory(disk, &aside)?;
    sync_directory(disk, &log)
}

/// Copies the bytes that are about to be zeroed. After a restart half-way they are zeros already, and the copy of the
/// first attempt stays.
fn copy_aside(
    disk: &dyn Disk,
    file: &crate::disk::DiskFile,
    from: u64,
    end: u64,
    to: &Path,
) -> Result<(), StoreError> {
    if disk.exists(to) {
        return Ok(());
    }
    let fail = |source| StoreError::io(to, source);
    let half_way = to.with_extension("part");
    let copy = disk.create(&half_way).map_err(fail)?;
    disk.set_len(&copy, 0).map_err(fail)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = from;
    while at < end {
        let wanted = buffer.len().min((end - at) as usize);
        let read = disk.read_at(file, &mut buffer[..wanted], at).map_err(fail)?;
        if read == 0 {
            break;
        }
        disk.write_at(&copy, &buffer[..read], at - from).map_err(fail)?;
        at += read as u64;
    }
    disk.sync_data(&copy).map_err(fail)?;
    disk.rename(&half_way, to).map_err(fail)?;
    // A power loss must find the copy or the original.
    to.parent().map_or(Ok(()), |aside| sync_directory(disk, aside))
}

/// Lowers the checkpoint so that the next start replays from the cut and cuts queues and index there too.
fn lower_checkpoint(
    settings: &StoreSettings,
    disk: &dyn Disk,
    starts: &[i64],
    end_offset: i64,
) -> Result<(), StoreError> {
    let (checkpoint, saved) = Checkpoint::open(disk, &settings.directory)?;
    let Some(mut bound) = saved.bound else { return Ok(()) };
    if bound.lower_bound > end_offset {
        bound.last_record = last_record_before(settings, disk, starts, end_offset)?;
        bound.lower_bound = if bound.last_record < 0 { -1 } else { end_offset };
    }
    bound.synced_end = bound.synced_end.min(end_offset);
    bound.index_synced_end = bound.index_synced_end.min(end_offset);
    bound.flushed_mark = bound.flushed_mark.min(end_offset);
    bound.queue_files = 0;
    let mut times = saved.times;
    times.flushed_offset = times.flushed_offset.min(end_offset);
    times.confirmed_offset = times.confirmed_offset.min(end_offset);
    checkpoint.save(disk, &times, &bound)
}

/// The start of the record that ends at `end_offset`; −1 if no record before it is left.
pub(super) fn last_record_before(
    settings: &StoreSettings,
    disk: &dyn Disk,
    starts: &[i64],
    end_offset: i64,
) -> Result<i64, StoreError> {
    let Some(start_offset) = starts.iter().rev().copied().find(|start| *start < end_offset) else {
        return Ok(-1);
    };
    let path = directory(&settings.directory).join(file_name(start_offset));
    let fail = |source| StoreError::io(&path, source);
    let file = disk.open(&path).map_err(fail)?;
    let (mut at, mut last) = (start_offset, -1);
    while at < end_offset {
        let mut head = [0; 8];
        disk.read_at(&file, &mut head, (at - start_offset) as u64).map_err(fail)?;
        let word = |from: usize| head[from..].first_chunk().copied().map_or(0, u32::from_be_bytes);
        let (size, magic) = (word(layout::at::SIZE), word(layout::at::MAGIC));
        if magic == layout::MAGIC_BLANK || (size as usize) < layout::RECORD_BYTES_MIN {
            break;
        }
        last = at;
        at += i64::from(size);
    }
    Ok(last)
}

/// The timer log is read again from its queue, whose end may have changed.
pub(super) fn forget_timers(settings: &StoreSettings, disk: &dyn Disk) -> Result<(), StoreError> {
    let timers = settings.directory.join("timer");
    for name in ["checkpoint", "mark"] {
        let path = timers.join(name);
        if disk.exists(&path) {
            disk.remove_file(&path).map_err(|source| StoreError::io(&path, source))?;
        }
    }
    if disk.exists(&timers) { sync_directory(disk, &timers) } else { Ok(()) }
}

fn start_over(settings: &StoreSettings, disk: &dyn Disk, start_offset: i64) -> Result<(), StoreError> {
    mark_open(settings, disk)?;
    let (checkpoint, _) = Checkpoint::open(disk, &settings.directory)?;
    // Nothing is known about the new log; a bound below its start means that it is read from there.
    checkpoint.save(
        disk,
        &Default::default(),
        &Bound { lower_bound: -1, last_record: -1, ..Bound::default() },
    )?;
    log_start::save(disk, &settings.directory, start_offset)?;
    for name in DERIVED {
        remove_tree(disk, &settings.directory.join(name))?;
    }
    let log = directory(&settings.directory);
    disk.create_directory(&log).map_err(|source| StoreError::io(&log, source))?;
    for old in log_files(disk, &log)?.into_iter().rev().filter(|old| *old != start_offset) {
        let path = log.join(file_name(old));
        disk.remove_file(&path).map_err(|source| StoreError::io(&path, source))?;
    }
    let path = log.join(file_name(start_offset));
    let fail = |source| StoreError::io(&path, source);
    let file = disk.create(&path).map_err(fail)?;
    let len = disk.len(&file).map_err(fail)?;
    disk.zero(&file, 0, len).map_err(fail)?;
    disk.sync_data(&file).map_err(fail)?;
    sync_directory(disk, &log)?;
    sync_directory(disk, &settings.directory)
}

fn remove_tree(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    let fail = |source| StoreError::io(path, source);
    for entry in disk.read_directory(path).map_err(fail)? {
        let child = path.join(&entry.name);
        if entry.is_directory {
            remove_tree(disk, &child)?;
        } else {
            disk.remove_file(&child).map_err(|source| StoreError::io(&child, source))?;
        }
    }
    if disk.exists(path) {
        disk.remove_directory(path).map_err(fail)?;
    }
    Ok(())
}

pub(super) fn log_files(disk: &dyn Disk, log: &Path) -> Result<Vec<i64>, StoreError> {
    let entries = disk.read_directory(log).map_err(|source| StoreError::io(log, source))?;
    let files = entries.iter().filter(|entry| !entry.is_directory);
    Ok(files.filter_map(|entry| parse_file_name(&entry.name)).collect())
}

pub(super) fn sync_directory(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    disk.sync_directory(path).map_err(|source| StoreError::io(path, source))
}
