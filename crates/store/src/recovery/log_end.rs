//! Finds the end of the commit log at start: reads it from the start of the replay on and cuts off a torn tail.

use std::path::Path;
use std::sync::Arc;

use metaq_wire::Record;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::log::commit_log::{LogEnd, directory, file_name};
use crate::log::gate::Reports;
use crate::log::mapped::MappedFile;
use crate::queue::dispatch::Replay;
use crate::recovery::checkpoint::Saved;
use crate::recovery::log_walk::{Content, content_at, resume};
use crate::recovery::replay_start::{Evidence, ReplayStart, file_at, replay_start};
use crate::settings::StoreSettings;

pub(crate) struct Recovered {
    pub(crate) end: LogEnd,
    pub(crate) replay_from: i64,
    pub(crate) replay: Replay,
    /// The checkpoint's bound was trusted: below `replay_from` the queues are complete.
    pub(crate) is_bound_kept: bool,
    /// The start of the last record before `replay_from`, or −1.
    pub(crate) record_before: i64,
    pub(crate) scanned_bytes: i64,
}

pub(crate) fn recover(
    settings: &StoreSettings,
    disk: &dyn Disk,
    evidence: &Evidence<'_>,
    reports: &Reports,
) -> Result<Recovered, StoreError> {
    let directory = directory(&settings.directory);
    let files = open_files(settings, disk, &directory)?;
    let ReplayStart { replay_from, replay, is_bound_kept, confirmed } = replay_start(&files, evidence);
    let scan = Scan::run(&files, replay_from, evidence, disk)?;
    let store_timestamp_ms = scan.last_time_ms(&files, evidence.saved);
    let replicated = if settings.replicated { confirmed.min(scan.end) } else { i64::MAX };
    let files = cut(settings, disk, files, scan.end, reports)?;
    let Some(writer) = files.last().and_then(MappedFile::writer) else {
        return Err(StoreError::Damaged {
            path: directory,
            detail: "it has no file to append to".to_owned(),
        });
    };
    Ok(Recovered {
        // Data that the last process wrote but did not sync may be in the page cache only, so it is synced again.
        end: LogEnd { files, writer, store_timestamp_ms, flushed: replay_from, replicated },
        replay_from,
        replay,
        is_bound_kept,
        record_before: scan.record_before,
        scanned_bytes: scan.end - replay_from,
    })
}

/// Maps the files in order. A file is as long as the settings say or as it is, whichever is more, but never longer than
/// the distance to the next one.
fn open_files(
    settings: &StoreSettings,
    disk: &dyn Disk,
    directory: &Path,
) -> Result<Vec<Arc<MappedFile>>, StoreError> {
    let fail = |source| StoreError::io(directory, source);
    disk.create_directory(directory).map_err(fail)?;
    let starts: Vec<i64> = disk
        .read_directory(directory)
        .map_err(fail)?
        .iter()
        .filter(|entry| !entry.is_directory)
        .filter_map(|entry| parse_file_name(&entry.name))
        .collect();
    let mut files = Vec::with_capacity(starts.len());
    for (place, start_offset) in starts.iter().copied().enumerate() {
        let path = directory.join(file_name(start_offset));
        let own_len = disk
            .open(&path)
            .and_then(|file| disk.len(&file))
            .map_err(|source| StoreError::io(&path, source))?;
        let mut len = settings.commit_log_file_bytes.max(own_len);
        if let Some(next) = starts.get(place + 1) {
            len = len.min((next - start_offset) as u64);
        }
        files.push(Arc::new(MappedFile::open(disk, &path, start_offset, len, len)?));
    }
    Ok(files)
}

pub(crate) fn parse_file_name(name: &str) -> Option<i64> {
    let is_name = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    // An offset near the limit, with no room for further files, is not a log of ours.
    name.parse().ok().filter(|start_offset: &i64| is_name && *start_offset < i64::MAX / 2)
}

/// A pass over the log from the start of the replay to the end of the log.
struct Scan {
    end: i64,
    record_before: i64,
    last_record: i64,
    last_time_ms: i64,
}

impl Scan {
    fn run(
        files: &[Arc<MappedFile>],
        from: i64,
        evidence: &Evidence<'_>,
        disk: &dyn Disk,
    ) -> Result<Self, StoreError> {
        let bound = evidence.saved.bound.as_ref().filter(|bound| bound.lower_bound == from);
        let record_before = bound.map_or(-1, |bound| bound.last_record);
        let mut scan = Self { end: from, record_before, last_record: record_before, last_time_ms: 0 };
        let first = files.partition_point(|file| file.end_offset() <= from);
        for (place, file) in files.iter().enumerate().skip(first) {
            let later = &files[place + 1..];
            if !scan.run_file(file, later, evidence, disk)? {
                break;
            }
        }
        Ok(scan)
    }

    /// Scans one file; returns whether the log continues in the next one.
    fn run_file(
        &mut self,
        file: &Arc<MappedFile>,
        later: &[Arc<MappedFile>],
        evidence: &Evidence<'_>,
        disk: &dyn Disk,
    ) -> Result<bool, StoreError> {
        let synced_end = evidence.saved.bound.as_ref().map_or(0, |bound| bound.synced_end);
        let mut at = self.end.max(file.start_offset);
        while at < file.end_offset() {
            let position = (at - file.start_offset) as u64;
            let bytes = file.readable().get(position as usize..).unwrap_or_default();
            let place = content_at(bytes, at, true);
            match place {
                Content::Record(record) if is_torn(&record, bytes) => return Ok(false),
                Content::Record(record) => {
                    self.last_record = at;
                    self.last_time_ms = record.store_timestamp_ms;
                    at += record.size as i64;
                    self.end = at;
                }
                Content::Blank => break,
                Content::Nothing | Content::Damaged => {
                    // A power loss can take pages out of an unsynced tail, which leaves zeros before the rest of
                    // unacknowledged messages. That rest is not searched for records.
                    let is_lost_tail =
                        matches!(place, Content::Nothing) && at >= synced_end && evidence.is_rebooted;
                    let search_end = if is_lost_tail {
                        position
                    } else {
                        disk.data_end(file.file(), position)
                            .map_err(|source| StoreError::io(file.path(), source))?
                    };
                    let goes_on = later.iter().any(|file| is_sound(file));
                    match resume(file, position, search_end, goes_on) {
                        Some(position) => at = file.start_offset + position as i64,
                        None => return Ok(goes_on),
                    }
                }
            }
        }
        // If no file follows one that is closed by a blank, the log ends where that file ends.
        self.end = self.end.max(file.end_offset());
        Ok(true)
    }

    fn last_time_ms(&self, files: &[Arc<MappedFile>], saved: &Saved) -> i64 {
        let known = file_at(files, self.last_record).and_then(|file| {
            let bytes = file.readable().get((self.last_record - file.start_offset) as usize..)?;
            match content_at(bytes, self.last_record, false) {
                Content::Record(record) => Some(record.store_timestamp_ms),
                _ => None,
            }
        });
        known.unwrap_or(saved.times.log_ms).max(self.last_time_ms)
    }
}

/// Whether the writer of the record was interrupted. The checksum may cover the body alone; but topic and properties are
/// text, so a record that ends in a zero and is followed by zeros is torn.
fn is_torn(record: &Record<'_>, bytes: &[u8]) -> bool {
    let text_end = record.properties.last().or(record.topic.last());
    text_end == Some(&0)
        && matches!(content_at(bytes.get(record.size..).unwrap_or_default(), 0, false), Content::Nothing)
}

/// Whether the file begins with a record.
fn is_sound(file: &MappedFile) -> bool {
    matches!(content_at(file.readable(), file.start_offset, true), Content::Record(_))
}

/// Cuts the log at its end: zeroes the rest of that file, removes later files, and opens the file for appending.
fn cut(
    settings: &StoreSettings,
    disk: &dyn Disk,
    mut files: Vec<Arc<MappedFile>>,
    end: i64,
    reports: &Reports,
) -> Result<Vec<Arc<MappedFile>>, StoreError> {
    let kept = files.partition_point(|file| file.start_offset < end).max(1).min(files.len());
    for file in files.drain(kept..) {
        remove_after_end(settings, disk, &file, reports)?;
    }
    let last = match files.pop() {
        Some(last) if end < last.end_offset() => last,
        other => {
            // The last file is full, or there is none: the log continues in a new one.
            files.extend(other);
            let directory = directory(&settings.directory);
            let path = directory.join(file_name(end));
            files.push(Arc::new(MappedFile::open(disk, &path, end, settings.commit_log_file_bytes, 0)?));
            disk.sync_directory(&directory).map_err(|source| StoreError::io(&directory, source))?;
            return Ok(files);
        }
    };
    let position = (end - last.start_offset) as u64;
    let fail = |source| StoreError::io(last.path(), source);
    let data_end = disk.data_end(last.file(), position).map_err(fail)?.min(last.len());
    let tail = last.readable().get(position as usize..data_end as usize).unwrap_or_default();
    if let Some(torn) = tail.iter().rposition(|byte| *byte != 0) {
        reports.add(format!("commit log: a torn tail of {} bytes after {end} was cut off", torn + 1));
        disk.zero(last.file(), position, last.len() - position).map_err(fail)?;
        disk.sync_data(last.file()).map_err(fail)?;
    }
    files.push(Arc::new(MappedFile::open(disk, last.path(), last.start_offset, last.len(), position)?));
    Ok(files)
}

/// Removes a file after the log's end: deletes it if it is empty, otherwise moves it to `cut/` for a person to look
/// at.
fn remove_after_end(
    settings: &StoreSettings,
    disk: &dyn Disk,
    file: &MappedFile,
    reports: &Reports,
) -> Result<(), StoreError> {
    let fail = |source| StoreError::io(file.path(), source);
    let data_end = disk.data_end(file.file(), 0).map_err(fail)?.min(file.len());
    let is_unused = file.readable()[..data_end as usize].iter().all(|byte| *byte == 0);
    if is_unused {
        return disk.remove_file(file.path()).map_err(fail);
    }
    let aside = settings.directory.join("cut");
    disk.create_directory(&aside).map_err(fail)?;
    let to = aside.join(file_name(file.start_offset));
    reports.add(format!(
        "commit log: {} holds no record and was moved to {}",
        file.path().display(),
        to.display()
    ));
    disk.rename(file.path(), &to).map_err(fail)
}
