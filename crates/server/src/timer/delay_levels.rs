//! Delay levels: a message waits in the queue of its level and is then stored again in its own queue.
//!
//! All messages of a level wait equally long, so its queue is in the order of delivery and only its head matters. Python
//! saves the position of the head, never ahead of what is confirmed and on the disk.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use metaq_store::{Filter, GetStatus, SCHEDULE_TOPIC, Store, StoreError};
use metaq_wire::Record;

use crate::rounds::Rounds;
use crate::send::copy::{Copy, changed_properties};

/// Records of one turn of a level, at most.
const TURN_RECORDS: usize = 512;
const TURN_BYTES: usize = 4 * 1024 * 1024;
/// Sleep of the thread when nothing is due: delivery is at most this late.
const POLL: Duration = Duration::from_millis(50);
/// Properties that a delivered message no longer has.
const DELAY_PROPERTIES: [&str; 4] = ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

/// Messages that wait for one of the delay levels, and how far each level is delivered.
pub struct DelayLevels {
    pub(super) store: Arc<Store>,
    store_host: SocketAddr,
    pub(super) levels_ms: Vec<i64>,
    pub(super) delivered: Vec<AtomicI64>,
    /// The end of the last copy: it must be confirmed before the offsets are saved.
    copied_end: AtomicI64,
    pub(crate) rounds: Rounds,
}

impl DelayLevels {
    pub fn new(store: Arc<Store>, store_host: SocketAddr, levels_ms: Vec<i64>) -> Self {
        DelayLevels {
            store,
            store_host,
            delivered: levels_ms.iter().map(|_| AtomicI64::new(0)).collect(),
            levels_ms,
            copied_end: AtomicI64::new(0),
            rounds: Rounds::default(),
        }
    }

    /// The level that a sender asks for, within the levels that there are; None if the message is not delayed.
    pub fn level(&self, asked: i64) -> Option<usize> {
        (asked > 0 && !self.levels_ms.is_empty()).then(|| (asked as usize).min(self.levels_ms.len()))
    }

    /// Sets the offset at which each level goes on. Call it before the plane starts.
    pub fn load(&self, offsets: impl IntoIterator<Item = (usize, i64)>) {
        for (level, queue_offset) in offsets {
            if let Some(delivered) = level.checked_sub(1).and_then(|place| self.delivered.get(place)) {
                delivered.store(queue_offset, SeqCst);
            }
        }
    }

    /// The thread that delivers what is due.
    pub fn run(&self) {
        while self.rounds.pause(POLL) {
            while !self.rounds.is_held() && self.deliver_some() {}
        }
    }

    /// One turn of each level, so that many messages of one level do not hold up the others; true if more may be due.
    fn deliver_some(&self) -> bool {
        let levels = 1..=self.levels_ms.len();
        levels
            .fold(false, |has_more, level| !self.rounds.is_stopped() && (self.deliver_due(level) || has_more))
    }

    /// The offset that each level has reached, once everything delivered is confirmed and on this disk; None if that
    /// takes too long.
    pub fn offsets(&self, timeout: Duration) -> Option<Vec<(usize, i64)>> {
        let offsets = self.delivered.iter().enumerate();
        let offsets: Vec<(usize, i64)> =
            offsets.map(|(place, offset)| (place + 1, offset.load(SeqCst))).collect();
        let end = self.copied_end.load(SeqCst);
        let is_kept = self.store.wait_flushed(end, timeout) && self.store.wait_confirmed(end, timeout);
        is_kept.then_some(offsets)
    }

    /// One turn of a level; true if more may be due.
    fn deliver_due(&self, level: usize) -> bool {
        let delivered = &self.delivered[level - 1];
        let queue_id = level as i32 - 1;
        let from = delivered.load(SeqCst);
        if self.store.max_offset(SCHEDULE_TOPIC, queue_id) <= from {
            return false;
        }
        let got = self.store.get(SCHEDULE_TOPIC, queue_id, from, TURN_RECORDS, TURN_BYTES, &Filter::All);
        if got.status != GetStatus::Found {
            // Deleted by retention or left out: continue after it. In front of damage, wait for its repair.
            delivered.store(got.next_offset.max(from), SeqCst);
            return got.next_offset > from;
        }
        let due_before_ms = self.store.clock().now_ms() - self.levels_ms[level - 1];
        let mut finished = got.next_offset;
        let mut is_waiting = false;
        'slices: for slice in &got.slices {
            let mut rest = &slice[..];
            while let Ok(record) = Record::decode(rest) {
                if record.store_timestamp_ms > due_before_ms || self.deliver(&record).is_err() {
                    finished = record.queue_offset;
                    is_waiting = true;
                    break 'slices;
                }
                rest = &rest[record.size..];
            }
        }
        if finished > from {
            self.store.dispatch();
            delivered.store(finished, SeqCst);
            self.store.request_confirm(self.copied_end.load(SeqCst));
        }
        !is_waiting
    }

    /// Stores a delayed message in its own queue. If the store refuses, the next turn tries again.
    fn deliver(&self, record: &Record<'_>) -> Result<(), StoreError> {
        let real_topic = record.property("REAL_TOPIC").and_then(|topic| std::str::from_utf8(topic).ok());
        let real_queue =
            record.property("REAL_QID").and_then(|queue| std::str::from_utf8(queue).ok()?.parse().ok());
        let (Some(topic), Some(queue_id)) = (real_topic, real_queue) else {
            // It does not name its queue. It stays readable by its id.
            return Ok(());
        };
        let properties = changed_properties(record.properties, &DELAY_PROPERTIES, &[]);
        let copy = Copy { topic, queue_id, reconsume_times: record.reconsume_times, properties: &properties };
        match copy.append(record, &self.store, self.store_host) {
            Ok(appended) => {
                self.copied_end.store(appended.end_offset, SeqCst);
                Ok(())
            }
            // A message that can never be stored must not hold up later ones.
            Err(StoreError::BadTopic(_) | StoreError::BadQueue(_) | StoreError::TooLarge { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
