//! Finds what is wrong with the index, and makes it again from the log.
//!
//! A start verifies all files on the index thread. While the store runs, queries and the scrub find changed bytes. A wrong
//! file is removed with all later ones, and the thread indexes the log again from there. A kill or a power loss on the way
//! leaves an index that ends earlier, which a start continues.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use metaq_wire::Record;
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::index::file::IndexFile;
use crate::index::file_check::FileCheck;
use crate::index::key_index::Index;
use crate::index::keys::Found;
use crate::log::commit_log::CommitLog;
use crate::log::gate::Reports;
use crate::recovery::log_walk::{Content, Step, content_at, walk};

/// Blocks of the index that the scrub compares with each part of the log: 256 KiB beside about 1 MiB.
const SCRUBBED_BLOCKS: u64 = 64;
/// The most of the log that is read to find out whether a file is missing. The scrub finds the rest.
const SEAM_BYTES_MAX: i64 = 64 << 20;
const NONE: i64 = i64::MAX;

/// The repairs that are due, and those that are under way.
pub(crate) struct Repairs {
    /// The index is wrong from this physical offset on, or `NONE`.
    from: AtomicI64,
    why: Mutex<&'static str>,
    /// Records below this physical offset were indexed before. Queries may miss those that are not indexed again yet.
    until: AtomicI64,
    /// All files that the start found are verified.
    is_checked: AtomicBool,
    /// Files that were found wrong or missing.
    pub(crate) count: AtomicU64,
    /// The next block that the scrub checks: a physical offset names its file.
    scrubbed: Mutex<(i64, u64)>,
}

impl Repairs {
    pub(super) fn new(until: i64) -> Self {
        Self {
            from: AtomicI64::new(NONE),
            why: Mutex::new(""),
            until: AtomicI64::new(until),
            is_checked: AtomicBool::new(false),
            count: AtomicU64::new(0),
            scrubbed: Mutex::new((0, 0)),
        }
    }

    /// Whether the thread has to verify or remove something before queries find everything.
    pub(super) fn are_due(&self) -> bool {
        self.from.load(Ordering::Acquire) != NONE || !self.is_checked.load(Ordering::Acquire)
    }
}

impl Index {
    /// Asks the index thread to make the index again from the file on that holds a physical offset.
    #[cold]
    pub(crate) fn request_rebuild(&self, from: i64, why: &'static str) {
        *self.repairs.why.lock() = why;
        self.repairs.from.fetch_min(from, Ordering::AcqRel);
        self.wake();
    }

    /// Whether queries may miss confirmed records because the index is made again.
    pub(crate) fn is_incomplete(&self, confirmed: i64) -> bool {
        self.repairs.from.load(Ordering::Acquire) != NONE
            || self.indexed_end() < self.repairs.until.load(Ordering::Acquire).min(confirmed)
    }

    /// Removes the files that were found wrong.
    pub(super) fn rebuild_damaged(&self, log: &CommitLog, reports: &Reports) {
        let is_lost = |file: &IndexFile| file.has_lost_pages().then(|| file.span().begin_offset);
        if let Some(from) = self.files.read().iter().find_map(is_lost) {
            self.request_rebuild(from, "pages of its file were lost");
        }
        let from = self.repairs.from.load(Ordering::Acquire);
        if from == NONE {
            return;
        }
        let why = *self.repairs.why.lock();
        let mut files = self.files.write();
        let kept = files.partition_point(|file| file.span().end_offset < from);
        let end = files[..kept].last().map_or(0, |file| file.span().end_offset).max(log.start_offset());
        reports.add(format!("the key index is damaged and is rebuilt from {end} on: {why}"));
        self.repairs.count.fetch_add((files.len() - kept).max(1) as u64, Ordering::Relaxed);
        self.repairs.until.fetch_max(self.indexed_end(), Ordering::AcqRel);
        for file in files.drain(kept..) {
            if let Err(source) = self.disk.remove_file(file.path()) {
                // A start that finds it does not trust it.
                reports.add(StoreError::io(file.path(), source).to_string());
            }
        }
        let _hint = self.disk.sync_directory(&self.directory);
        self.synced_end.fetch_min(end, Ordering::AcqRel);
        self.indexed_end.store(end, Ordering::Release);
        // Only now may queries look again.
        let _new = self.repairs.from.compare_exchange(from, NONE, Ordering::AcqRel, Ordering::Relaxed);
        drop(files);
        self.wake_queries();
    }

    /// Verifies all files, and that none is missing between them.
    pub(super) fn check_all(&self, log: &CommitLog, reports: &Reports) {
        let mut number = 0;
        while !self.stop.load(Ordering::Acquire) {
            let wrong = {
                let files = self.files.read();
                let Some(file) = files.get(number) else { break };
                let before = number.checked_sub(1).and_then(|before| files.get(before));
                let last = number + 1 == files.len();
                match file.check(|| self.stop.load(Ordering::Relaxed)) {
                    FileCheck::Stopped => return,
                    FileCheck::Wrong(why) => Err(why),
                    FileCheck::Sound(_) if !last && !file.is_full() => Err("it is an older copy".to_owned()),
                    FileCheck::Sound(sums) => {
                        check_times(log, file).and_then(|()| check_seam(log, before, file)).map(|()| sums)
                    }
                }
                .map_err(|why| (file.span(), file.path().display().to_string(), why))
            };
            match wrong {
                Ok(sums) => {
                    if let Some(file) = self.files.write().get_mut(number) {
                        file.trust(sums);
                    }
                    number += 1;
                }
                Err((span, path, why)) => {
                    reports.add(format!("index file {path} cannot be trusted: {why}"));
                    self.request_rebuild(span.begin_offset.min(span.end_offset), "a start has verified it");
                    break;
                }
            }
        }
        self.rebuild_damaged(log, reports);
        self.repairs.is_checked.store(true, Ordering::Release);
        self.wake_queries();
    }

    /// Compares a part of the index with its checksums, and the entries of verified records with these.
    pub(crate) fn scrub(&self, records: &[u8]) {
        if self.repairs.are_due() {
            return;
        }
        self.scrub_blocks();
        self.scrub_records(records);
    }

    fn scrub_blocks(&self) {
        let files = self.files.read();
        let mut place = self.repairs.scrubbed.lock();
        let number = files.partition_point(|file| file.span().end_offset < place.0);
        let Some(file) = files.get(number) else {
            *place = (0, 0);
            return;
        };
        let end = file.blocks().min(place.1 + SCRUBBED_BLOCKS);
        if (place.1..end).any(|block| !file.is_block_right(block)) {
            self.request_rebuild(file.span().begin_offset, "the scrub found changed bytes");
        }
        *place =
            if end < file.blocks() { (place.0, end) } else { (file.span().end_offset.saturating_add(1), 0) };
    }

    fn scrub_records(&self, records: &[u8]) {
        let mut rest = records;
        let mut found = Found::default();
        let files = self.files.read();
        let indexed_end = self.indexed_end();
        while let Ok(record) = Record::decode(rest) {
            rest = &rest[record.size..];
            if record.physical_offset >= indexed_end {
                return;
            }
            found.keys.clear();
            found.add(&record);
            if !has_entries(&files, &record, &found) {
                self.request_rebuild(record.physical_offset, "the scrub found a record without its entries");
                return;
            }
        }
    }
}

/// Whether each key of a record has its entry.
fn has_entries(files: &[IndexFile], record: &Record<'_>, found: &Found) -> bool {
    if found.keys.is_empty() {
        return true;
    }
    let at = record.physical_offset;
    let first = files.partition_point(|file| file.span().end_offset < at);
    let mut hashes: Vec<i32> = files[first..]
        .iter()
        .take_while(|file| file.span().begin_offset <= at)
        .flat_map(|file| {
            let seconds = file.seconds_of(record.store_timestamp_ms);
            let right = file.entries_of(at).filter(move |entry| entry.seconds == seconds);
            right.map(|entry| entry.key_hash)
        })
        .collect();
    hashes.sort_unstable();
    found.keys.iter().all(|key| hashes.binary_search(&key.hash).is_ok())
}

/// Whether the times in the header are those of the records. A record that is deleted or damaged proves nothing.
fn check_times(log: &CommitLog, file: &IndexFile) -> Result<(), String> {
    let span = file.span();
    let fits = |at: i64, time_ms: i64| match log.file_at(at) {
        Some(found) => {
            let bytes = found.readable().get((at - found.start_offset) as usize..).unwrap_or_default();
            match content_at(bytes, at, true) {
                Content::Record(record) => record.store_timestamp_ms == time_ms,
                _ => true,
            }
        }
        None => true,
    };
    let are_right = fits(span.begin_offset, span.begin_time_ms) && fits(span.end_offset, span.end_time_ms);
    if are_right { Ok(()) } else { Err("the times in its header are not those of its records".to_owned()) }
}

/// Whether the log has no record with a key between two files, or in front of the first one.
fn check_seam(log: &CommitLog, before: Option<&IndexFile>, file: &IndexFile) -> Result<(), String> {
    let indexed = before.map_or(-1, |before| before.span().end_offset);
    let from = indexed.max(log.start_offset());
    let to = file.span().begin_offset.min(from.saturating_add(SEAM_BYTES_MAX));
    let mut missing = None;
    walk(log, from, to, true, |step| {
        if let Step::Record(record) = step {
            let mut found = Found::default();
            found.add(&record);
            if record.physical_offset > indexed && !found.keys.is_empty() {
                missing = Some(record.physical_offset);
            }
        }
        missing.is_none()
    });
    missing.map_or(Ok(()), |at| Err(format!("the file in front of it, with the record at {at}, is missing")))
}
