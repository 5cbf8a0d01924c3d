//! The ends of queues, and which offsets can be true: no consumer has read past the end of a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use metaq_store::Store;
use metaq_wire::layout;

/// Knows whether records may become visible that this broker does not show yet.
pub struct VisibleEnd {
    store: Arc<Store>,
    is_replica: bool,
    /// The log ended here when this role began, and not all of it was confirmed; 0 if all of it was.
    unconfirmed_end: AtomicI64,
}

impl VisibleEnd {
    pub fn new(store: Arc<Store>, is_replica: bool) -> Self {
        VisibleEnd { store, is_replica, unconfirmed_end: AtomicI64::new(0) }
    }

    /// Notes, when a role begins, up to where the log waits for other brokers to confirm it.
    pub fn note_log_end(&self) {
        let is_waiting = self.store.confirmed_offset() < self.store.held_offset();
        self.unconfirmed_end.store(if is_waiting { self.store.end_offset() } else { 0 }, Relaxed);
    }

    /// Whether records may become visible that other brokers have shown already. On a replica that is always so: its
    /// master knows better which offsets exist. On a master it is so until the log is confirmed that it began with.
    pub fn may_move(&self) -> bool {
        self.is_replica || self.store.confirmed_offset() < self.unconfirmed_end.load(Relaxed)
    }

    /// The end of a queue, as an error if no consumer can have read up to that offset.
    #[cold]
    pub fn check(&self, topic: &str, queue_id: i32, committed_offset: i64) -> Result<i64, i64> {
        let end = self.store.max_offset(topic, queue_id);
        if self.exceeds(committed_offset, end) { Err(end) } else { Ok(end) }
    }

    /// Whether no consumer can have read that far in a queue with this end.
    pub fn exceeds(&self, committed_offset: i64, end: i64) -> bool {
        committed_offset > end && (!self.may_move() || self.is_beyond_log(committed_offset, end))
    }

    /// Whether the log of a master that began with unconfirmed records is too short for that offset, even if all of them
    /// belong to this queue.
    #[cold]
    fn is_beyond_log(&self, committed_offset: i64, end: i64) -> bool {
        let unconfirmed_bytes = self.store.end_offset() - self.store.confirmed_offset();
        let records_max = unconfirmed_bytes / layout::RECORD_BYTES_MIN as i64;
        !self.is_replica && committed_offset - end > records_max
    }
}
