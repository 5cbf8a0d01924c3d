//! Repairs a closed store: puts sound bytes, which another node of the group has, in the place of damaged ones.
//!
//! The caller has copied the damaged bytes aside. A kill or a power loss half-way leaves the range damaged, and the
//! next check finds that.

use std::sync::Arc;

use metaq_wire::layout;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::log::commit_log::{directory, file_name};
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::log_walk::{Content, content_at};
use crate::recovery::open::{mark_open, take_lock};
use crate::recovery::truncation::{
    finish_pending, forget_timers, last_record_before, log_files, sync_directory,
};
use crate::settings::StoreSettings;

/// Writes the whole, sound records that the bytes begin with over whatever stands there, all in one log file. Returns the
/// end of what was written, once it is on the disk. With `rebuild` the next start reads the log again from there on,
/// because entries are missing at the ends of queues.
pub fn rewrite_log(
    settings: &StoreSettings,
    disk: &Arc<dyn Disk>,
    physical_offset: i64,
    bytes: &[u8],
    rebuild: bool,
) -> Result<i64, StoreError> {
    settings.check()?;
    let bytes = &bytes[..sound_bytes(physical_offset, bytes)];
    if bytes.is_empty() {
        return Err(refused(physical_offset, "no sound record begins there".to_owned()));
    }
    let disk = &**disk;
    let _held_until_done = take_lock(settings, disk)?;
    finish_pending(settings, disk)?;
    let log = directory(&settings.directory);
    let starts = log_files(disk, &log)?;
    let file_bytes = settings.commit_log_file_bytes as i64;
    let missing_start = physical_offset - physical_offset % file_bytes;
    let start_offset = starts.iter().rev().copied().find(|start| *start <= physical_offset);
    let start_offset = start_offset.unwrap_or(missing_start).max(missing_start);
    let path = log.join(file_name(start_offset));
    let fail = |source| StoreError::io(&path, source);
    let (position, end) = ((physical_offset - start_offset) as u64, bytes.len() as u64);
    let file = disk.create(&path).map_err(fail)?;
    let len = disk.len(&file).map_err(fail)?.max(settings.commit_log_file_bytes);
    if position + end > len {
        return Err(refused(physical_offset, format!("{end} bytes reach beyond the end of their file")));
    }
    disk.set_len(&file, len).map_err(fail)?;
    mark_open(settings, disk)?;
    if rebuild {
        lower_bound(settings, disk, &starts, physical_offset)?;
        forget_timers(settings, disk)?;
    }
    disk.write_at(&file, bytes, position).map_err(fail)?;
    disk.sync_data(&file).map_err(fail)?;
    sync_directory(disk, &log)?;
    Ok(physical_offset + bytes.len() as i64)
}

/// How many of the bytes are whole, sound records, or a blank behind them.
fn sound_bytes(physical_offset: i64, bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        at = match content_at(&bytes[at..], physical_offset + at as i64, true) {
            Content::Record(record) => at + record.size,
            Content::Blank if bytes.len() - at >= layout::BLANK_BYTES => bytes.len(),
            Content::Blank | Content::Nothing | Content::Damaged => break,
        };
    }
    at
}

/// Lets the next start read the log from there on and fill the queues again. What was flushed stays flushed.
fn lower_bound(
    settings: &StoreSettings,
    disk: &dyn Disk,
    starts: &[i64],
    physical_offset: i64,
) -> Result<(), StoreError> {
    let (checkpoint, saved) = Checkpoint::open(disk, &settings.directory)?;
    let Some(mut bound) = saved.bound.filter(|bound| bound.lower_bound > physical_offset) else {
        return Ok(());
    };
    bound.last_record = last_record_before(settings, disk, starts, physical_offset)?;
    bound.lower_bound = if bound.last_record < 0 { -1 } else { physical_offset };
    bound.index_synced_end = bound.index_synced_end.min(physical_offset);
    bound.queue_files = 0;
    checkpoint.save(disk, &saved.times, &bound)
}

fn refused(physical_offset: i64, detail: String) -> StoreError {
    StoreError::BadRawBytes { physical_offset, detail }
}
