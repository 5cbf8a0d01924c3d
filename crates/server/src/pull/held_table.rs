//! Pulls that wait, by ticket, found by deadline and by connection. The tables of the rooms where pulls wait are built
//! over this one: for messages, for a limit, and for a function.
//!
//! Taking out a pull costs the same however many wait beside it: a client decides how many that are.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use foldhash::fast::RandomState;

use crate::net::by_network::ByNetwork;
use crate::net::peer::Peer;
use crate::pull::held_pulls::Held;

/// Pulls that are taken out under one lock, at most: whoever waits for the lock waits for no more than these.
pub const TAKEN_AT_ONCE: usize = 256;

/// Identifies a pull that waits; later ones have higher numbers.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

impl Ticket {
    pub const FIRST: Ticket = Ticket(0);
    const LAST: Ticket = Ticket(u64::MAX);
}

impl Ord for Ticket {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Ticket {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ticket {}

struct Entry<P> {
    held: Held,
    deadline: Instant,
    place: P,
}

/// Pulls with the place that each has in the table of its room.
pub struct HeldTable<P> {
    entries: BTreeMap<Ticket, Entry<P>>,
    by_deadline: BTreeSet<(Instant, Ticket)>,
    by_peer: HashMap<u64, BTreeSet<Ticket>, RandomState>,
    by_network: ByNetwork,
    next: u64,
}

impl<P> Default for HeldTable<P> {
    fn default() -> Self {
        let (entries, by_deadline, by_peer) = (BTreeMap::new(), BTreeSet::new(), HashMap::default());
        HeldTable { entries, by_deadline, by_peer, by_network: ByNetwork::default(), next: 0 }
    }
}

impl<P> HeldTable<P> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether all places are taken, or all that this peer's address may have.
    pub fn is_full(&self, peer: &Peer, count_max: usize) -> bool {
        self.entries.len() >= count_max || self.by_network.is_full(peer, count_max)
    }

    /// The ticket of the pull that is inserted next.
    pub fn next_ticket(&self) -> Ticket {
        Ticket(self.next)
    }

    pub fn insert(&mut self, held: Held, deadline: Instant, place: P) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.by_deadline.insert((deadline, ticket));
        self.by_peer.entry(held.peer.id).or_default().insert(ticket);
        self.by_network.add(&held.peer);
        self.entries.insert(ticket, Entry { held, deadline, place });
        ticket
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Held> {
        self.entries.get(&ticket).map(|entry| &entry.held)
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<(Held, P)> {
        let Entry { held, deadline, place } = self.entries.remove(&ticket)?;
        self.by_deadline.remove(&(deadline, ticket));
        self.by_network.remove(&held.peer);
        if let Some(tickets) = self.by_peer.get_mut(&held.peer.id) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.by_peer.remove(&held.peer.id);
            }
        }
        Some((held, place))
    }

    pub fn all(&self) -> Vec<Ticket> {
        self.entries.keys().copied().collect()
    }

    /// Some pulls of a peer. Ask until there are none.
    pub fn of_peer(&self, peer: &Peer) -> Vec<Ticket> {
        self.by_peer.get(&peer.id).into_iter().flatten().take(TAKEN_AT_ONCE).copied().collect()
    }

    /// Some pulls whose time is over. Ask until there are none.
    pub fn overdue(&self, now: Instant) -> Vec<Ticket> {
        let overdue = self.by_deadline.range(..=(now, Ticket::LAST));
        overdue.take(TAKEN_AT_ONCE).map(|(_, ticket)| *ticket).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::HeldTable;

    thread_local! {
        pub(crate) static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    impl<P> HeldTable<P> {
        pub(crate) fn is_clean(&self) -> bool {
            let (entries, peers) = (&self.entries, &self.by_peer);
            entries.is_empty()
                && peers.is_empty()
                && self.by_deadline.is_empty()
                && self.by_network.is_empty()
        }
    }
}
