//! What tools look at: which queues there are, how far they reach, and their entries.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::StoreError;
use crate::store::Store;

/// Entries that one look may ask for.
const ENTRIES_MAX: usize = 10_000;

/// One line of a consume queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    pub physical_offset: i64,
    pub size: i32,
    pub tag_code: i64,
}

impl Store {
    /// Topic → queue → the offset of its next record, for the queues that something was written to or read from since
    /// the store was opened.
    pub fn queue_ends(&self) -> BTreeMap<String, BTreeMap<i32, i64>> {
        let mut ends: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
        for queue in self.parts.queues.loaded() {
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
            self.parts.queues.list_on_disk()?.into_iter().map(|(topic, _)| topic).collect();
        topics.extend(self.parts.queues.loaded().iter().map(|queue| queue.topic.to_string()));
        Ok(topics)
    }

    /// Up to `count_max` lines of a queue from `queue_offset` on; none where it does not reach that far.
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
            queue.read(&self.parts.queues.disk, from, count_max.min(ENTRIES_MAX), &mut entries)
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
}
