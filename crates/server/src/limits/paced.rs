//! Pulls of groups that are given a rate: read with as many messages as the rate has room for, and waiting otherwise.
//!
//! Among the waiting pulls of a group the queue that was served longest ago comes first, even where its pull ran out
//! of time in between and was sent anew: no queue and no consumer starves, however low the rate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use metaq_store::{GetStatus, Got};
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::limits::rate::Limit;
use crate::net::peer::Peer;
use crate::net::route::Ask;
use crate::pull::handler::Pull;
use crate::pull::hold::Held;

/// How long a pull that asked for no wait is kept all the same: an empty answer would say that the queue is empty.
const UNASKED_WAIT: Duration = Duration::from_secs(1);
/// Queues of a group whose last turn is remembered.
const TURNS_MAX: usize = 100_000;

/// When its queue was served last, and which of them came first.
type Turn = (u64, u64);
type Reader = (String, i32, u64);

#[derive(Default)]
struct Waiting {
    pulls: BTreeMap<Turn, Held>,
    /// By queue and connection, as in broadcast mode each consumer reads every queue.
    served: HashMap<Reader, u64, RandomState>,
}

#[derive(Default)]
struct Table {
    groups: HashMap<String, Waiting, RandomState>,
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

    fn has(&self, group: &str) -> bool {
        !self.is_empty()
            && self.table.lock().groups.get(group).is_some_and(|waiting| !waiting.pulls.is_empty())
    }

    /// Gives the pull back where there is no room for it.
    fn add(&self, held: Held) -> Result<(), Box<Held>> {
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

    /// Puts back what could not be served, where it was.
    fn put_back(&self, turn: Turn, held: Held) {
        let table = &mut *self.table.lock();
        table.groups.entry(held.pull.group.clone()).or_default().pulls.insert(turn, held);
        table.count += 1;
        self.count.store(table.count, SeqCst);
    }

    fn take_first(&self, group: &str) -> Option<(Turn, Held)> {
        let table = &mut *self.table.lock();
        let first = table.groups.get_mut(group)?.pulls.pop_first()?;
        table.count -= 1;
        self.count.store(table.count, SeqCst);
        Some(first)
    }

    fn note_served(&self, pull: &Pull, peer: &Peer) {
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

    fn groups(&self) -> Vec<String> {
        self.table.lock().groups.keys().cloned().collect()
    }

    /// Forgets whose turn it was in a group that is not limited any more and waits for nothing.
    fn forget(&self, group: &str) {
        let table = &mut *self.table.lock();
        if table.groups.get(group).is_some_and(|waiting| waiting.pulls.is_empty()) {
            table.groups.remove(group);
        }
    }

    fn take_where(&self, wanted: impl Fn(&Held) -> bool) -> Vec<Held> {
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
            held.pull.group == group && held.pull.topic == topic && held.pull.queue_id == queue_id
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

impl Broker {
    /// Reads for a pull as much as its group's limit has room for; None where it has to wait. Those who wait already
    /// come before those who do not, unless it is their turn.
    pub(crate) fn get_within(&self, pull: &Pull, peer: &Peer, is_its_turn: bool) -> Option<Got> {
        let Some(limit) = self.consume_limit(&pull.group) else {
            return Some(self.get(pull));
        };
        let now_ns = self.flow.now_ns();
        let is_there = pull.queue_offset < self.store.max_offset(&pull.topic, pull.queue_id);
        if !is_there || pull.queue_offset < self.store.min_offset(&pull.topic, pull.queue_id) {
            let got = self.get(pull);
            // What arrived since the look above counts as well.
            limit.charge(got.count as u64, got.bytes as u64, now_ns);
            return Some(got);
        }
        if !is_its_turn && self.flow.paced.has(&pull.group) {
            return None;
        }
        let (count_max, bytes_max) = limit.take(pull.count_max, pull.bytes_max, now_ns)?;
        let got = self.get_at_most(pull, count_max, bytes_max);
        limit.settle(count_max - got.count.min(count_max), got.bytes, now_ns);
        self.flow.paced.note_served(pull, peer);
        Some(got)
    }

    /// Counts what a function let through: only its verdicts tell how much that is, so the next pull waits for it.
    pub(crate) fn charge_consumed(&self, group: &str, got: &Got) {
        if let Some(limit) = self.consume_limit(group) {
            limit.charge(got.count as u64, got.bytes as u64, self.flow.now_ns());
        }
    }

    fn consume_limit(&self, group: &str) -> Option<Arc<Limit>> {
        let policy = self.policy.read();
        if !policy.has_limited_groups {
            return None;
        }
        policy.group(group)?.consume_limit.clone()
    }

    /// Lets a pull wait for its group's limit; one for which there is no room comes back.
    pub(crate) fn pace(&self, held: Held) -> Result<(), Box<Held>> {
        held.peer.counts.pulls_paced.add(1);
        self.flow.paced.add(held)?;
        self.flow.wake();
        Ok(())
    }

    /// A pull that waits for the limit and not for messages.
    pub(crate) fn paced_pull(&self, ask: &Ask<'_>, pull: Pull, suspend: Option<Duration>) -> Held {
        Held {
            peer: Arc::clone(ask.peer),
            deadline: Instant::now() + suspend.unwrap_or(UNASKED_WAIT),
            pull,
            advanced: false,
        }
    }

    /// Serves the waiting pulls of every limited group as far as their tokens go.
    pub(crate) fn serve_paced(&self) {
        let paced = &self.flow.paced;
        if paced.is_empty() {
            return;
        }
        for group in paced.groups() {
            while let Some((turn, held)) = paced.take_first(&group) {
                if let Some(too_early) = self.look_in_turn(held) {
                    paced.put_back(turn, too_early);
                    break;
                }
            }
            if self.consume_limit(&group).is_none() {
                paced.forget(&group);
            }
        }
    }

    /// Answers those whose time is over; they ask again and keep their place.
    pub(crate) fn expire_paced(&self, now: Instant) {
        for held in self.flow.paced.take_where(|held| held.deadline <= now) {
            self.finish_paced(held);
        }
    }

    /// What a pull is told whose time ran out before its group's limit had room: there is something, ask again.
    pub(crate) fn not_yet(&self, pull: &Pull) -> Got {
        Got {
            status: GetStatus::NoMatch,
            next_offset: pull.queue_offset,
            min_offset: self.store.min_offset(&pull.topic, pull.queue_id),
            max_offset: self.store.max_offset(&pull.topic, pull.queue_id),
            slices: Vec::new(),
            count: 0,
            bytes: 0,
        }
    }
}
