//! Opens and closes a store directory.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::clock::Clock;
use crate::disk::{Disk, DiskFile, rewrite};
use crate::error::StoreError;
use crate::housekeeping::Housekeeping;
use crate::index::key_index::Index;
use crate::log::commit_log::CommitLog;
use crate::log::flush::{Flush, sync_files};
use crate::log::followers::Followers;
use crate::log::gate::{Gate, Reports};
use crate::log::lease::Lease;
use crate::pins::Pins;
use crate::queue::dispatch::Dispatch;
use crate::queue::table::Queues;
use crate::read::Damage;
use crate::recovery::checkpoint::{Checkpoint, Saved};
use crate::recovery::log_end;
use crate::recovery::log_start;
use crate::recovery::log_walk::{Step, walk};
use crate::recovery::replay_start::Evidence;
use crate::recovery::truncation;
use crate::retention::RetentionRule;
use crate::settings::StoreSettings;
use crate::store::{OpenStore, Recovery};

const ABORT: &str = "abort";
const LOCK: &str = "lock";

/// Locks the directory, finds the log's end and rebuilds the queues from where they lag. No thread runs yet.
pub(crate) fn open(
    settings: StoreSettings,
    clock: Clock,
    disk: Arc<dyn Disk>,
) -> Result<(OpenStore, DiskFile), StoreError> {
    settings.check()?;
    let directory = &settings.directory;
    disk.create_directory(directory).map_err(|source| StoreError::io(directory, source))?;
    let lock = take_lock(&settings, &*disk)?;
    truncation::finish_pending(&settings, &*disk)?;
    let reports = Reports::default();
    let boot_id = disk.boot_id();
    let is_clean = !disk.exists(&directory.join(ABORT));
    let (checkpoint, saved) = Checkpoint::open(&*disk, directory)?;

    let queues = Queues::new(Arc::clone(&disk), directory, settings.consume_queue_file_entries);
    let queue_count = queues.count_on_disk()?;
    queues.disk.directory_count.store(queue_count, std::sync::atomic::Ordering::Release);
    let is_rebooted = saved.bound.as_ref().map_or(!is_clean, |bound| bound.boot_id != boot_id);
    let queues_missing = are_queues_missing(&queues, queue_count, &saved, is_clean, &reports)?;
    let evidence =
        Evidence { saved: &saved, queues_missing, is_rebooted, is_replicated: settings.replicated };
    let recovered = log_end::recover(&settings, &*disk, &evidence, &reports)?;
    mark_open(&settings, &*disk)?;

    let lease = Arc::new(Lease::none());
    let gate = Arc::new(Gate::new(directory.clone(), Arc::clone(&lease)));
    let log_end = recovered.end.writer.physical_offset();
    let log =
        CommitLog::new(&settings, Arc::clone(&disk), clock.clone(), Arc::clone(&gate), lease, recovered.end);
    let index_synced_end = trusted_index_end(&saved, is_clean, is_rebooted);
    let index =
        Index::open(&settings, Arc::clone(&disk), log.start_offset(), log_end, index_synced_end, &reports)?;
    let flushed_mark = saved.bound.as_ref().map_or(0, |bound| bound.flushed_mark);
    let shared = OpenStore {
        dispatch: Dispatch::new(recovered.replay_from, recovered.record_before),
        flush: Flush::new(settings.sync_flush, settings.flush_interval_ms),
        confirming: Mutex::new(()),
        followers: Followers::default(),
        sync_followers: Followers::default(),
        recovered: Recovery {
            from: recovered.replay_from,
            end: log_end,
            replay: recovered.replay,
            flushed_mark,
            is_clean,
            scanned_bytes: recovered.scanned_bytes,
        },
        housekeeping: Housekeeping::new(
            checkpoint,
            &saved,
            if recovered.is_bound_kept { recovered.replay_from } else { -1 },
        ),
        damage: Damage::new(settings.entry_search_bytes_max),
        consumed: Mutex::default(),
        pins: Pins::default(),
        cleaning: Mutex::new(()),
        retention_rule: RetentionRule::new(settings.replicated),
        retention: RwLock::new(settings.retention.clone()),
        events: RwLock::new(None),
        settings,
        clock,
        disk,
        boot_id,
        gate,
        reports,
        log,
        queues,
        index,
    };
    find_lost_front(&shared, &saved)?;
    if shared.settings.sync_flush || shared.settings.replicated {
        make_tail_safe(&shared, &saved, is_rebooted)?;
    }
    let shown_end = shared.log.progress.confirmable();
    // After an orderly stop with nothing more to show, queues are complete and are loaded on first use.
    if !(is_clean && recovered.replay_from == shown_end && recovered.is_bound_kept) {
        replay(&shared)?;
    }
    count_unconfirmed(&shared)?;
    shared.log.progress.set_confirmed(shown_end);
    shared.check_suspects();
    shared.check_disk_level();
    Ok((shared, lock))
}

/// Counts files in front of the first one as damaged if nobody has deleted them on purpose.
fn find_lost_front(shared: &OpenStore, saved: &Saved) -> Result<(), StoreError> {
    let (disk, directory, first) = (&*shared.disk, &shared.settings.directory, shared.log.start_offset());
    // Without our bound, Apache's store may have deleted files.
    let known = if saved.bound.is_some() { log_start::read(disk, directory)? } else { None };
    match known {
        Some(start) if start < first => {
            shared.log.lose_front(start);
            shared.log.damage.settle(start, first, &[(start, first)]);
            shared.reports.add(format!("commit log: the files from {start} to {first} are missing"));
            Ok(())
        }
        Some(start) if start == first => Ok(()),
        _ => log_start::save(disk, directory, first),
    }
}

/// Whether queues lack all of their files or, after an orderly stop, whether any of their files changed since.
fn are_queues_missing(
    queues: &Queues,
    queue_count: i64,
    saved: &Saved,
    is_clean: bool,
    reports: &Reports,
) -> Result<bool, StoreError> {
    let stopped_with = saved.bound.as_ref().filter(|_| is_clean).map_or(0, |bound| bound.queue_files);
    if stopped_with != 0 && queues.files_digest()? != stopped_with {
        reports.add("queue files were changed or lost since the last stop: queues are rebuilt".to_owned());
        return Ok(true);
    }
    Ok(saved.bound.as_ref().map_or(queue_count == 0, |bound| queue_count < bound.queue_count))
}

/// Syncs the recovered tail before anybody may read it: what the last process did not sync is only in the page cache.
///
/// If a sync of the last process failed, the kernel may call pages clean that never reached the disk, and another sync
/// would skip them. So under the same boot everything after the last known sync is written once more.
fn make_tail_safe(shared: &OpenStore, saved: &Saved, is_rebooted: bool) -> Result<(), StoreError> {
    let (from, end) = (shared.log.progress.flushed(), shared.log.appended_end());
    let doubtful_from = saved.bound.as_ref().filter(|_| !is_rebooted).map_or(end, |bound| bound.synced_end);
    for file in shared.log.files().iter().filter(|file| file.end_offset() > doubtful_from.max(from)) {
        let position =
            |offset: i64| (offset.clamp(file.start_offset, file.end_offset()) - file.start_offset) as u64;
        let (first, last) = (position(doubtful_from.max(from)), position(end));
        rewrite(&*shared.disk, file.file(), first, last.saturating_sub(first))
            .map_err(|source| StoreError::io(file.path(), source))?;
    }
    sync_files(&shared.log, from, end)?;
    shared.log.progress.set_flushed(end);
    Ok(())
}

/// Cuts every queue back to where the replay begins, then dispatches the log from there as far as it may be shown.
fn replay(shared: &OpenStore) -> Result<(), StoreError> {
    shared.queues.load_all(shared.recovered.from)?;
    shared.dispatch.run_to_end(&shared.context())?;
    shared.queues.finish_replay();
    // An older bound must not survive: once new records lie where it points, nothing would show that it is wrong.
    shared.housekeeping.require_save();
    shared.flush_queues();
    Ok(())
}

/// Counts the records that may not be shown yet, so that new ones get the queue offsets after theirs.
fn count_unconfirmed(shared: &OpenStore) -> Result<(), StoreError> {
    let mut outcome = Ok(());
    walk(&shared.log, shared.dispatch.dispatched_end(), shared.recovered.end, true, |step| {
        if let Step::Record(record) = step {
            outcome = shared.queues.pass_record(&record);
        }
        outcome.is_ok()
    });
    outcome
}

/// How far index files can be trusted: completely, unless the machine was restarted while the store was open.
fn trusted_index_end(saved: &Saved, is_clean: bool, is_rebooted: bool) -> i64 {
    match &saved.bound {
        _ if is_clean => i64::MAX,
        Some(_) if !is_rebooted => i64::MAX,
        Some(bound) => bound.index_synced_end,
        None => -1,
    }
}

pub(crate) fn take_lock(settings: &StoreSettings, disk: &dyn Disk) -> Result<DiskFile, StoreError> {
    let path = settings.directory.join(LOCK);
    let fail = |source| StoreError::io(&path, source);
    let file = disk.create(&path).map_err(fail)?;
    if !disk.lock(&file).map_err(fail)? {
        return Err(StoreError::Locked { path });
    }
    disk.write_at(&file, b"lock", 0).map_err(fail)?;
    Ok(file)
}

/// Creates the abort marker. It exists while the store is open, so that the next start knows how this one ended.
pub(crate) fn mark_open(settings: &StoreSettings, disk: &dyn Disk) -> Result<(), StoreError> {
    let path = settings.directory.join(ABORT);
    let fail = |source| StoreError::io(&path, source);
    let file = disk.create(&path).map_err(fail)?;
    let pid = std::process::id().to_string();
    disk.set_len(&file, pid.len() as u64).map_err(fail)?;
    disk.write_at(&file, pid.as_bytes(), 0).map_err(fail)?;
    disk.sync_directory(&settings.directory).map_err(fail)
}

/// Syncs everything and removes the abort marker. After a failed sync the marker stays.
pub(crate) fn finish(shared: &OpenStore) -> Result<(), StoreError> {
    shared.log.while_paused(|_| shared.confirm_appended())?;
    shared.sync_log()?;
    shared.index.catch_up(&shared.log, shared.dispatch.dispatched_end())?;
    shared.queues.flush()?;
    shared
        .housekeeping
        .queue_files
        .store(shared.queues.files_digest()?, std::sync::atomic::Ordering::Release);
    shared.save_checkpoint(true, false)?;
    shared.log.preallocation.discard();
    let path = shared.settings.directory.join(ABORT);
    shared.disk.remove_file(&path).map_err(|source| StoreError::io(&path, source))?;
    let directory = &shared.settings.directory;
    shared.disk.sync_directory(directory).map_err(|source| StoreError::io(directory, source))
}
