//! The pulls that wait for their group's limit, in the order in which they will be served.
//!
//! The queue that was served longest ago comes first, even if its pull timed out meanwhile and was sent again. So no queue
//! and no consumer starves, however low the rate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::net::peer::Peer;
use crate::pull::handler::Pull;
use crate::pull::held_pulls::Held;

/// Queues of a group for which the last turn is remembered.
const TURNS_MAX: usize = 100_000;

/// The time at which the queue was served last, and the order of arrival.
type Turn = (u64, u64);
type Reader = (Arc<str>, i32, u64);

#[derive(Default)]
struct Waiting {
    pulls: BTreeMap<Turn, Held>,
    /// By queue and connection, because in broadcast mode every consumer reads every queue.
    served: HashMap<Reader, u64, RandomState>,
}

#[derive(Default)]
struct Table {
    groups: HashMap<Arc<str>, Waiting, RandomState>,
    count: usize,
    next: u64,
    is_closed: bool,
}

/// All pulls that wait for their group's limit.
pub struct Paced {
    table: Mutex<Table>,
    count: AtomicUsize,
    count_max: usize,
}

impl Paced {
    pub fn new(count_max: usize) -> Self {
        Paced { table: Mutex::default(), count: AtomicUsize::new(0), count_max }
    }

    pub fn len(&self) -> usize {
        self.count.load(SeqCst)
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    pub fn has(&self, group: &str) -> bool {
        !self.is_empty()
            && self.table.lock().groups.get(group).is_some_and(|waiting| !waiting.pulls.is_empty())
    }

    /// Returns the pull if there is no room for it.
    pub fn add(&self, held: Held) -> Result<(), Box<Held>> {
        let table = &mut *self.table.lock();
        if table.is_closed || table.count >= self.count_max {
            return Err(Box::new(held));
        }
        let group = match table.groups.get_mut(&held.pull.group) {
            Some(group) => group,
            None => table.groups.entry(held.pull.group.clone()).or_default(),
        };
        let served = group.served.get(&reader(&held.pull, &held.peer)).copied().unwrap_or(0);
        group.pulls.insert((served, table.next), held);
        table.next += 1;
        table.count += 1;
        self.count.store(table.count, SeqCst);
        Ok(())
    }

    /// Puts a pull back at its old turn, because it could not be served.
    pub fn put_back(&self, turn: Turn, held: Held) {
        let table = &mut *self.table.lock();
        table.groups.entry(held.pull.group.clone()).or_default().pulls.insert(turn, held);
        table.count += 1;
        self.count.store(table.count, SeqCst);
    }

    pub fn take_first(&self, group: &str) -> Option<(Turn, Held)> {
        let table = &mut *self.table.lock();
        let first = table.groups.get_mut(group)?.pulls.pop_first()?;
        table.count -= 1;
        self.count.store(table.count, SeqCst);
        Some(first)
    }

    pub fn note_served(&self, pull: &Pull, peer: &Peer) {
        let table = &mut *self.table.lock();
        table.next += 1;
        let group = match table.groups.get_mut(&pull.group) {
            Some(group) => group,
            None => table.groups.entry(pull.group.clone()).or_default(),
        };
        if group.served.len() >= TURNS_MAX {
            group.served.clear();
        }
        group.served.insert(reader(pull, peer), table.next);
    }

    pub fn groups(&self) -> Vec<Arc<str>> {
        self.table.lock().groups.keys().cloned().collect()
    }

    /// Forgets the turns of a group that has no limit any more and no pulls that wait.
    pub fn forget(&self, group: &str) {
        let table = &mut *self.table.lock();
        if table.groups.get(group).is_some_and(|waiting| waiting.pulls.is_empty()) {
            table.groups.remove(group);
        }
    }

    pub fn take_where(&self, wanted: impl Fn(&Held) -> bool) -> Vec<Held> {
        if self.is_empty() {
            return Vec::new();
        }
        let table = &mut *self.table.lock();
        let mut taken = Vec::new();
        for waiting in table.groups.values_mut() {
            let turns: Vec<Turn> =
                waiting.pulls.iter().filter(|(_, held)| wanted(held)).map(|(turn, _)| *turn).collect();
            taken.extend(turns.iter().filter_map(|turn| waiting.pulls.remove(turn)));
        }
        table.count -= taken.len();
        self.count.store(table.count, SeqCst);
        taken
    }

    /// Takes out everything and has no room from now on.
    pub fn close(&self) -> Vec<Held> {
        self.table.lock().is_closed = true;
        self.take_where(|_| true)
    }

    pub fn take_queue(&self, group: &str, topic: &str, queue_id: i32) -> Vec<Held> {
        self.take_where(|held| {
            *held.pull.group == *group && *held.pull.topic == *topic && held.pull.queue_id == queue_id
        })
    }

    /// Forgets the pulls and turns of a peer that has left.
    pub fn drop_peer(&self, peer: &Arc<Peer>) {
        drop(self.take_where(|held| Arc::ptr_eq(&held.peer, peer)));
        let mut table = self.table.lock();
        for waiting in table.groups.values_mut() {
            waiting.served.retain(|(_, _, id), _| *id != peer.id);
        }
        table.groups.retain(|_, waiting| !waiting.pulls.is_empty() || !waiting.served.is_empty());
    }
}

fn reader(pull: &Pull, peer: &Peer) -> Reader {
    (pull.topic.clone(), pull.queue_id, peer.id)
}
