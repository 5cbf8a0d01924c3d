//! Opening and closing a store directory.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::clock::Clock;
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::housekeeping::Keep;
use crate::index::key_index::Index;
use crate::log::commit_log::CommitLog;
use crate::log::flush::Flush;
use crate::log::gate::{Gate, Reports};
use crate::queue::dispatch::{Dispatch, Replay};
use crate::queue::table::Queues;
use crate::read::Damage;
use crate::recovery::checkpoint::{Checkpoint, Saved};
use crate::recovery::log_end::{self, Evidence};
use crate::settings::StoreSettings;
use crate::store::Parts;

const ABORT: &str = "abort";
const LOCK: &str = "lock";

/// Takes the directory, finds the log's end, rebuilds the queues from where they lag; no thread runs yet.
pub(crate) fn open(
    settings: StoreSettings,
    clock: Clock,
    disk: Arc<dyn Disk>,
) -> Result<(Parts, DiskFile), StoreError> {
    settings.check()?;
    let directory = &settings.directory;
    disk.create_directory(directory).map_err(|source| StoreError::io(directory, source))?;
    let lock = take_lock(&settings, &*disk)?;
    let reports = Reports::default();
    let boot_id = disk.boot_id();
    let is_clean = !disk.exists(&directory.join(ABORT));
    let (checkpoint, saved) = Checkpoint::open(&*disk, directory)?;

    let queues = Queues::new(Arc::clone(&disk), directory, settings.consume_queue_file_entries);
    let queue_count = queues.list_on_disk()?.len() as i64;
    queues.disk.directory_count.store(queue_count, std::sync::atomic::Ordering::Release);
    let is_rebooted = saved.bound.as_ref().map_or(!is_clean, |bound| bound.boot_id != boot_id);
    let mut queues_missing =
        saved.bound.as_ref().map_or(queue_count == 0, |bound| queue_count < bound.queue_count);
    let stopped_with = saved.bound.as_ref().filter(|_| is_clean).map_or(0, |bound| bound.queue_files);
    if stopped_with != 0 && queues.files_digest()? != stopped_with {
        reports.add("queue files were changed or lost since the last stop: queues are rebuilt".to_owned());
        queues_missing = true;
    }
    let evidence = Evidence { saved: &saved, queues_missing, is_rebooted };
    let recovered = log_end::recover(&settings, &*disk, &evidence, &reports)?;
    mark_open(&settings, &*disk)?;

    let gate = Arc::new(Gate::new(directory.clone()));
    let log_end = recovered.end.writer.physical_offset();
    let log = CommitLog::new(&settings, Arc::clone(&disk), clock.clone(), Arc::clone(&gate), recovered.end);
    let index_synced_end = trusted_index_end(&saved, is_clean, is_rebooted);
    let index =
        Index::open(&settings, Arc::clone(&disk), log.start_offset(), log_end, index_synced_end, &reports)?;
    let parts = Parts {
        dispatch: Dispatch::new(recovered.replay_from, recovered.last_record),
        flush: Flush::new(settings.sync_flush, settings.flush_interval_ms),
        recovered_from: recovered.replay_from,
        recovered_bytes: recovered.scanned_bytes,
        keep: Keep::new(checkpoint, if recovered.is_bound_kept { recovered.replay_from } else { -1 }),
        damage: Damage::default(),
        consumed: Mutex::default(),
        needed_from: std::sync::atomic::AtomicI64::new(i64::MAX),
        cleaning: Mutex::new(()),
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
    // After an orderly stop with nothing behind the bound, queues are complete and loaded when they are touched.
    if !(is_clean && recovered.replay_from == log_end && recovered.is_bound_kept) {
        replay(&parts, recovered.replay)?;
    }
    parts.look_at_disk();
    Ok((parts, lock))
}

/// Cuts every queue back to where the replay begins, then dispatches the log from there.
fn replay(parts: &Parts, replay: Replay) -> Result<(), StoreError> {
    parts.queues.load_all(parts.recovered_from)?;
    parts.dispatch.run_to_end(&parts.context(replay))?;
    parts.queues.settle();
    // An older bound must not outlive this: once new records stand where it points, nothing would void it.
    parts.keep.require_save();
    parts.flush_queues();
    Ok(())
}

/// Up to where index files are believed: all of them unless the machine was restarted under an open store.
fn trusted_index_end(saved: &Saved, is_clean: bool, is_rebooted: bool) -> i64 {
    match &saved.bound {
        _ if is_clean => i64::MAX,
        Some(_) if !is_rebooted => i64::MAX,
        Some(bound) => bound.index_synced_end,
        None => -1,
    }
}

fn take_lock(settings: &StoreSettings, disk: &dyn Disk) -> Result<DiskFile, StoreError> {
    let path = settings.directory.join(LOCK);
    let fail = |source| StoreError::io(&path, source);
    let file = disk.create(&path).map_err(fail)?;
    if !disk.lock(&file).map_err(fail)? {
        return Err(StoreError::Locked { path });
    }
    disk.write_at(&file, b"lock", 0).map_err(fail)?;
    Ok(file)
}

/// The abort marker: there while the store is open, so that the next start knows how this one ended.
fn mark_open(settings: &StoreSettings, disk: &dyn Disk) -> Result<(), StoreError> {
    let path = settings.directory.join(ABORT);
    let fail = |source| StoreError::io(&path, source);
    let file = disk.create(&path).map_err(fail)?;
    let pid = std::process::id().to_string();
    disk.set_len(&file, pid.len() as u64).map_err(fail)?;
    disk.write_at(&file, pid.as_bytes(), 0).map_err(fail)?;
    disk.sync_directory(&settings.directory).map_err(fail)
}

/// Makes everything safe and leaves the mark of an orderly end. After a failed sync the abort marker stays.
pub(crate) fn finish(parts: &Parts) -> Result<(), StoreError> {
    let context = parts.context(Replay::No);
    parts.log.while_paused(|| parts.dispatch.run_to_end(&context))?;
    parts.sync_log()?;
    parts.index.catch_up(&parts.log, parts.dispatch.dispatched_end())?;
    parts.queues.flush()?;
    parts.keep.queue_files.store(parts.queues.files_digest()?, std::sync::atomic::Ordering::Release);
    parts.save_checkpoint(true, false)?;
    parts.log.ahead.discard();
    let path = parts.settings.directory.join(ABORT);
    parts.disk.remove_file(&path).map_err(|source| StoreError::io(&path, source))?;
    let directory = &parts.settings.directory;
    parts.disk.sync_directory(directory).map_err(|source| StoreError::io(directory, source))
}
