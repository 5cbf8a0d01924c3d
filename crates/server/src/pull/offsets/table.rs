//! The offsets of a broker and everything that is listed with them, behind the lock of [`super::Offsets`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use foldhash::fast::RandomState;

use super::room::{Extent, Full, Share};
use super::{Change, Names, Queues, Reset, key};
use crate::settings::OffsetLimits;
use crate::transaction::shares::NameKey;

/// The place of a group in one queue.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) committed_offset: i64,
    /// The end of the queue when it was last looked up. An offset up to there is possible and needs no look into the
    /// store.
    pub(super) end_seen: i64,
}

/// The offsets of one group in one topic.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) queues: BTreeMap<i32, Place>,
    /// It is on the list of changes.
    pub(super) changed: bool,
}

/// A group in all its topics.
#[derive(Default)]
pub(super) struct OfGroup {
    pub(super) topics: BTreeSet<String>,
    /// The queues of all these topics with a committed offset.
    pub(super) places: usize,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) limits: OffsetLimits,
    pub(super) committed: HashMap<String, Committed, RandomState>,
    /// Only for keys that have committed offsets.
    pub(super) resets: HashMap<String, BTreeMap<i32, Reset>, RandomState>,
    /// The keys that changed since Python last took them. Removed ones and resets may be here twice.
    pub(super) changed: Vec<String>,
    /// The part of them that is being taken.
    pub(super) taking: Vec<String>,
    /// Offsets that a replica took without its master, the highest of each queue, until Python takes them. The master's
    /// offsets do not overwrite them.
    pub(super) kept: HashMap<String, Queues, RandomState>,
    /// Offsets that clients at one address have added since the start.
    pub(super) added_by: HashMap<NameKey, Extent, RandomState>,
    pub(super) topics_of_group: HashMap<String, OfGroup, RandomState>,
    pub(super) groups_of_topic: Names,
    /// The queues of all keys.
    pub(super) places: usize,
}

impl Committed {
    pub(super) fn offsets(&self) -> Queues {
        self.queues.iter().map(|(queue_id, place)| (*queue_id, place.committed_offset)).collect()
    }

    /// The key is copied once between two writes to disk, however often a consumer commits.
    #[inline]
    pub(super) fn note_change(&mut self, key: &str, changed: &mut Vec<String>) {
        if !mem::replace(&mut self.changed, true) {
            changed.push(key.to_owned());
        }
    }
}

impl Table {
    #[inline]
    pub(super) fn is_reset(&self, key: &str, queue_id: i32) -> bool {
        self.resets.get(key).is_some_and(|queues| queues.contains_key(&queue_id))
    }

    pub(super) fn advance(&mut self, key: &str, queue_id: i32, committed_offset: i64) {
        let known = self.committed.get(key).and_then(|committed| committed.queues.get(&queue_id));
        let is_later = known.is_none_or(|known| known.committed_offset < committed_offset);
        let has_room = || self.check_room(self.new_extent(key, queue_id)).is_ok();
        if is_later && !self.is_reset(key, queue_id) && has_room() {
            self.put(key, queue_id, committed_offset);
        }
    }

    pub(super) fn put(&mut self, key: &str, queue_id: i32, committed_offset: i64) {
        self.put_seen(key, queue_id, committed_offset, None);
    }

    pub(super) fn put_seen(
        &mut self,
        key: &str,
        queue_id: i32,
        committed_offset: i64,
        end_seen: Option<i64>,
    ) {
        let mut changed = mem::take(&mut self.changed);
        let committed = self.entry(key);
        let known = committed.queues.get(&queue_id).copied();
        let end_seen = end_seen.or(known.map(|place| place.end_seen)).unwrap_or(0);
        let is_new = committed.queues.insert(queue_id, Place { committed_offset, end_seen }).is_none();
        if known.is_none_or(|place| place.committed_offset != committed_offset) {
            committed.note_change(key, &mut changed);
        }
        self.changed = changed;
        if is_new {
            self.places += 1;
            if let Some(of_group) = self.of_group(key) {
                of_group.places += 1;
            }
        }
    }

    pub(super) fn all(&self) -> Extent {
        Extent { pairs: self.committed.len(), places: self.places }
    }

    /// The extent that the offset of a queue would add.
    pub(super) fn new_extent(&self, key: &str, queue_id: i32) -> Extent {
        let known = self.committed.get(key);
        let has_place = known.is_some_and(|committed| committed.queues.contains_key(&queue_id));
        Extent { pairs: usize::from(known.is_none()), places: usize::from(!has_place) }
    }

    pub(super) fn check_room(&self, new: Extent) -> Result<(), Full> {
        self.all().check(new, &self.limits, Share::All)
    }

    /// Whether an address has its share of the offsets. While half of them are free, nobody asks.
    pub(super) fn check_share(&self, new: Extent, network: NameKey) -> Result<(), Full> {
        if self.all().check(new, &self.limits, Share::Address).is_ok() {
            return Ok(());
        }
        let own = self.added_by.get(&network).copied().unwrap_or_default();
        own.check(new, &self.limits, Share::Address)
    }

    pub(super) fn note_added(&mut self, new: Extent, network: NameKey) {
        if new != Extent::default() {
            let own = self.added_by.entry(network).or_default();
            own.pairs += new.pairs;
            own.places += new.places;
        }
    }

    pub(super) fn check_room_for_resets(&self, group: &str, new: Extent) -> Result<(), Full> {
        self.all().check(new, &self.limits, Share::Resets)?;
        let of_group = self.topics_of_group.get(group).map_or_else(Extent::default, |of_group| Extent {
            pairs: of_group.topics.len(),
            places: of_group.places,
        });
        of_group.check(new, &self.limits, Share::ResetsOfGroup)
    }

    pub(super) fn topics_of(&self, group: &str) -> Vec<String> {
        self.topics_of_group.get(group).into_iter().flat_map(|of_group| &of_group.topics).cloned().collect()
    }

    pub(super) fn of_group(&mut self, key: &str) -> Option<&mut OfGroup> {
        let (_, group) = key.split_once('@')?;
        self.topics_of_group.get_mut(group)
    }

    /// The offsets of a key, which is listed by its group and its topic from then on.
    pub(super) fn entry(&mut self, key: &str) -> &mut Committed {
        if !self.committed.contains_key(key) {
            if let Some((topic, group)) = key.split_once('@') {
                self.topics_of_group.entry(group.to_owned()).or_default().topics.insert(topic.to_owned());
                self.groups_of_topic.entry(topic.to_owned()).or_default().insert(group.to_owned());
            }
        }
        self.committed.entry(key.to_owned()).or_default()
    }

    /// Returns the number of resets that were removed with the offsets.
    pub(super) fn remove(&mut self, group: &str, topic: &str) -> usize {
        let key = key(group, topic);
        let Some(removed) = self.committed.remove(&key) else { return 0 };
        self.places -= removed.queues.len();
        self.kept.remove(&key);
        let resets = self.resets.remove(&key).map_or(0, |queues| queues.len());
        self.changed.push(key);
        if let Some(of_group) = self.topics_of_group.get_mut(group) {
            of_group.topics.remove(topic);
            of_group.places -= removed.queues.len();
            if of_group.topics.is_empty() {
                self.topics_of_group.remove(group);
            }
        }
        unlist(&mut self.groups_of_topic, topic, group);
        resets
    }

    pub(super) fn take(&mut self, key: String) -> Change {
        let committed = self.committed.get_mut(&key).map_or_else(Queues::new, |committed| {
            committed.changed = false;
            committed.offsets()
        });
        let resets = self.resets.get(&key).map_or_else(Queues::new, |queues| {
            queues.iter().map(|(queue_id, reset)| (*queue_id, reset.queue_offset)).collect()
        });
        (key, committed, resets)
    }
}

fn unlist(names: &mut Names, name: &str, listed: &str) {
    if let Some(all) = names.get_mut(name) {
        all.remove(listed);
        if all.is_empty() {
            names.remove(name);
        }
    }
}
