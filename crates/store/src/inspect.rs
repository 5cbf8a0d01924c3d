//! Queries of tools: which queues exist, how far they reach, and their entries.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::StoreError;
use crate::store::Store;

/// The most entries that one query returns.
const ENTRIES_MAX: usize = 10_000;
/// The most entries (of 20 bytes) that one measurement reads. For more, ask again from where it ended.
const MEASURED_MAX: i64 = 1_000_000;
const MEASURED_CHUNK: usize = 1_000;

/// One entry of a consume queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    pub physical_offset: i64,
    pub size: i32,
    pub tag_code: i64,
}

/// How much a part of a queue holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The queue offset after the last counted record.
    pub end_offset: i64,
    /// The size of the records as stored.
    pub bytes: i64,
    /// The physical offsets of the record before the part and of its last record. They identify the records: if a queue
    /// was deleted and created again, they differ.
    pub before_physical_offset: Option<i64>,
    pub last_physical_offset: Option<i64>,
}

impl Store {
    /// Topic → queue → the offset of its next record, for the queues that were used since the store was opened.
    pub fn queue_ends(&self) -> BTreeMap<String, BTreeMap<i32, i64>> {
        let mut ends: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
        for queue in self.shared.queues.loaded() {
            let end = queue.max_offset();
            match ends.get_mut(&*queue.topic) {
                Some(queues) => {
                    queues.insert(queue.queue_id, end);
                }
                None => {
                    ends.insert(queue.topic.to_string(), BTreeMap::from([(queue.queue_id, end)]));
                }
            }
        }
        ends
    }

    /// Every topic that has a queue, in memory or on the disk.
    pub fn topics(&self) -> Result<BTreeSet<String>, StoreError> {
        let mut topics: BTreeSet<String> =
            self.shared.queues.list_on_disk()?.into_iter().map(|(topic, _)| topic).collect();
        topics.extend(self.shared.queues.loaded().iter().map(|queue| queue.topic.to_string()));
        Ok(topics)
    }

    /// Up to `count_max` entries of a queue from `queue_offset` on; none if it does not reach that far.
    pub fn queue_entries(
        &self,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        count_max: usize,
    ) -> Vec<QueueEntry> {
        let mut entries = Vec::new();
        let from = queue_offset.max(self.min_offset(topic, queue_id));
        self.with_queue(topic, queue_id, |queue| {
            queue.read(&self.shared.queues.disk, from, count_max.min(ENTRIES_MAX), &mut entries)
        });
        entries
            .iter()
            .map(|entry| QueueEntry {
                physical_offset: entry.physical_offset,
                size: entry.size,
                tag_code: entry.tag_code,
            })
            .collect()
    }

    /// Measures how many records from `from_offset` on fit in `bytes_max` bytes, but not past `to_offset`. Holes have
    /// no size.
    pub fn measure(
        &self,
        topic: &str,
        queue_id: i32,
        from_offset: i64,
        to_offset: i64,
        bytes_max: i64,
    ) -> Measured {
        let from_offset = from_offset.max(0);
        let mut measured = Measured { end_offset: from_offset, ..Measured::default() };
        measured.before_physical_offset = self.entry_physical_offset(topic, queue_id, from_offset - 1);
        let to_offset = to_offset.min(from_offset.saturating_add(MEASURED_MAX));
        let mut entries = Vec::new();
        self.with_queue(topic, queue_id, |queue| {
            while measured.end_offset < to_offset {
                let count = (to_offset - measured.end_offset).clamp(0, MEASURED_CHUNK as i64) as usize;
                queue.read(&self.shared.queues.disk, measured.end_offset, count, &mut entries)?;
                for entry in &entries {
                    let size = if entry.is_void() { 0 } else { i64::from(entry.size) };
                    if measured.bytes + size > bytes_max {
                        return Ok(());
                    }
                    measured.bytes += size;
                    measured.end_offset += 1;
                    measured.last_physical_offset = Some(entry.physical_offset);
                }
                if entries.is_empty() {
                    return Ok(());
                }
            }
            Ok(())
        });
        measured
    }

    /// The physical offset of an entry's record; None if it is deleted or never existed.
    fn entry_physical_offset(&self, topic: &str, queue_id: i32, queue_offset: i64) -> Option<i64> {
        if queue_offset < self.min_offset(topic, queue_id) {
            return None;
        }
        self.queue_entries(topic, queue_id, queue_offset, 1).first().map(|entry| entry.physical_offset)
    }
}
