//! The gate refuses appends that could not be kept, and collects reports for the operator.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::StoreError;
use crate::log::lease::Lease;

/// Reasons to refuse writes. Each comes and goes on its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// Lasts until a restart: after a failed sync the kernel forgets what it could not write.
    FailedSync = 1,
    Closed = 2,
    /// The file system passed `disk_refuse_percent`.
    DiskLevel = 4,
    /// Queue entries could not be written. They wait in memory, which must not grow without bound.
    QueuesStuck = 8,
    /// This store's owner may not store new records now. Copies of another log are still taken.
    Fenced = 16,
}

/// Checked by every append with two loads.
pub(crate) struct Gate {
    refusals: AtomicU8,
    directory: PathBuf,
    /// The last append found no room for its record. It refuses nothing: the next append tries again.
    lacks_room: AtomicBool,
    /// The reason why queue entries cannot be written, while that refuses appends.
    stuck: Mutex<Option<Stuck>>,
    /// The reason for `Fenced`, which senders see.
    fence: Mutex<String>,
    lease: Arc<Lease>,
    /// The time until which every replica that must be is known to follow. A lone store has none.
    followed: Lease,
    is_followed: AtomicBool,
}

/// The reason that senders see when the lease is over.
const LEASE_IS_OVER: &str = "this broker could not show in time that it is still the master: it stores nothing until it can; \
                             try again, or send to another broker";

/// The reason that consumers see when the replicas were not heard of for too long.
const NOT_FOLLOWED: &str =
    "its replicas have not followed this broker of late, so another node may be master";

struct Stuck {
    is_disk_full: bool,
    cause: String,
}

impl Gate {
    pub(crate) fn new(directory: PathBuf, lease: Arc<Lease>) -> Self {
        Self {
            refusals: AtomicU8::new(0),
            lacks_room: AtomicBool::new(false),
            directory,
            stuck: Mutex::new(None),
            fence: Mutex::default(),
            lease,
            followed: Lease::none(),
            is_followed: AtomicBool::new(false),
        }
    }

    /// Returns true if that changed anything.
    pub(crate) fn shut(&self, why: Refusal) -> bool {
        self.refusals.fetch_or(why as u8, Ordering::SeqCst) & why as u8 == 0
    }

    /// Refuses appends while queue entries cannot be written; the refusals name `error` as the cause.
    pub(crate) fn shut_for_queues(&self, error: &StoreError, reports: &Reports) {
        let is_disk_full = matches!(error, StoreError::DiskFull { .. });
        *self.stuck.lock() = Some(Stuck { is_disk_full, cause: error.to_string() });
        if self.shut(Refusal::QueuesStuck) {
            reports.add(format!("queue entries cannot be written, appends are refused: {error}"));
        }
    }

    /// Refuses new records for this reason.
    pub(crate) fn fence(&self, reason: &str) {
        reason.clone_into(&mut self.fence.lock());
        self.shut(Refusal::Fenced);
    }

    /// Replicas follow this store, and those that must are known to do so until then; None if nobody must.
    pub(crate) fn note_followed(&self, deadline_ms: Option<i64>) {
        self.followed.set(deadline_ms);
        self.is_followed.store(true, Ordering::SeqCst);
    }

    /// Refuses what needs no record but must reach the replicas, and which another master would not have.
    pub(crate) fn check_followed(&self) -> Result<(), StoreError> {
        if !self.is_followed.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = if self.is_shut(Refusal::Fenced) {
            self.fence.lock().clone()
        } else if self.lease.is_over() {
            LEASE_IS_OVER.to_owned()
        } else if self.followed.is_over() {
            NOT_FOLLOWED.to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::Fenced { reason })
    }

    /// Returns true if that changed anything; a failed sync is never lifted.
    pub(crate) fn lift(&self, why: Refusal) -> bool {
        if matches!(why, Refusal::FailedSync) {
            return false;
        }
        self.refusals.fetch_and(!(why as u8), Ordering::SeqCst) & why as u8 != 0
    }

    /// Remembers an error that says that there is no room for a record.
    #[cold]
    pub(crate) fn note_append_error(&self, error: &StoreError) {
        if matches!(error, StoreError::DiskFull { .. }) {
            self.lacks_room.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn lacks_room(&self) -> bool {
        self.lacks_room.load(Ordering::SeqCst)
    }

    /// There is room again.
    pub(crate) fn note_room(&self) {
        self.lacks_room.store(false, Ordering::SeqCst);
    }

    /// Whether records are refused because the disk is full, or queue entries cannot be written.
    pub(crate) fn is_full(&self) -> bool {
        self.lacks_room() || self.is_shut(Refusal::DiskLevel) || self.is_shut(Refusal::QueuesStuck)
    }

    pub(crate) fn is_shut(&self, why: Refusal) -> bool {
        self.refusals.load(Ordering::SeqCst) & why as u8 != 0
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.refusals.load(Ordering::Acquire) {
            0 if self.lease.is_over() => Err(StoreError::Fenced { reason: LEASE_IS_OVER.to_owned() }),
            0 => Ok(()),
            refusals => Err(self.error(refusals)),
        }
    }

    /// Whether a copy of another log's record may be appended.
    pub(crate) fn check_copy(&self) -> Result<(), StoreError> {
        match self.refusals.load(Ordering::Acquire) & !(Refusal::Fenced as u8) {
            0 => Ok(()),
            refusals => Err(self.error(refusals)),
        }
    }

    /// Refuses a deletion, which needs a record but hardly any space.
    pub(crate) fn check_deletion(&self) -> Result<(), StoreError> {
        match self.check() {
            Err(StoreError::DiskFull { .. } | StoreError::QueuesStuck { .. }) => Ok(()),
            other => other,
        }
    }

    /// Refuses once the store is closed, and for no other reason.
    pub(crate) fn check_open(&self) -> Result<(), StoreError> {
        if self.is_shut(Refusal::Closed) { Err(StoreError::Closed) } else { Ok(()) }
    }

    #[cold]
    fn error(&self, refusals: u8) -> StoreError {
        if refusals & Refusal::Closed as u8 != 0 {
            return StoreError::Closed;
        }
        if refusals & Refusal::FailedSync as u8 != 0 {
            return StoreError::FailedSync;
        }
        let full =
            |detail: &str| StoreError::DiskFull { path: self.directory.clone(), detail: detail.to_owned() };
        if refusals & Refusal::DiskLevel as u8 != 0 {
            return full(
                "past disk_refuse_percent; add space, or raise it or lower file_reserved_hours with `metaq config set`",
            );
        }
        if refusals & Refusal::QueuesStuck as u8 == 0 {
            return StoreError::Fenced { reason: self.fence.lock().clone() };
        }
        match &*self.stuck.lock() {
            Some(Stuck { is_disk_full: false, cause }) => StoreError::QueuesStuck { cause: cause.clone() },
            _ => full("queue entries could not be written"),
        }
    }
}

/// Messages for the operator. Their number is bounded: the oldest are dropped first.
#[derive(Default)]
pub(crate) struct Reports {
    lines: Mutex<VecDeque<String>>,
    dropped: AtomicU64,
}

const REPORTS_MAX: usize = 1_000;

impl Reports {
    pub(crate) fn add(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.back() == Some(&line) {
            return;
        }
        if lines.len() == REPORTS_MAX {
            lines.pop_front();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        lines.push_back(line);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        let mut taken: Vec<String> = std::mem::take(&mut *self.lines.lock()).into();
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            taken.insert(0, format!("{dropped} older reports were dropped"));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::clock::boot_time_ms;

    #[test]
    fn reasons_come_and_go_but_a_failed_sync_stays() {
        let gate = Gate::new(PathBuf::from("store"), Arc::new(Lease::none()));
        assert!(gate.check().is_ok());
        assert!(gate.shut(Refusal::DiskLevel));
        assert!(!gate.shut(Refusal::DiskLevel), "told once");
        assert!(gate.shut(Refusal::FailedSync));
        assert!(matches!(gate.check(), Err(StoreError::FailedSync)));
        assert!(gate.lift(Refusal::DiskLevel));
        assert!(!gate.lift(Refusal::FailedSync));
        assert!(matches!(gate.check(), Err(StoreError::FailedSync)));
    }

    #[test]
    fn offsets_are_refused_while_fenced_or_not_followed() {
        let lease = Arc::new(Lease::none());
        let gate = Gate::new(PathBuf::from("store"), Arc::clone(&lease));
        let reason = || match gate.check_followed() {
            Err(StoreError::Fenced { reason }) => reason,
            other => format!("{other:?}"),
        };
        gate.fence("too few");
        assert!(gate.check_followed().is_ok(), "a store without replicas keeps them itself");
        gate.note_followed(None);
        assert_eq!(reason(), "too few");
        gate.lift(Refusal::Fenced);
        assert!(gate.check_followed().is_ok(), "nobody must follow");
        gate.note_followed(Some(boot_time_ms() + 3_600_000));
        assert!(gate.check_followed().is_ok());
        gate.shut(Refusal::DiskLevel);
        assert!(gate.check_followed().is_ok(), "an offset needs no record");
        lease.set(Some(0));
        assert_eq!(reason(), LEASE_IS_OVER);
        lease.set(None);
        gate.note_followed(Some(boot_time_ms()));
        assert_eq!(reason(), NOT_FOLLOWED);
    }

    #[test]
    fn a_full_disk_is_noted_until_there_is_room() {
        let gate = Gate::new(PathBuf::from("store"), Arc::new(Lease::none()));
        gate.note_append_error(&StoreError::Closed);
        assert!(!gate.is_full());
        gate.note_append_error(&StoreError::io(Path::new("log"), io::ErrorKind::StorageFull.into()));
        assert!(gate.is_full() && gate.check().is_ok(), "the next append tries again");
        gate.note_room();
        assert!(!gate.is_full());
        for why in [Refusal::DiskLevel, Refusal::QueuesStuck] {
            gate.shut(why);
            assert!(gate.is_full());
            gate.lift(why);
        }
        gate.shut(Refusal::Fenced);
        assert!(!gate.is_full());
    }

    #[test]
    fn a_fence_stops_new_records_but_no_copies() {
        let gate = Gate::new(PathBuf::from("store"), Arc::new(Lease::none()));
        gate.fence("too few replicas");
        match gate.check() {
            Err(StoreError::Fenced { reason }) => assert_eq!(reason, "too few replicas"),
            other => panic!("{other:?}"),
        }
        assert!(gate.check_copy().is_ok());
        gate.shut(Refusal::DiskLevel);
        assert!(gate.check_copy().is_err());
        gate.lift(Refusal::DiskLevel);
        assert!(gate.lift(Refusal::Fenced));
        assert!(gate.check().is_ok());
    }

    #[test]
    fn only_a_full_disk_is_called_one() {
        let (gate, reports) =
            (Gate::new(PathBuf::from("store"), Arc::new(Lease::none())), Reports::default());
        let told = |kind: io::ErrorKind| {
            gate.shut_for_queues(&StoreError::io(Path::new("queue"), io::Error::from(kind)), &reports);
            gate.check()
        };
        assert!(matches!(told(io::ErrorKind::StorageFull), Err(StoreError::DiskFull { .. })));
        match told(io::ErrorKind::PermissionDenied) {
            Err(StoreError::QueuesStuck { cause }) => assert_eq!(cause, "queue: permission denied"),
            other => panic!("{other:?}"),
        }
        assert_eq!(reports.take().len(), 1, "told once");
        assert!(gate.lift(Refusal::QueuesStuck));
        assert!(gate.check().is_ok());
    }

    #[test]
    fn reports_are_bounded_and_say_what_was_dropped() {
        let reports = Reports::default();
        reports.add("same".to_owned());
        reports.add("same".to_owned());
        assert_eq!(reports.take(), ["same"]);
        for number in 0..REPORTS_MAX + 3 {
            reports.add(number.to_string());
        }
        let taken = reports.take();
        assert_eq!((taken.len(), taken[0].as_str()), (REPORTS_MAX + 1, "3 older reports were dropped"));
        assert!(reports.take().is_empty());
    }
}
