//! Committed offsets: one number per group, topic and queue, kept here because every consumer reads and writes them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;
use parking_lot::RwLock;

type Queues = BTreeMap<i32, i64>;

/// `topic@group` → queue → committed offset. Python writes the table to disk and reads it back.
#[derive(Default)]
pub struct Offsets {
    table: RwLock<HashMap<String, Queues, RandomState>>,
    version: AtomicU64,
}

fn key(group: &str, topic: &str) -> String {
    let mut key = String::with_capacity(group.len() + topic.len() + 1);
    key.push_str(topic);
    key.push('@');
    key.push_str(group);
    key
}

impl Offsets {
    pub fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.table.read().get(&key(group, topic))?.get(&queue_id).copied()
    }

    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        let key = key(group, topic);
        let before = self.table.write().entry(key).or_default().insert(queue_id, committed_offset);
        if before != Some(committed_offset) {
            self.version.fetch_add(1, Relaxed);
        }
    }

    /// Grows with every change.
    pub fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    pub fn load(&self, table: HashMap<String, Queues>) {
        self.table.write().extend(table);
    }

    pub fn snapshot(&self) -> Vec<(String, Queues)> {
        self.table.read().iter().map(|(key, queues)| (key.clone(), queues.clone())).collect()
    }

    /// Forgets what belongs to the group, to the topic, or to both where both are given.
    pub fn remove(&self, group: Option<&str>, topic: Option<&str>) {
        if group.is_none() && topic.is_none() {
            return;
        }
        self.table.write().retain(|key, _| {
            let Some((of_topic, of_group)) = key.split_once('@') else {
                return true;
            };
            let fits =
                topic.is_none_or(|topic| topic == of_topic) && group.is_none_or(|group| group == of_group);
            !fits
        });
        self.version.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_read_back_and_removed_by_group_or_topic() {
        let offsets = Offsets::default();
        offsets.commit("g", "t", 0, 5);
        offsets.commit("g", "u", 1, 6);
        offsets.commit("h", "t", 0, 7);
        assert_eq!(offsets.get("g", "t", 0), Some(5));
        assert_eq!(offsets.get("g", "t", 1), None);
        let before = offsets.version();
        offsets.commit("g", "t", 0, 5);
        assert_eq!(offsets.version(), before, "an unchanged offset is no change");
        offsets.remove(Some("g"), Some("t"));
        assert_eq!(offsets.get("g", "t", 0), None);
        assert_eq!(offsets.get("g", "u", 1), Some(6));
        offsets.remove(None, Some("t"));
        assert_eq!(offsets.get("h", "t", 0), None);
        assert_eq!(offsets.snapshot().len(), 1);
    }
}
