//! The pulls that wait for their group's limit, in the order in which they will be served.
//!
//! Addresses take turns, and so do the queues of an address: the one that was served longest ago comes first, even if its
//! pull timed out meanwhile and was sent again. One that was never served counts as served when it came. So no queue and no
//! consumer starves, however low the rate and however many queues another address asks for.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::net::peer::Peer;
use crate::pull::handler::Pull;
use crate::pull::held_pulls::Held;
use crate::pull::held_table::{HeldTable, Ticket};
use crate::transaction::shares::NameKey;

/// Queues and addresses of a group for which the last turn is remembered, each.
const TURNS_MAX: usize = 100_000;

/// The time at which the queue was served last, and the order of arrival.
type Turn = (u64, u64);
/// Topic and queue → the time at which it was served last.
type Served = HashMap<(Arc<str>, i32), u64, RandomState>;

/// The pulls of one address, and the time at which one of them was served last.
struct OfAddress {
    served: u64,
    pulls: BTreeMap<Turn, Ticket>,
}

#[derive(Default)]
struct Waiting {
    addresses: HashMap<NameKey, OfAddress, RandomState>,
    /// The addresses with pulls that wait, by the time at which each was served last.
    order: BTreeSet<(u64, NameKey)>,
    addresses_served: HashMap<NameKey, u64, RandomState>,
    /// By connection, because in broadcast mode every consumer reads every queue.
    served: HashMap<u64, Served, RandomState>,
    served_count: usize,
}

#[derive(Default)]
struct Table {
    pulls: HeldTable<Turn>,
    groups: HashMap<Arc<str>, Waiting, RandomState>,
    /// Connection → the groups that remember turns of it.
    served_in: HashMap<u64, BTreeSet<Arc<str>>, RandomState>,
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
        !self.is_empty() && self.table.lock().groups.get(group).is_some_and(|waiting| !waiting.is_empty())
    }

    /// Returns the pull if there is no room for it.
    pub fn add(&self, held: Held) -> Result<(), Box<Held>> {
        let table = &mut *self.table.lock();
        if table.is_closed || table.pulls.is_full(&held.peer, self.count_max) {
            return Err(Box::new(held));
        }
        table.next += 1;
        let now = table.next;
        let served = table.group(&held.pull.group).served_at(&held.pull, &held.peer).unwrap_or(now);
        table.insert((served, now), held);
        self.count.store(table.pulls.len(), SeqCst);
        Ok(())
    }

    /// Puts a pull back at its old turn, because it could not be served.
    pub fn put_back(&self, turn: Turn, held: Held) {
        let table = &mut *self.table.lock();
        table.insert(turn, held);
        self.count.store(table.pulls.len(), SeqCst);
    }

    pub fn take_first(&self, group: &str) -> Option<(Turn, Held)> {
        let table = &mut *self.table.lock();
        let (turn, ticket) = table.groups.get(group)?.first()?;
        let held = table.remove(ticket)?;
        self.count.store(table.pulls.len(), SeqCst);
        Some((turn, held))
    }

    pub fn note_served(&self, pull: &Pull, peer: &Peer) {
        let table = &mut *self.table.lock();
        // Nobody would forget the turns of a peer that has left.
        if peer.is_closing() {
            return;
        }
        table.next += 1;
        let now = table.next;
        table.served_in.entry(peer.id).or_default().insert(Arc::clone(&pull.group));
        table.group(&pull.group).note_served(pull, peer, now);
    }

    pub fn groups(&self) -> Vec<Arc<str>> {
        self.table.lock().groups.keys().cloned().collect()
    }

    /// Forgets the turns of a group that has no limit any more and no pulls that wait.
    pub fn forget(&self, group: &str) {
        let table = &mut *self.table.lock();
        if table.groups.get(group).is_some_and(Waiting::is_empty) {
            table.groups.remove(group);
        }
    }

    /// Takes out some pulls whose time is over. Call it until there are none.
    pub fn take_expired(&self, now: Instant) -> Vec<Held> {
        self.take_listed(|table| table.pulls.overdue(now))
    }

    /// Takes out everything and has no room from now on.
    pub fn close(&self) -> Vec<Held> {
        self.table.lock().is_closed = true;
        self.take_listed(|table| table.pulls.all())
    }

    pub fn take_queue(&self, group: &str, topic: &str, queue_id: i32) -> Vec<Held> {
        self.take_listed(|table| {
            let is_of_queue = |ticket: &Ticket| {
                let held = table.pulls.get(*ticket);
                held.is_some_and(|held| *held.pull.topic == *topic && held.pull.queue_id == queue_id)
            };
            let waiting = table.groups.get(group);
            let addresses = waiting.into_iter().flat_map(|waiting| waiting.addresses.values());
            let tickets = addresses.flat_map(|address| address.pulls.values());
            tickets.copied().filter(is_of_queue).collect()
        })
    }

    /// Forgets the pulls and turns of a peer that has left.
    pub fn drop_peer(&self, peer: &Peer) {
        while !self.take_listed(|table| table.pulls.of_peer(peer)).is_empty() {}
        let table = &mut *self.table.lock();
        for group in table.served_in.remove(&peer.id).into_iter().flatten() {
            if let Some(waiting) = table.groups.get_mut(&group) {
                waiting.forget(peer);
                if waiting.is_empty() && waiting.served.is_empty() {
                    table.groups.remove(&group);
                }
            }
        }
    }

    /// Takes out the pulls that `list` names.
    fn take_listed(&self, list: impl FnOnce(&Table) -> Vec<Ticket>) -> Vec<Held> {
        if self.is_empty() {
            return Vec::new();
        }
        let table = &mut *self.table.lock();
        let listed = list(table);
        let taken = listed.into_iter().filter_map(|ticket| table.remove(ticket)).collect();
        self.count.store(table.pulls.len(), SeqCst);
        taken
    }
}

impl Table {
    fn group(&mut self, group: &Arc<str>) -> &mut Waiting {
        self.groups.entry(Arc::clone(group)).or_default()
    }

    fn insert(&mut self, turn: Turn, held: Held) {
        let (group, deadline, network) = (Arc::clone(&held.pull.group), held.deadline, held.peer.network);
        let ticket = self.pulls.insert(held, deadline, turn);
        let now = self.next;
        self.group(&group).insert(network, turn, ticket, now);
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let (held, turn) = self.pulls.remove(ticket)?;
        if let Some(waiting) = self.groups.get_mut(&held.pull.group) {
            waiting.remove(held.peer.network, turn);
        }
        Some(held)
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn first(&self) -> Option<(Turn, Ticket)> {
        let (_, network) = self.order.first()?;
        let (turn, ticket) = self.addresses.get(network)?.pulls.first_key_value()?;
        Some((*turn, *ticket))
    }

    fn insert(&mut self, network: NameKey, turn: Turn, ticket: Ticket, now: u64) {
        self.make_room();
        let served = *self.addresses_served.entry(network).or_insert(now);
        let address =
            self.addresses.entry(network).or_insert_with(|| OfAddress { served, pulls: BTreeMap::new() });
        self.order.insert((address.served, network));
        address.pulls.insert(turn, ticket);
    }

    fn remove(&mut self, network: NameKey, turn: Turn) {
        if let Entry::Occupied(mut address) = self.addresses.entry(network) {
            address.get_mut().pulls.remove(&turn);
            if address.get().pulls.is_empty() {
                self.order.remove(&(address.get().served, network));
                address.remove();
            }
        }
    }

    fn make_room(&mut self) {
        if self.addresses_served.len() >= TURNS_MAX {
            self.addresses_served.clear();
        }
    }

    fn served_at(&self, pull: &Pull, peer: &Peer) -> Option<u64> {
        self.served.get(&peer.id).and_then(|served| served.get(&queue(pull))).copied()
    }

    fn note_served(&mut self, pull: &Pull, peer: &Peer, now: u64) {
        self.make_room();
        self.addresses_served.insert(peer.network, now);
        if let Some(address) = self.addresses.get_mut(&peer.network) {
            self.order.remove(&(address.served, peer.network));
            address.served = now;
            self.order.insert((now, peer.network));
        }
        if self.served_count >= TURNS_MAX {
            self.served.clear();
            self.served_count = 0;
        }
        if self.served.entry(peer.id).or_default().insert(queue(pull), now).is_none() {
            self.served_count += 1;
        }
    }

    fn forget(&mut self, peer: &Peer) {
        self.served_count -= self.served.remove(&peer.id).map_or(0, |served| served.len());
    }
}

fn queue(pull: &Pull) -> (Arc<str>, i32) {
    (Arc::clone(&pull.topic), pull.queue_id)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metaq_store::Filter;

    use super::*;
    use crate::pull::held_pulls::tests::{held, peer, peer_at};
    use crate::pull::held_table::tests::COMPARISONS;

    fn add(paced: &Paced, peer: &Arc<Peer>, opaque: i32) {
        assert!(paced.add(held(peer, opaque, Filter::All)).is_ok());
    }

    #[test]
    fn the_end_of_a_connection_costs_what_it_had_waiting() {
        let (paced, many, one) = (Paced::new(usize::MAX), peer(1), peer(2));
        for opaque in 0..3_000 {
            add(&paced, &many, opaque);
        }
        add(&paced, &one, -1);
        paced.note_served(&held(&one, -2, Filter::All).pull, &one);
        COMPARISONS.set(0);
        paced.drop_peer(&peer(3));
        paced.drop_peer(&one);
        assert!(COMPARISONS.get() < 100, "{} comparisons for 3,000 pulls", COMPARISONS.get());
        assert_eq!(paced.len(), 3_000);
        let now = Instant::now();
        let expired = std::iter::repeat_with(|| paced.take_expired(now).len()).take_while(|count| *count > 0);
        assert_eq!(expired.sum::<usize>(), 3_000);
        paced.drop_peer(&many);
        let table = paced.table.lock();
        assert!(table.pulls.is_clean() && table.served_in.is_empty());
    }

    #[test]
    fn the_queue_that_was_served_longest_ago_comes_first_even_if_it_is_put_back() {
        let (paced, one, other) = (Paced::new(5), peer(1), peer(2));
        paced.note_served(&held(&one, 0, Filter::All).pull, &one);
        add(&paced, &one, 1);
        add(&paced, &other, 2);
        add(&paced, &one, 3);
        assert!(paced.add(held(&one, 4, Filter::All)).is_err());
        let (turn, first) = paced.take_first("g").unwrap();
        assert_eq!(first.pull.opaque, 1);
        paced.put_back(turn, first);
        let order: Vec<i32> =
            std::iter::from_fn(|| paced.take_first("g")).map(|(_, held)| held.pull.opaque).collect();
        assert_eq!(order, [1, 3, 2]);
        assert!(paced.is_empty() && paced.table.lock().pulls.is_clean());
    }

    #[test]
    fn a_stranger_with_many_queues_takes_turns_with_the_members() {
        let (paced, member) = (Paced::new(usize::MAX), peer_at(1, "127.0.0.9:1"));
        let new_stranger = |id| {
            let stranger = peer(id);
            for queue_id in 0..100 {
                let mut pull = held(&stranger, queue_id, Filter::All);
                pull.pull.queue_id = queue_id;
                assert!(paced.add(pull).is_ok());
            }
            stranger
        };
        let stranger = new_stranger(2);
        add(&paced, &member, -1);
        let mut served = Vec::new();
        for round in 0..10 {
            let (_, first) = paced.take_first("g").unwrap();
            paced.note_served(&first.pull, &first.peer);
            served.push(first.peer.id);
            if first.peer.id == member.id {
                add(&paced, &member, -1);
            }
            if round == 5 {
                paced.drop_peer(&stranger);
                new_stranger(3);
            }
        }
        assert_eq!(served, [2, 1, 2, 1, 2, 1, 3, 1, 3, 1], "a new connection has no new turn");
    }
}
