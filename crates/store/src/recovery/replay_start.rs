//! Decides from where the log is replayed after a start, so that the queues are complete.
//!
//! The replay begins at a *lower bound*: a physical offset below which every record and its queue entry are known to be
//! on the disk. The checkpoint holds it, so the work does not grow with the log. The bound is trusted only if its
//! checksum holds, which it does not after Apache's store wrote the directory, and the record before it is still there.
//! Otherwise the store times in the checkpoint name the file to begin with, as in Apache's store, less three seconds.
//! Otherwise the log is read from its start.

use std::sync::Arc;

use crate::log::mapped::MappedFile;
use crate::queue::dispatch::Replay;
use crate::recovery::checkpoint::{Bound, Saved};
use crate::recovery::log_walk::{Content, content_at};

/// Records may be missing from the queues that are up to this much older than the checkpoint's times.
const TIMES_SLACK_MS: i64 = 3_000;

/// Everything that is known before the log is read.
pub(crate) struct Evidence<'a> {
    pub(crate) saved: &'a Saved,
    /// Some queues, or all of them, have lost their files.
    pub(crate) queues_missing: bool,
    /// The machine was restarted since the checkpoint: what was not synced may be gone, in any order.
    pub(crate) is_rebooted: bool,
    /// The log is also kept elsewhere: a part of it may not be shown yet.
    pub(crate) is_replicated: bool,
}

pub(crate) struct ReplayStart {
    pub(crate) replay_from: i64,
    pub(crate) replay: Replay,
    /// The checkpoint's bound was trusted: below `replay_from` the queues are complete.
    pub(crate) is_bound_kept: bool,
    /// Everything below is known to have been confirmed.
    pub(crate) confirmed: i64,
}

/// Decides where the replay begins.
pub(crate) fn replay_start(files: &[Arc<MappedFile>], evidence: &Evidence<'_>) -> ReplayStart {
    let log_start = files.first().map_or(0, |file| file.start_offset);
    let proven = proven_bound(files, evidence, log_start);
    let confirmed = proven.unwrap_or(log_start);
    if let Some(replay_from) = proven.filter(|_| !evidence.queues_missing) {
        let replay = if evidence.is_replicated { Replay::Everything } else { Replay::Tail };
        return ReplayStart { replay_from, replay, is_bound_kept: true, confirmed };
    }
    let (replay_from, replay) = if evidence.is_replicated {
        // Queue entries are dropped from where the log is not known to be confirmed.
        (log_start, Replay::Everything)
    } else {
        start_by_times(files, evidence)
    };
    ReplayStart { replay_from, replay, is_bound_kept: false, confirmed }
}

/// The checkpoint's bound, if the log still shows that it is right. It is also how far records were confirmed: only
/// those have queue entries.
fn proven_bound(files: &[Arc<MappedFile>], evidence: &Evidence<'_>, log_start: i64) -> Option<i64> {
    let bound = evidence.saved.bound.as_ref()?;
    if bound.lower_bound <= log_start {
        return Some(log_start);
    }
    is_proven(files, bound).then_some(bound.lower_bound)
}

/// Decides by the checkpoint's times, if there is no bound.
fn start_by_times(files: &[Arc<MappedFile>], evidence: &Evidence<'_>) -> (i64, Replay) {
    let log_start = files.first().map_or(0, |file| file.start_offset);
    if evidence.queues_missing {
        return (log_start, Replay::Everything);
    }
    let times = &evidence.saved.times;
    let safe_ms = times.log_ms.min(times.queues_ms) - TIMES_SLACK_MS;
    let begins_before = |file: &&Arc<MappedFile>| match content_at(file.readable(), file.start_offset, true) {
        Content::Record(record) => record.store_timestamp_ms <= safe_ms,
        _ => false,
    };
    match files.iter().rev().find(begins_before) {
        Some(file) => (file.start_offset, Replay::Tail),
        None => (log_start, Replay::Everything),
    }
}

/// Whether the record before the bound is still there and ends at it, or at the blank that closes its file.
fn is_proven(files: &[Arc<MappedFile>], bound: &Bound) -> bool {
    let Some(file) = file_at(files, bound.last_record) else { return false };
    let rest = |at: i64| file.readable().get((at - file.start_offset) as usize..).unwrap_or_default();
    let Content::Record(record) = content_at(rest(bound.last_record), bound.last_record, true) else {
        return false;
    };
    let end = bound.last_record + record.size as i64;
    end == bound.lower_bound
        || (bound.lower_bound == file.end_offset()
            && matches!(content_at(rest(end), end, true), Content::Blank))
}

/// The file that contains the offset.
pub(crate) fn file_at(files: &[Arc<MappedFile>], physical_offset: i64) -> Option<&Arc<MappedFile>> {
    let after = files.partition_point(|file| file.start_offset <= physical_offset);
    files.get(after.checked_sub(1)?).filter(|file| physical_offset < file.end_offset())
}
