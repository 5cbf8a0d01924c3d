//! Committed offsets: one number per group, topic and queue. They live here because every consumer reads and writes them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use foldhash::fast::RandomState;
use parking_lot::RwLock;

use self::room::{Extent, Full};
use self::table::{Committed, Place, Table};
use crate::settings::OffsetLimits;
use crate::transaction::shares::NameKey;

mod room;
mod table;

type Queues = BTreeMap<i32, i64>;
/// A topic → the groups that have offsets in it.
type Names = HashMap<String, BTreeSet<String>, RandomState>;

/// Connections that a reset remembers. A connection that it forgets is sent to the new offset once more.
const INFORMED_MAX: usize = 16;

/// Keys that are taken at once for the disk. Pulls and commits wait meanwhile.
const TAKEN_AT_ONCE: usize = 1_000;

/// The client that commits an offset.
#[derive(Clone, Copy, Debug)]
pub struct Committer {
    /// The connection.
    pub peer: u64,
    /// Its address.
    pub network: NameKey,
}

/// Why an offset was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// It lies beyond the end of the queue, which is this.
    Beyond(i64),
    /// There are as many offsets as there may be.
    Full(Full),
}

/// A reset of a group's offset that its consumer has not followed yet.
#[derive(Clone, Debug)]
struct Reset {
    queue_offset: i64,
    /// The connections that were sent to the new offset, or that have read it. Any other may still hold messages from
    /// before the reset, even if it pulls from the new offset by chance.
    informed: VecDeque<u64>,
}

/// The effect of an open reset on a pull or a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetStep {
    /// No reset is open.
    None,
    /// The consumer must continue at this offset.
    Redirect(i64),
    /// The consumer continues at the new offset, so the reset is over. What the same pull commits is from before.
    Ended,
}

impl Reset {
    fn inform(&mut self, peer: u64) {
        if !self.informed.contains(&peer) {
            if self.informed.len() >= INFORMED_MAX {
                self.informed.pop_front();
            }
            self.informed.push_back(peer);
        }
    }

    /// Whether a consumer that is at this offset has followed.
    fn is_followed(&self, peer: u64, queue_offset: i64) -> bool {
        queue_offset == self.queue_offset && self.informed.contains(&peer)
    }
}

/// One `topic@group` with its committed offsets and with the resets that its consumers have not followed yet.
pub type Change = (String, Queues, Queues);

/// `topic@group` → queue → committed offset. Python writes the changes to disk and reads them back.
pub struct Offsets {
    table: RwLock<Table>,
    /// The number of resets under way. Read before the lock, because it is nearly always 0.
    resets: AtomicUsize,
}

thread_local! {
    /// The key of the last commit, whose space is used again.
    static KEY: RefCell<String> = const { RefCell::new(String::new()) };
}

fn key(group: &str, topic: &str) -> String {
    let mut key = String::with_capacity(group.len() + topic.len() + 1);
    write_key(&mut key, group, topic);
    key
}

fn write_key(key: &mut String, group: &str, topic: &str) {
    key.push_str(topic);
    key.push('@');
    key.push_str(group);
}

impl Offsets {
    pub fn new(limits: OffsetLimits) -> Self {
        let table = Table { limits, ..Table::default() };
        Offsets { table: RwLock::new(table), resets: AtomicUsize::new(0) }
    }

    pub fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        let table = self.table.read();
        let place = table.committed.get(&key(group, topic))?.queues.get(&queue_id)?;
        Some(place.committed_offset)
    }

    /// The committed offset for the consumer on a connection, and whether it is the target of an open reset, which the
    /// consumer knows from now on.
    pub fn read(&self, group: &str, topic: &str, queue_id: i32, peer: u64) -> Option<(i64, bool)> {
        if self.resets.load(SeqCst) != 0 {
            let mut table = self.table.write();
            if let Some(reset) =
                table.resets.get_mut(&key(group, topic)).and_then(|queues| queues.get_mut(&queue_id))
            {
                reset.inform(peer);
                return Some((reset.queue_offset, true));
            }
        }
        Some((self.get(group, topic, queue_id)?, false))
    }

    /// Commits an offset for a consumer. While a reset is open, commits are ignored: they are from before it. Only the
    /// new offset itself, from an informed consumer, ends the reset: such a consumer may read from a replica, and never
    /// pull here. False if the commit was ignored.
    pub fn commit(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        committed_offset: i64,
        by: impl Into<Committer>,
    ) -> bool {
        let by = by.into();
        KEY.with_borrow_mut(|key| {
            key.clear();
            write_key(key, group, topic);
            self.commit_known(key, queue_id, committed_offset, true, by.peer).unwrap_or_else(|| {
                self.commit_seen(key, queue_id, committed_offset, None, by).unwrap_or(false)
            })
        })
    }

    fn commit_seen(
        &self,
        key: &str,
        queue_id: i32,
        committed_offset: i64,
        end_seen: Option<i64>,
        by: Committer,
    ) -> Result<bool, CommitFault> {
        let mut table = self.table.write();
        match self.heed_reset(&mut table, key, queue_id, committed_offset, by.peer) {
            ResetStep::Redirect(_) => return Ok(false),
            ResetStep::Ended => {}
            ResetStep::None => {
                let new = table.new_extent(key, queue_id);
                table
                    .check_room(new)
                    .and_then(|()| table.check_share(new, by.network))
                    .map_err(CommitFault::Full)?;
                table.put_seen(key, queue_id, committed_offset, end_seen);
                table.note_added(new, by.network);
            }
        }
        Ok(true)
    }

    /// Applies an open reset to a consumer on this connection that is at this offset.
    #[inline]
    fn heed_reset(
        &self,
        table: &mut Table,
        key: &str,
        queue_id: i32,
        queue_offset: i64,
        peer: u64,
    ) -> ResetStep {
        if self.resets.load(SeqCst) == 0 {
            return ResetStep::None;
        }
        let Some(queues) = table.resets.get_mut(key) else { return ResetStep::None };
        let Some(reset) = queues.get(&queue_id) else { return ResetStep::None };
        if !reset.is_followed(peer, queue_offset) {
            return ResetStep::Redirect(reset.queue_offset);
        }
        queues.remove(&queue_id);
        if queues.is_empty() {
            table.resets.remove(key);
        }
        table.changed.push(key.to_owned());
        self.resets.fetch_sub(1, SeqCst);
        ResetStep::Ended
    }

    /// Commits an offset like [`commit`](Self::commit), if it is possible. `end` says how far the queue goes, or fails
    /// with that if the offset lies beyond; it is asked only for offsets that are higher than the last answer.
    pub fn commit_within(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        committed_offset: i64,
        by: impl Into<Committer>,
        end: impl FnOnce() -> Result<i64, i64>,
    ) -> Result<bool, CommitFault> {
        let by = by.into();
        KEY.with_borrow_mut(|key| {
            key.clear();
            write_key(key, group, topic);
            if let Some(is_taken) = self.commit_known(key, queue_id, committed_offset, false, by.peer) {
                return Ok(is_taken);
            }
            // The store may have to look on the disk, so nobody may wait for it.
            let end_seen =
                if committed_offset == 0 { None } else { Some(end().map_err(CommitFault::Beyond)?) };
            self.commit_seen(key, queue_id, committed_offset, end_seen, by)
        })
    }

    /// Commits an offset if one is committed already, and if this one is known to be possible or within the end that was
    /// seen; None if not. Says whether the commit was taken, or ignored for a reset.
    #[inline]
    fn commit_known(
        &self,
        key: &str,
        queue_id: i32,
        committed_offset: i64,
        is_possible: bool,
        peer: u64,
    ) -> Option<bool> {
        let mut table = self.table.write();
        match self.heed_reset(&mut table, key, queue_id, committed_offset, peer) {
            ResetStep::Redirect(_) => return Some(false),
            ResetStep::Ended => return Some(true),
            ResetStep::None => {}
        }
        let Table { committed, changed, .. } = &mut *table;
        let committed = committed.get_mut(key)?;
        let place = committed.queues.get_mut(&queue_id)?;
        if committed_offset > place.end_seen && !is_possible {
            return None;
        }
        let before = mem::replace(&mut place.committed_offset, committed_offset);
        if before != committed_offset {
            committed.note_change(key, changed);
        }
        Some(true)
    }

    /// Commits an offset at a replica that has no master, unless a later one is committed. Python takes it, to commit it
    /// at the master. Returns false if there is no room for it.
    pub fn keep(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) -> bool {
        let key = key(group, topic);
        let mut table = self.table.write();
        table.advance(&key, queue_id, committed_offset);
        let known = table.committed.get(&key).and_then(|committed| committed.queues.get(&queue_id));
        if known.is_none() {
            return false;
        }
        if known.is_some_and(|known| known.committed_offset == committed_offset) {
            let kept = table.kept.entry(key).or_default().entry(queue_id).or_insert(committed_offset);
            *kept = committed_offset.max(*kept);
        }
        true
    }

    /// Takes the offsets that were kept without a master.
    pub fn take_kept(&self) -> Vec<(String, Queues)> {
        mem::take(&mut self.table.write().kept).into_iter().collect()
    }

    /// Commits an offset unless a later one is committed, as a new master that takes over what was committed to it as a
    /// replica.
    pub fn advance(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.table.write().advance(&key(group, topic), queue_id, committed_offset);
    }

    /// Whether a reset or a copy may set the offsets of these queues of a group, by topic. Ask for all of them before the
    /// first one is set. One such request is done at a time, so only commits can take room in between.
    pub fn check_resets<'a>(
        &self,
        group: &str,
        wanted: impl IntoIterator<Item = (&'a str, &'a [i32])>,
    ) -> Result<(), Full> {
        let mut new = Extent::default();
        for (topic, queues) in wanted {
            // Commits wait for one topic at most.
            let table = self.table.read();
            let known = table.committed.get(&key(group, topic));
            new.pairs += usize::from(known.is_none() && !queues.is_empty());
            new.places += queues
                .iter()
                .filter(|queue| !known.is_some_and(|known| known.queues.contains_key(queue)))
                .count();
        }
        self.table.read().check_room_for_resets(group, new)
    }

    /// Sets the offset of a group without a limit: a replica takes over what its master has, and the broker keeps its
    /// own progress.
    pub fn assign(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) {
        self.table.write().put(&key(group, topic), queue_id, committed_offset);
    }

    /// Moves a group, running or not, to another offset. Commits are ignored until its consumer continues there. Ask
    /// [`check_resets`](Self::check_resets) before.
    pub fn reset(&self, group: &str, topic: &str, queue_id: i32, queue_offset: i64) {
        let key = key(group, topic);
        let mut table = self.table.write();
        table.put(&key, queue_id, queue_offset);
        table.changed.push(key.clone());
        let reset = Reset { queue_offset, informed: VecDeque::new() };
        if table.resets.entry(key).or_default().insert(queue_id, reset).is_none() {
            self.resets.fetch_add(1, SeqCst);
        }
    }

    /// Applies an open reset to a pull. A consumer that pulls from elsewhere is sent to the new offset, however
    /// often it asks: its messages and its commits are from before the reset. A pull from the new offset ends the reset if
    /// the consumer knows of it.
    pub fn follow_reset(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        asked_offset: i64,
        peer: u64,
    ) -> ResetStep {
        if self.resets.load(SeqCst) == 0 {
            return ResetStep::None;
        }
        let key = key(group, topic);
        let mut table = self.table.write();
        let step = self.heed_reset(&mut table, &key, queue_id, asked_offset, peer);
        if let (ResetStep::Redirect(_), Some(reset)) =
            (step, table.resets.get_mut(&key).and_then(|queues| queues.get_mut(&queue_id)))
        {
            reset.inform(peer);
        }
        step
    }

    /// Whether a reset of that queue is open.
    pub fn awaits_reset(&self, group: &str, topic: &str, queue_id: i32) -> bool {
        if self.resets.load(SeqCst) == 0 {
            return false;
        }
        let table = self.table.read();
        table.resets.get(&key(group, topic)).is_some_and(|queues| queues.contains_key(&queue_id))
    }

    /// Takes the keys that changed since the last call, each with its offsets and its open resets as they are now. A key
    /// without either was removed. Resets must survive a restart, or a late commit would undo them.
    pub fn take_changed(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        while {
            let (some, is_more) = self.take_some_changed();
            changes.extend(some);
            is_more
        } {}
        changes
    }

    /// The same in parts, so that nobody waits for all of them: call it until it says that there are no more. Keys that
    /// change in between belong to the next round.
    pub fn take_some_changed(&self) -> (Vec<Change>, bool) {
        let table = &mut *self.table.write();
        if table.taking.is_empty() {
            table.taking = mem::take(&mut table.changed);
        }
        let rest = table.taking.len().saturating_sub(TAKEN_AT_ONCE);
        let mut keys = table.taking.split_off(rest);
        keys.sort_unstable();
        keys.dedup();
        (keys.into_iter().map(|key| table.take(key)).collect(), rest > 0)
    }

    pub fn load(&self, offsets: HashMap<String, Queues>) {
        let mut table = self.table.write();
        for (key, queues) in offsets {
            let place = |committed_offset| Place { committed_offset, end_seen: 0 };
            let queues = queues.into_iter().map(|(queue_id, offset)| (queue_id, place(offset))).collect();
            let committed = Committed { queues, changed: false };
            let places = committed.queues.len();
            let before = mem::replace(table.entry(&key), committed).queues.len();
            table.places = table.places + places - before;
            if let Some(of_group) = table.of_group(&key) {
                of_group.places = of_group.places + places - before;
            }
        }
    }

    /// All `topic@group`, in no order.
    pub fn keys(&self) -> Vec<String> {
        self.table.read().committed.keys().cloned().collect()
    }

    /// All offsets. The cost grows with the broker, so clients must not be able to ask for this often.
    pub fn snapshot(&self) -> Vec<(String, Queues)> {
        let table = self.table.read();
        table.committed.iter().map(|(key, committed)| (key.clone(), committed.offsets())).collect()
    }

    /// The offsets of a group in a topic.
    pub fn of(&self, group: &str, topic: &str) -> Queues {
        let table = self.table.read();
        table.committed.get(&key(group, topic)).map_or_else(Queues::new, Committed::offsets)
    }

    /// The topics in which the group has committed offsets, in order.
    pub fn topics_of(&self, group: &str) -> Vec<String> {
        self.table.read().topics_of(group)
    }

    /// The groups that have committed offsets in the topic, in order.
    pub fn groups_of(&self, topic: &str) -> Vec<String> {
        listed(&self.table.read().groups_of_topic, topic)
    }

    /// Removes the offsets of the group, of the topic, or of the group on the topic.
    pub fn remove(&self, group: Option<&str>, topic: Option<&str>) {
        let mut table = self.table.write();
        let pairs: Vec<(String, String)> = match (group, topic) {
            (Some(group), Some(topic)) => vec![(group.to_owned(), topic.to_owned())],
            (Some(group), None) => {
                let topics = table.topics_of(group);
                topics.into_iter().map(|topic| (group.to_owned(), topic)).collect()
            }
            (None, Some(topic)) => {
                let groups = listed(&table.groups_of_topic, topic);
                groups.into_iter().map(|group| (group, topic.to_owned())).collect()
            }
            (None, None) => return,
        };
        for (group, topic) in pairs {
            let resets = table.remove(&group, &topic);
            self.resets.fetch_sub(resets, SeqCst);
        }
    }
}

fn listed(names: &Names, name: &str) -> Vec<String> {
    names.get(name).into_iter().flatten().cloned().collect()
}

#[cfg(test)]
impl From<u64> for Committer {
    /// Each connection has an address of its own.
    fn from(peer: u64) -> Self {
        Committer { peer, network: NameKey::numbered(peer) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
