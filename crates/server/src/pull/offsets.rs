//! Committed offsets: one number per group, topic and queue. They live here because every consumer reads and writes them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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

/// The offsets of one group in one topic.
#[derive(Default)]
struct Committed {
    queues: Queues,
    /// Ends of queues that were seen. An offset up to there is possible and needs no look into the store.
    ends: Queues,
    /// It is on the list of changes.
    changed: bool,
}

#[derive(Default)]
struct Table {
    committed: HashMap<String, Committed, RandomState>,
    resets: HashMap<String, BTreeMap<i32, Reset>, RandomState>,
    /// The keys that changed since Python last took them. Removed ones and resets may be here twice.
    changed: Vec<String>,
}

/// One `topic@group` with its committed offsets and with the resets that its consumers have not followed yet.
pub type Change = (String, Queues, Queues);

/// `topic@group` → queue → committed offset. Python writes the changes to disk and reads them back.
#[derive(Default)]
pub struct Offsets {
    table: RwLock<Table>,
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
        self.table.read().committed.get(&key(group, topic))?.queues.get(&queue_id).copied()
    }

    /// Commits an offset for a consumer. While a reset is under way, commits are ignored: they are from before it.
    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        let key = key(group, topic);
        let mut table = self.table.write();
        if table.resets.get(&key).is_some_and(|queues| queues.contains_key(&queue_id)) {
            return;
        }
        table.put(key, queue_id, committed_offset);
    }

    /// Commits an offset like [`commit`](Self::commit), if it is possible. `end` says how far the queue goes, or fails
    /// with that if the offset lies beyond; it is asked only for offsets that are higher than the last answer.
    pub fn commit_within(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        committed_offset: i64,
        end: impl FnOnce() -> Result<i64, i64>,
    ) -> Result<(), i64> {
        let name = key(group, topic);
        let mut table = self.table.write();
        if table.resets.get(&name).is_some_and(|queues| queues.contains_key(&queue_id)) {
            return Ok(());
        }
        let is_within = |ends: &Queues| ends.get(&queue_id).is_some_and(|end| committed_offset <= *end);
        if table.put_if(name, queue_id, committed_offset, |ends| committed_offset == 0 || is_within(ends)) {
            return Ok(());
        }
        // The store may have to look on the disk, so nobody may wait for it.
        drop(table);
        let end = end()?;
        self.commit(group, topic, queue_id, committed_offset);
        if let Some(committed) = self.table.write().committed.get_mut(&key(group, topic)) {
            committed.ends.insert(queue_id, end);
        }
        Ok(())
    }

    /// Commits an offset unless a later one is committed. For a replica, whose master may know a later one, and for a
    /// new master that takes over what was committed to it as a replica.
    pub fn advance(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        let key = key(group, topic);
        let mut table = self.table.write();
        let is_reset = table.resets.get(&key).is_some_and(|queues| queues.contains_key(&queue_id));
        let known = table.committed.get(&key).and_then(|committed| committed.queues.get(&queue_id));
        if !is_reset && known.is_none_or(|known| *known < committed_offset) {
            table.put(key, queue_id, committed_offset);
        }
    }

    /// Sets the offset of a group that does not run, for an administrator.
    pub fn assign(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.table.write().put(key(group, topic), queue_id, committed_offset);
    }

    /// Moves a group, running or not, to another offset. Commits are ignored until its consumer pulls from there.
    pub fn reset(&self, group: &str, topic: &str, queue_id: i32, queue_offset: i64) {
        let key = key(group, topic);
        let mut table = self.table.write();
        table.resets.entry(key.clone()).or_default().insert(queue_id, Reset { queue_offset, sent: false });
        table.changed.push(key.clone());
        table.put(key, queue_id, queue_offset);
        self.count_resets(&table);
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
        table.changed.push(key);
        self.count_resets(&table);
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

    /// Takes the keys that changed since the last call, each with its offsets and its open resets as they are now. A key
    /// without either was removed. Resets must survive a restart, or a late commit would undo them.
    pub fn take_changed(&self) -> Vec<Change> {
        let mut table = self.table.write();
        let mut keys = mem::take(&mut table.changed);
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().map(|key| table.take(key)).collect()
    }

    pub fn load(&self, offsets: HashMap<String, Queues>) {
        let committed =
            offsets.into_iter().map(|(key, queues)| (key, Committed { queues, ..Committed::default() }));
        self.table.write().committed.extend(committed);
    }

    pub fn snapshot(&self) -> Vec<(String, Queues)> {
        let table = self.table.read();
        table.committed.iter().map(|(key, committed)| (key.clone(), committed.queues.clone())).collect()
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
        let Table { committed, resets, changed } = &mut *table;
        let mut keeps = |key: &String| {
            let stays = stays(key);
            if !stays {
                changed.push(key.clone());
            }
            stays
        };
        committed.retain(|key, _| keeps(key));
        resets.retain(|key, _| keeps(key));
        self.count_resets(&table);
    }

    fn count_resets(&self, table: &Table) {
        self.resets.store(table.resets.values().map(BTreeMap::len).sum(), SeqCst);
    }
}

impl Table {
    fn put(&mut self, key: String, queue_id: i32, committed_offset: i64) {
        self.put_if(key, queue_id, committed_offset, |_| true);
    }

    /// Puts the offset if it `fits` the ends that were seen; false if it does not.
    #[inline]
    fn put_if(
        &mut self,
        key: String,
        queue_id: i32,
        committed_offset: i64,
        fits: impl Fn(&Queues) -> bool,
    ) -> bool {
        // The key is copied once between two writes to disk, however often a consumer commits.
        let Table { committed, changed, .. } = self;
        let entry = match committed.entry(key) {
            Entry::Occupied(found) if !fits(&found.get().ends) => return false,
            Entry::Occupied(found) if found.get().changed => found.into_mut(),
            Entry::Occupied(found) => {
                if found.get().queues.get(&queue_id) == Some(&committed_offset) {
                    return true;
                }
                changed.push(found.key().clone());
                found.into_mut()
            }
            Entry::Vacant(_) if !fits(&Queues::new()) => return false,
            Entry::Vacant(vacant) => {
                changed.push(vacant.key().clone());
                vacant.insert(Committed::default())
            }
        };
        entry.changed = true;
        entry.queues.insert(queue_id, committed_offset);
        true
    }

    fn take(&mut self, key: String) -> Change {
        let committed = self.committed.get_mut(&key).map_or_else(Queues::new, |committed| {
            committed.changed = false;
            committed.queues.clone()
        });
        let resets = self.resets.get(&key).map_or_else(Queues::new, |queues| {
            queues.iter().map(|(queue_id, reset)| (*queue_id, reset.queue_offset)).collect()
        });
        (key, committed, resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, committed: &[(i32, i64)], resets: &[(i32, i64)]) -> Change {
        (key.to_owned(), committed.iter().copied().collect(), resets.iter().copied().collect())
    }

    #[test]
    fn only_what_changed_is_taken() {
        let offsets = Offsets::default();
        offsets.load(HashMap::from([("t@g".to_owned(), Queues::from([(0, 5)]))]));
        assert_eq!(offsets.take_changed(), [], "what was loaded is on disk");
        offsets.commit("g", "t", 0, 5);
        assert_eq!(offsets.take_changed(), [], "the same offset again changes nothing");
        offsets.commit("g", "t", 0, 6);
        offsets.commit("g", "t", 0, 7);
        offsets.commit("h", "t", 3, 1);
        assert_eq!(offsets.take_changed(), [change("t@g", &[(0, 7)], &[]), change("t@h", &[(3, 1)], &[])]);
        offsets.commit("h", "t", 3, 2);
        offsets.remove(Some("h"), None);
        assert_eq!(offsets.take_changed(), [change("t@h", &[], &[])]);
        offsets.commit("h", "t", 3, 2);
        assert_eq!(offsets.take_changed(), [change("t@h", &[(3, 2)], &[])]);
        assert_eq!(offsets.take_changed(), []);
    }

    #[test]
    fn the_end_of_a_queue_is_looked_up_only_for_offsets_beyond_the_last_one() {
        let offsets = Offsets::default();
        let mut asked = 0;
        let mut commit = |committed_offset: i64, end: i64| {
            offsets.commit_within("g", "t", 0, committed_offset, || {
                asked += 1;
                if committed_offset > end { Err(end) } else { Ok(end) }
            })
        };
        assert_eq!(commit(0, 0), Ok(()));
        assert_eq!(commit(1, 0), Err(0));
        assert_eq!((commit(3, 10), commit(10, 10), commit(2, 10)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(commit(11, 10), Err(10));
        assert_eq!(commit(11, 20), Ok(()));
        assert_eq!((asked, offsets.get("g", "t", 0)), (4, Some(11)));
        offsets.remove(None, Some("t"));
        let gone = offsets.commit_within("g", "t", 0, 1, || Err(0));
        assert_eq!(
            (gone, offsets.get("g", "t", 0)),
            (Err(0), None),
            "the topic was deleted, its ends with it"
        );
    }

    #[test]
    fn commits_are_read_back_and_removed_by_group_or_topic() {
        let offsets = Offsets::default();
        offsets.commit("g", "t", 0, 5);
        offsets.commit("g", "u", 1, 6);
        offsets.commit("h", "t", 0, 7);
        assert_eq!(offsets.get("g", "t", 0), Some(5));
        assert_eq!(offsets.get("g", "t", 1), None);
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
        assert_eq!(offsets.take_changed(), [change("t@g", &[(0, 5), (1, 7)], &[(0, 5)])]);
        assert_eq!(offsets.follow_reset("g", "t", 0, 51), Some(5));
        offsets.commit("g", "t", 0, 52);
        assert_eq!(offsets.get("g", "t", 0), Some(5));
        assert_eq!(offsets.take_changed(), []);
        assert_eq!(offsets.follow_reset("g", "t", 0, 5), None, "it has followed");
        assert_eq!(offsets.take_changed(), [change("t@g", &[(0, 5), (1, 7)], &[])]);
        offsets.commit("g", "t", 0, 6);
        assert_eq!(offsets.get("g", "t", 0), Some(6));
    }

    #[test]
    fn a_reset_is_told_once_and_goes_with_its_group() {
        let offsets = Offsets::default();
        offsets.reset("g", "t", 0, 5);
        assert_eq!(offsets.follow_reset("g", "t", 0, 9), Some(5));
        assert_eq!(offsets.follow_reset("g", "t", 0, 9), None, "a consumer that insists is served");
        offsets.take_changed();
        offsets.reset("g", "t", 0, 5);
        assert_eq!(offsets.take_changed().len(), 1, "a reset to where the group is already counts too");
        offsets.remove(Some("g"), None);
        assert_eq!(offsets.follow_reset("g", "t", 0, 9), None);
        offsets.assign("g", "t", 0, 3);
        assert_eq!(offsets.get("g", "t", 0), Some(3));
    }
}
