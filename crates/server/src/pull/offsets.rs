//! Committed offsets: one number per group, topic and queue. They live here because every consumer reads and writes them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use foldhash::fast::RandomState;
use parking_lot::RwLock;

type Queues = BTreeMap<i32, i64>;

/// A reset of a group's offset that its consumer has not followed yet.
#[derive(Clone, Copy, Debug)]
struct Reset {
    queue_offset: i64,
    /// The consumer has got the answer that sends it there.
    sent: bool,
}

#[derive(Default)]
struct Table {
    committed: HashMap<String, Queues, RandomState>,
    resets: HashMap<String, BTreeMap<i32, Reset>, RandomState>,
}

/// `topic@group` → queue → committed offset. Python writes the table to disk and reads it back.
#[derive(Default)]
pub struct Offsets {
    table: RwLock<Table>,
    version: AtomicU64,
    /// The number of resets under way. Read before the lock, because it is nearly always 0.
    resets: AtomicUsize,
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
        self.table.read().committed.get(&key(group, topic))?.get(&queue_id).copied()
    }

    /// Commits an offset for a consumer. While a reset is under way, commits are ignored: they are from before it.
    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        let key = key(group, topic);
        let mut table = self.table.write();
        if table.resets.get(&key).is_some_and(|queues| queues.contains_key(&queue_id)) {
            return;
        }
        self.put(&mut table, key, queue_id, committed_offset);
    }

    /// Sets the offset of a group that does not run, for an administrator.
    pub fn assign(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.put(&mut self.table.write(), key(group, topic), queue_id, committed_offset);
    }

    /// Moves a group, running or not, to another offset. Commits are ignored until its consumer pulls from there.
    pub fn reset(&self, group: &str, topic: &str, queue_id: i32, queue_offset: i64) {
        let key = key(group, topic);
        let mut table = self.table.write();
        table.resets.entry(key.clone()).or_default().insert(queue_id, Reset { queue_offset, sent: false });
        self.put(&mut table, key, queue_id, queue_offset);
        self.count_resets(&table);
        self.version.fetch_add(1, Relaxed);
    }

    /// The offset to send a pull to; None if no reset is under way, or if this pull ends it. A consumer that was sent
    /// there and still pulls from elsewhere is served.
    pub fn follow_reset(&self, group: &str, topic: &str, queue_id: i32, asked_offset: i64) -> Option<i64> {
        if self.resets.load(SeqCst) == 0 {
            return None;
        }
        let key = key(group, topic);
        let mut table = self.table.write();
        let queues = table.resets.get_mut(&key)?;
        let reset = queues.get_mut(&queue_id)?;
        if !reset.sent && reset.queue_offset != asked_offset {
            reset.sent = true;
            return Some(reset.queue_offset);
        }
        queues.remove(&queue_id);
        if queues.is_empty() {
            table.resets.remove(&key);
        }
        self.count_resets(&table);
        self.version.fetch_add(1, Relaxed);
        None
    }

    /// Whether a pull of that queue would be sent to another offset.
    pub fn awaits_reset(&self, group: &str, topic: &str, queue_id: i32) -> bool {
        if self.resets.load(SeqCst) == 0 {
            return false;
        }
        let table = self.table.read();
        let queues = table.resets.get(&key(group, topic));
        queues.and_then(|queues| queues.get(&queue_id)).is_some_and(|reset| !reset.sent)
    }

    /// The resets that consumers have not followed yet. They must survive a restart, or a late commit would undo them.
    pub fn resets(&self) -> Vec<(String, Queues)> {
        let table = self.table.read();
        let places = |queues: &BTreeMap<i32, Reset>| {
            queues.iter().map(|(queue_id, reset)| (*queue_id, reset.queue_offset)).collect()
        };
        table.resets.iter().map(|(key, queues)| (key.clone(), places(queues))).collect()
    }

    /// Grows with every change.
    pub fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    pub fn load(&self, table: HashMap<String, Queues>) {
        self.table.write().committed.extend(table);
    }

    pub fn snapshot(&self) -> Vec<(String, Queues)> {
        let table = self.table.read();
        table.committed.iter().map(|(key, queues)| (key.clone(), queues.clone())).collect()
    }

    /// Removes the offsets of the group, of the topic, or of the group on the topic.
    pub fn remove(&self, group: Option<&str>, topic: Option<&str>) {
        if group.is_none() && topic.is_none() {
            return;
        }
        let stays = |key: &String| {
            let Some((of_topic, of_group)) = key.split_once('@') else {
                return true;
            };
            let fits =
                topic.is_none_or(|topic| topic == of_topic) && group.is_none_or(|group| group == of_group);
            !fits
        };
        let mut table = self.table.write();
        table.committed.retain(|key, _| stays(key));
        table.resets.retain(|key, _| stays(key));
        self.count_resets(&table);
        self.version.fetch_add(1, Relaxed);
    }

    fn put(&self, table: &mut Table, key: String, queue_id: i32, committed_offset: i64) {
        let before = table.committed.entry(key).or_default().insert(queue_id, committed_offset);
        if before != Some(committed_offset) {
            self.version.fetch_add(1, Relaxed);
        }
    }

    fn count_resets(&self, table: &Table) {
        self.resets.store(table.resets.values().map(BTreeMap::len).sum(), SeqCst);
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
        assert_eq!(offsets.version(), before, "an unchanged offset does not count as a change");
        offsets.remove(Some("g"), Some("t"));
        assert_eq!(offsets.get("g", "t", 0), None);
        assert_eq!(offsets.get("g", "u", 1), Some(6));
        offsets.remove(None, Some("t"));
        assert_eq!(offsets.get("h", "t", 0), None);
        assert_eq!(offsets.snapshot().len(), 1);
    }

    #[test]
    fn a_reset_stands_against_commits_until_the_consumer_has_followed() {
        let offsets = Offsets::default();
        offsets.commit("g", "t", 0, 50);
        assert_eq!(offsets.follow_reset("g", "t", 0, 50), None);
        offsets.reset("g", "t", 0, 5);
        assert_eq!(offsets.get("g", "t", 0), Some(5));
        offsets.commit("g", "t", 0, 51);
        assert_eq!(offsets.get("g", "t", 0), Some(5), "what it commits of the time before is not heard");
        offsets.commit("g", "t", 1, 7);
        assert_eq!(offsets.get("g", "t", 1), Some(7), "other queues are not touched");
        assert!(offsets.awaits_reset("g", "t", 0) && !offsets.awaits_reset("h", "t", 0));
        assert_eq!(offsets.resets(), [("t@g".to_owned(), Queues::from([(0, 5)]))]);
        assert_eq!(offsets.follow_reset("g", "t", 0, 51), Some(5));
        offsets.commit("g", "t", 0, 52);
        assert_eq!(offsets.get("g", "t", 0), Some(5));
        let before = offsets.version();
        assert_eq!(offsets.follow_reset("g", "t", 0, 5), None, "it has followed");
        assert!(offsets.resets().is_empty());
        assert!(offsets.version() > before, "that it has followed is to be kept");
        offsets.commit("g", "t", 0, 6);
        assert_eq!(offsets.get("g", "t", 0), Some(6));
    }

    #[test]
    fn a_reset_is_told_once_and_goes_with_its_group() {
        let offsets = Offsets::default();
        offsets.reset("g", "t", 0, 5);
        assert_eq!(offsets.follow_reset("g", "t", 0, 9), Some(5));
        assert_eq!(offsets.follow_reset("g", "t", 0, 9), None, "a consumer that insists is served");
        let before = offsets.version();
        offsets.reset("g", "t", 0, 5);
        assert!(offsets.version() > before, "a reset to where the group is already is to be kept too");
        offsets.remove(Some("g"), None);
        assert_eq!(offsets.follow_reset("g", "t", 0, 9), None);
        offsets.assign("g", "t", 0, 3);
        assert_eq!(offsets.get("g", "t", 0), Some(3));
    }
}
